"""Report of an evaluation: all runs, and their metrics by case and variant."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from actgent.messages import NO_USAGE, Usage

from .cases_and_results import Case, Trial
from .simulated_user import Simulation

FORMAT = "actgent-evaluation 1"
"""Value of `format` in JSON reports."""


@attrs.frozen(kw_only=True)
class Figures:
    """Metrics over a set of runs."""

    trials: int = 0
    """Number of runs."""
    passed: int = 0
    """Number of runs with an answer that passed all checks."""
    errors: int = 0
    """Number of runs without an answer."""
    score: float = 0.0
    """Mean score of the runs; 0 without runs."""
    usage: Usage = NO_USAGE
    """Total token usage and cost of the runs' sessions."""
    p50: float = 0.0
    """Median duration of a run in seconds."""
    p95: float = 0.0
    """95th percentile of the duration of a run in seconds."""

    @property
    def rate(self) -> float:
        """Share of passed runs, from 0 to 1; 0 without runs."""
        return self.passed / self.trials if self.trials else 0.0

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> "Figures":
        """Summarize runs: their numbers of passes and errors, mean score, durations and usage."""
        found = list(trials)
        seconds = sorted(trial.seconds for trial in found)
        return cls(
            trials=len(found),
            passed=sum(trial.passed for trial in found),
            errors=sum(bool(trial.error) for trial in found),
            score=sum(trial.score for trial in found) / len(found) if found else 0.0,
            usage=sum((trial.usage for trial in found), NO_USAGE),
            p50=_percentile(seconds, 50),
            p95=_percentile(seconds, 95),
        )


def _percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile of sorted values by the nearest-rank method; 0 without values."""
    return values[max(math.ceil(len(values) * percent / 100), 1) - 1] if values else 0.0


@attrs.frozen
class Report:
    """Report of an evaluation: each run of each case with its scores, and methods that summarise them."""

    trials: tuple[Trial, ...]
    """All runs, ordered by case, variant and run number."""
    cases: tuple[Case, ...]
    """All cases, in the order in which they were given."""
    variants: tuple[str, ...]
    """Names of the compared agents, models or prompts."""

    @classmethod
    def of(cls, trials: Iterable[Trial], cases: Sequence[Case], variants: Sequence[str]) -> "Report":
        """Create a report. Runs are ordered by case, variant and run number."""
        places = {id(case): number for number, case in enumerate(cases)}
        names = {name: number for number, name in enumerate(variants)}
        ordered = sorted(trials, key=lambda trial: (places[id(trial.case)], names[trial.variant], trial.run))
        return cls(tuple(ordered), tuple(cases), tuple(variants))

    def row(self, variant: str) -> Figures:
        """Return the metrics over all runs of one variant."""
        return Figures.of(trial for trial in self.trials if trial.variant == variant)

    def cell(self, case: Case, variant: str) -> Figures:
        """Return the metrics over the runs of one case with one variant."""
        return Figures.of(trial for trial in self.trials if trial.case is case and trial.variant == variant)

    @property
    def judge_usage(self) -> Usage:
        """Total usage of the judge model; not part of the variants' usage."""
        return sum((trial.judge_usage for trial in self.trials), NO_USAGE)

    def meets(self, threshold: float) -> bool:
        """Return True if every variant was run, and at least the share `threshold` of its runs passed."""
        rows = [self.row(variant) for variant in self.variants]
        return all(row.trials > 0 and row.rate >= threshold for row in rows)

    def to_json(self) -> str:
        """Return the report as JSON with the members `format`, `variants` (with metrics) and `trials`."""
        variants = [{"name": name, **_figures(self.row(name))} for name in self.variants]
        found = {
            "format": FORMAT,
            "variants": variants,
            "trials": [_trial_row(trial) for trial in self.trials],
        }
        return json.dumps(found, ensure_ascii=False, indent=2, default=str)


def _figures(row: Figures) -> dict[str, Any]:
    return {**attrs.asdict(row), "rate": row.rate}


def _trial_row(trial: Trial) -> dict[str, Any]:
    return {
        "case": trial.case.title,
        "variant": trial.variant,
        "run": trial.run,
        "passed": trial.passed,
        "score": trial.score,
        "input": trial.case.input,
        "expected": trial.case.expected,
        "text": trial.text,
        "data": trial.data,
        "error": trial.error,
        "results": [attrs.asdict(result) for result in trial.results],
        "calls": [{"name": call.name, "arguments": call.arguments} for call in trial.calls],
        "usage": attrs.asdict(trial.usage),
        "seconds": trial.seconds,
        "simulation": None if trial.simulation is None else _of_simulation(trial.simulation),
    }


def _of_simulation(simulation: Simulation) -> dict[str, Any]:
    """Convert the result of a simulated user to a dictionary: stop reason, calls and usage."""
    return {
        "stop": simulation.stop,
        "turns": simulation.turns,
        "calls": [{"name": call.name, "arguments": call.arguments} for call in simulation.calls],
        "usage": attrs.asdict(simulation.usage),
    }
