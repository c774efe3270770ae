"""What came of an evaluation, as figures."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from actgent.messages import NO_USAGE, Usage

from .cases import Case, Trial
from .simulated import Simulation

FORMAT = "actgent-evaluation 1"


@attrs.frozen(kw_only=True)
class Figures:
    """The figures of some runs."""

    trials: int = 0
    """The number of runs."""
    passed: int = 0
    """Of them, those with an answer whose checks all passed."""
    errors: int = 0
    """Of them, those without an answer."""
    score: float = 0.0
    """The mean; 0 without runs."""
    usage: Usage = NO_USAGE
    """Of their sessions together."""
    p50: float = 0.0
    """Seconds of a run, the median."""
    p95: float = 0.0
    """Seconds of a run that 95 of 100 do not exceed."""

    @property
    def rate(self) -> float:
        """The part that passed; 0 without runs."""
        return self.passed / self.trials if self.trials else 0.0

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> "Figures":
        """Count runs."""
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
    """The nearest rank of sorted values."""
    return values[max(math.ceil(len(values) * percent / 100), 1) - 1] if values else 0.0


@attrs.frozen
class Report:
    """All runs, by cases and variants."""

    trials: tuple[Trial, ...]
    """All runs."""
    cases: tuple[Case, ...]
    """All that were run, in their order."""
    variants: tuple[str, ...]
    """The names of agents, models or prompts that were compared."""

    @classmethod
    def of(cls, trials: Iterable[Trial], cases: Sequence[Case], variants: Sequence[str]) -> "Report":
        """Put runs in the order of cases, variants and their numbers, whenever they ended."""
        places = {id(case): number for number, case in enumerate(cases)}
        names = {name: number for number, name in enumerate(variants)}
        ordered = sorted(trials, key=lambda trial: (places[id(trial.case)], names[trial.variant], trial.run))
        return cls(tuple(ordered), tuple(cases), tuple(variants))

    def row(self, variant: str) -> Figures:
        """The figures of a variant."""
        return Figures.of(trial for trial in self.trials if trial.variant == variant)

    def cell(self, case: Case, variant: str) -> Figures:
        """The figures of a case with a variant."""
        return Figures.of(trial for trial in self.trials if trial.case is case and trial.variant == variant)

    @property
    def judge_usage(self) -> Usage:
        """What the judge took, which is not in the rows."""
        return sum((trial.judge_usage for trial in self.trials), NO_USAGE)

    def meets(self, threshold: float) -> bool:
        """Return True if of each variant this part of the runs passed, and each was run."""
        rows = [self.row(variant) for variant in self.variants]
        return all(row.trials > 0 and row.rate >= threshold for row in rows)

    def to_json(self) -> str:
        """All of it for programs: `format`, `variants` with their figures, and `trials`."""
        variants = [{"name": name, **_figures(self.row(name))} for name in self.variants]
        found = {"format": FORMAT, "variants": variants, "trials": [_plain(trial) for trial in self.trials]}
        return json.dumps(found, ensure_ascii=False, indent=2, default=str)


def _figures(row: Figures) -> dict[str, Any]:
    return {**attrs.asdict(row), "rate": row.rate}


def _plain(trial: Trial) -> dict[str, Any]:
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


def _of_simulation(told: Simulation) -> dict[str, Any]:
    """Return the stop reason, calls and usage of a simulated user as plain data."""
    return {
        "stop": told.stop,
        "turns": told.turns,
        "calls": [{"name": call.name, "arguments": call.arguments} for call in told.calls],
        "usage": attrs.asdict(told.usage),
    }
