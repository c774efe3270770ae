"""`actgent simulate`: run a program's agents under random faults from seeds, and print the events that led to each failure."""

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree as ET  # only written, never parsed

import attrs

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.simulation.failing_run_shrinking import shrink
from actgent.simulation.fault_and_workload_plan import FAULTS, MAX_SESSIONS, Settings
from actgent.simulation.parallel_seed_runs import SeedResult, Totals, run_seeds, write_seed
from actgent.simulation.run_report import render_story
from actgent.simulation.seeded_choices import EventKey
from actgent.simulation.simulated_storage import JournalKind
from actgent.simulation.single_seed_run import SeedOutcome, check_program, play

from .command_options import SimulateOptions
from .terminal_io import Terminal

MAX_STORIES = 3
"""Maximum number of failing seeds that are shrunk and printed; one of each kind of problem."""
MAX_LISTED = 20
"""Maximum number of seeds in a list of seeds."""
PROGRESS_SECONDS = 1.0
_UNITS = {"s": 1, "m": 60, "h": 3600}


def run_simulation(options: SimulateOptions, terminal: Terminal) -> int:
    """Run the seeds, and print totals and the event sequences of failures. Return 1 if a seed failed or was not repeatable.

    Raises:
        ConfigurationError: An option is wrong, or the program cannot be run.
    """
    settings = _settings(options)
    check_program(settings)
    if options.seed is not None:
        return _replay(options.seed, settings, terminal)
    begun = time.monotonic()
    totals = _run_all(options, settings, terminal, begun)
    _show_totals(totals, time.monotonic() - begun, terminal)
    shown = _one_of_each_kind(totals.failed)[:MAX_STORIES]
    stories = [
        story
        for result in shown
        if (story := _show_failure(result, totals, settings, options, terminal)) is not None
    ]
    _show_rest(totals, len(stories), terminal)
    _write_reports(totals, stories, options)
    return 1 if totals.failed or totals.unrepeatable else 0


def _settings(options: SimulateOptions) -> Settings:
    names: dict[str, Sequence[str]] = {"all": FAULTS, "none": ()}
    faults = names[options.faults] if options.faults in names else _kinds("--faults", options.faults)
    always = _kinds("--always", options.always)
    if excluded := [each for each in always if each not in faults]:
        raise ConfigurationError(f"--always has the kind {excluded[0]!r}, which --faults excludes")
    if options.journal not in get_args(JournalKind):
        raise ConfigurationError(f"--journal must be memory or sqlite, not {options.journal!r}")
    return Settings(
        program=Path(options.program).resolve(),
        faults=frozenset(each for each in FAULTS if each in faults),
        always=frozenset(each for each in FAULTS if each in always),
        journal="memory" if options.journal == "memory" else "sqlite",
        sessions=options.sessions,
        messages=tuple(options.say),
        uses_own_models=options.own_models,
    )


def _kinds(option: str, text: str) -> list[str]:
    """Return the kinds of faults in the text of an option, which separates them by commas."""
    names = [each.strip() for each in text.split(",") if each.strip()]
    if unknown := [each for each in names if each not in FAULTS]:
        more = "`all`, `none`, or " if option == "--faults" else ""
        raise ConfigurationError(
            f"{option} has an unknown kind {unknown[0]!r}: use {more}some of {', '.join(FAULTS)}"
        )
    return names


def _run_all(options: SimulateOptions, settings: Settings, terminal: Terminal, started_at: float) -> Totals:
    """Run all seeds and return the totals, while a line shows the progress. Ctrl-C ends the run; finished seeds are reported."""
    totals, shown = Totals(), started_at
    until = started_at + (float("inf") if options.duration is None else _seconds(options.duration))
    jobs = options.jobs or os.cpu_count() or 1
    seeds = range(options.start, options.start + options.seeds)
    with suppress(KeyboardInterrupt):
        for result in run_seeds(
            seeds, settings, jobs=min(jobs, len(seeds)), twice=options.twice, until=until
        ):
            totals.add(result)
            if time.monotonic() - shown > PROGRESS_SECONDS and terminal.is_live:
                shown = time.monotonic()
                terminal.notice(
                    f"{totals.seeds:,} of {len(seeds):,} seeds, {counted(len(totals.failed), 'failure')}"
                )
    return totals


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise ConfigurationError(f"--for must be a duration such as 30s, 10m or 2h, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def _show_totals(totals: Totals, seconds: float, terminal: Terminal) -> None:
    hours = totals.seconds / 3600
    terminal.line(
        f"{counted(totals.seeds, 'seed')}, {counted(totals.kills, 'death')}, {hours:,.1f} h simulated in {seconds:.1f} s, "
        f"{counted(len(totals.failed), 'failure')}"
    )


def _one_of_each_kind(failed: Sequence[SeedResult]) -> list[SeedResult]:
    kinds = dict[str, SeedResult]()
    for result in sorted(failed, key=lambda each: each.seed):
        kinds.setdefault(re.sub(r"[0-9a-f]{6,}|\d+", "#", result.problems[0])[:80], result)
    return list(kinds.values())


def _show_failure(
    result: SeedResult, totals: Totals, settings: Settings, options: SimulateOptions, terminal: Terminal
) -> "_Shrunk | None":
    """Shrink a failing seed to a short event sequence, print it, and save it. Return None if the seed does not fail again."""
    outcome = play(result.seed, settings)
    if not outcome.problems:
        terminal.line()
        terminal.line(f"seed {result.seed}  {result.problems[0].splitlines()[0]}")
        terminal.line("  not shrunk: the seed did not fail again")
        totals.note_unrepeatable(result.seed)
        return None
    best, left_out = shrink(outcome, settings)
    target = f"{options.program} --seed {result.seed}:{result.digest[:4]}"
    terminal.line()
    terminal.line(f"seed {result.seed}  {outcome.problems[0].splitlines()[0]}")
    terminal.line(f"  reproduce: actgent simulate {target}{_other_options(options)}")
    terminal.line(f"  shrunk from {len(outcome.happened)} choices to {len(best.happened)}")
    for line in render_story(best.story.events):
        terminal.line(f"  {line}")
    if best.happened:
        terminal.line(f"  necessary: {', '.join(name for name, _ in best.happened)}")
    path = Path(options.save, f"{result.seed}.seed")
    write_seed(path, best, left_out, settings)
    terminal.line(f"  saved as {path}")
    return _Shrunk(result, best, left_out)


def _other_options(options: SimulateOptions) -> str:
    """Return the command-line options that change the run of a seed, for the printed command that repeats the run."""
    words = [f" --journal {options.journal}" if options.journal != "memory" else ""]
    words += [f" --faults {options.faults}" if options.faults != "all" else ""]
    words += [f" --always {options.always}" if options.always else ""]
    words += [f" --sessions {options.sessions}" if options.sessions != MAX_SESSIONS else ""]
    words += [f" --say {json.dumps(each, ensure_ascii=False)}" for each in options.say]
    words += [" --own-models" if options.own_models else ""]
    return "".join(words)


def _show_rest(totals: Totals, shown: int, terminal: Terminal) -> None:
    if len(totals.failed) > shown > 0:
        others = ", ".join(str(each.seed) for each in totals.failed[:MAX_LISTED])
        terminal.line()
        terminal.line(f"all failing seeds: {others}{' ...' if len(totals.failed) > MAX_LISTED else ''}")
    if totals.unrepeatable:
        some = ", ".join(map(str, totals.unrepeatable[:10]))
        terminal.line(
            f"not repeatable: {some}. The program uses something that no seed decides, such as the network or `id()` of an object."
        )
    if totals.seeds and totals.never_seen:
        terminal.line(f"never seen in {counted(totals.seeds, 'seed')}: {', '.join(totals.never_seen)}")


def _replay(text: str, settings: Settings, terminal: Terminal) -> int:
    """Run the seed `SEED` or `SEED:DIGEST`, and print all its events. Return 1 if the run fails, else 0.

    A run with a different digest than `DIGEST` is only reported.
    """
    number, _, digest = text.partition(":")
    if not number.isdecimal():
        raise ConfigurationError(f"--seed must be SEED or SEED:DIGEST, not {text!r}")
    outcome = play(int(number), settings)
    terminal.line(f"seed {number}:{outcome.digest[:4]}, {counted(outcome.story.kills, 'death')}")
    for line in render_story(outcome.story.events, max_lines=1_000):
        terminal.line(line)
    if digest and not outcome.digest.startswith(digest):
        terminal.line(
            f"this run differs from the one that was reported as {text}: the program, its options or actgent changed"
        )
    for problem in outcome.problems:
        terminal.report_error(problem)
    return 1 if outcome.problems else 0


# --- reports -------------------------------------------------------------------------------------


@attrs.frozen
class _Shrunk:
    """A failing seed with the shortest event sequence that still fails."""

    result: SeedResult
    best: SeedOutcome
    left_out: list[EventKey]


def _write_reports(totals: Totals, stories: Sequence[_Shrunk], options: SimulateOptions) -> None:
    if options.json is not None:
        report = {
            "program": options.program,
            "seeds": totals.seeds,
            "deaths": totals.kills,
            "simulated_seconds": totals.seconds,
            "never_seen": totals.never_seen,
            "not_repeatable": totals.unrepeatable,
            "failures": list(_failures(totals, stories)),
        }
        _write(options.json, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    if options.junit is not None:
        suite = ET.Element(
            "testsuite",
            name=f"actgent simulate {options.program}",
            tests=str(totals.seeds),
            failures=str(len(totals.failed)),
        )
        for failure in _failures(totals, stories):
            case = ET.SubElement(suite, "testcase", name=f"seed {failure['seed']}", classname=options.program)
            problem = ET.SubElement(case, "failure", message=failure["problems"][0])
            problem.text = "\n".join(failure["story"])
        _write(options.junit, ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")


def _failures(totals: Totals, stories: Sequence[_Shrunk]) -> Iterator[dict[str, list[str]]]:
    shrunk = {each.result.seed: each for each in stories}
    for result in totals.failed:
        story = shrunk.get(result.seed)
        yield {
            "seed": result.seed,  # type: ignore[dict-item] # JSON
            "digest": result.digest,  # type: ignore[dict-item] # JSON
            "problems": list(result.problems),
            "story": [] if story is None else render_story(story.best.story.events),
        }


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
