"""Runs of many seeds in several processes, and files of failing seeds."""

import json
import math
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from actgent.errors import ConfigurationError

from .fault_and_workload_plan import FAULTS, Settings
from .seeded_choices import EventKey
from .single_seed_run import SeedOutcome, play

EXPECTED_KINDS = (
    "kill",
    "restart",
    "tool fault",
    "journal",
    "approval",
    "interrupt",
    "close",
    "erase",
    "schedule",
    "fork",
    "stop",
    "failure",
    "reply",
    "result",
)
"""Kinds of events that a report lists as never seen if no seed had them."""
SEEDS_PER_JOB = 2
"""Number of seeds that each process has at a time: one that runs, and the next one."""
SEED_VERSION = 1


@attrs.frozen(kw_only=True)
class SeedResult:
    """Summary of the run of one seed, small enough to send between processes."""

    seed: int
    problems: tuple[str, ...]
    digest: str
    seconds: float
    """Simulated duration of the run in seconds."""
    kills: int
    counts: dict[str, int]
    """Number of events by kind."""
    is_repeatable: bool = True
    """False if a second run of the seed had other events than the first one."""


@attrs.define(kw_only=True)
class Totals:
    """Sums over all seeds that were run."""

    seeds: int = 0
    kills: int = 0
    seconds: float = 0.0
    """Simulated duration of all runs in seconds."""
    counts: Counter[str] = attrs.field(factory=Counter)
    failed: list[SeedResult] = attrs.field(factory=list)
    """Results of the seeds whose run broke a rule."""
    unrepeatable: list[int] = attrs.field(factory=list)
    """Seeds whose second run had other events than the first one."""

    def add(self, result: SeedResult) -> None:
        """Add the result of one seed to these totals."""
        self.seeds += 1
        self.kills += result.kills
        self.seconds += result.seconds
        self.counts.update(result.counts)
        if result.problems:
            self.failed.append(result)
        if not result.is_repeatable:
            self.note_unrepeatable(result.seed)

    def note_unrepeatable(self, seed: int) -> None:
        """Record that two runs of a seed had different events."""
        if seed not in self.unrepeatable:
            self.unrepeatable.append(seed)

    @property
    def never_seen(self) -> list[str]:
        """Kinds of events that no seed had, although each kind should occur.

        A fault that never happens is not tested.
        """
        return [kind for kind in EXPECTED_KINDS if not self.counts[kind]]


def run_seed(seed: int, settings: Settings, *, twice: bool = False) -> SeedResult:
    """Run the simulation of one seed, and return a summary.

    If `twice` is True, run it again, and compare the digests to find nondeterminism.
    """
    outcome = play(seed, settings)
    is_repeatable = not twice or play(seed, settings).digest == outcome.digest
    return SeedResult(
        seed=seed,
        problems=tuple(outcome.problems),
        digest=outcome.digest,
        seconds=outcome.story.seconds,
        kills=outcome.story.kills,
        counts=dict(outcome.counts),
        is_repeatable=is_repeatable,
    )


def run_seeds(
    seeds: Iterable[int],
    settings: Settings,
    *,
    jobs: int = 1,
    twice: bool = False,
    until: float = float("inf"),
) -> Iterator[SeedResult]:
    """Run seeds in `jobs` processes. Yield each result when its seed has finished.

    Args:
        seeds: The seeds.
        settings: Program and kinds of faults.
        jobs: Number of processes that run seeds.
        twice: True runs each seed twice and compares the runs.
        until: Value of `time.monotonic()` after which no other seed begins.

    Raises:
        ConfigurationError: One of the processes ended.
    """
    if jobs == 1:
        for seed in seeds:
            if time.monotonic() > until:
                return
            yield run_seed(seed, settings, twice=twice)
        return
    # A forked process would inherit locks and threads of this one. Ctrl-C ends only this process, which ends the others.
    context, ignore = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=signal.signal, initargs=ignore) as pool:
        try:
            submit = partial(pool.submit, partial(run_seed, settings=settings, twice=twice))
            yield from _run_in_pool(submit, iter(seeds), jobs * SEEDS_PER_JOB, until)
        except BrokenProcessPool:
            raise ConfigurationError(
                "a process of the simulation ended before its seed was complete: run with --jobs 1 to see the reason"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run_in_pool(
    submit: Callable[[int], Future[SeedResult]], seeds: Iterator[int], capacity: int, until: float
) -> Iterator[SeedResult]:
    """Run seeds in a pool of processes, at most `capacity` at a time. Yield each result when its seed has finished.

    `submit` passes a seed to the pool.
    """
    running = set[Future[SeedResult]]()
    while True:
        while len(running) < capacity and time.monotonic() <= until:
            seed = next(seeds, None)
            if seed is None:
                break
            running.add(submit(seed))
        if not running:
            return
        left = until - time.monotonic()
        if left <= 0:  # only the seeds that run now are completed
            running = {each for each in running if not each.cancel()}
        timeout = left if 0 < left < math.inf else None
        done, running = wait(running, timeout=timeout, return_when=FIRST_COMPLETED)
        for each in done:
            yield each.result()


# --- files of seeds ----------------------------------------------------------------------------------


def write_seed(path: Path, outcome: SeedOutcome, left_out: Sequence[EventKey], settings: Settings) -> None:
    """Write a shrunk seed to a file, which `read_seed` reads and the pytest plugin runs.

    The path of the program in the file is relative to the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "version": SEED_VERSION,
        "program": os.path.relpath(settings.program, path.parent),
        "seed": outcome.seed,
        "left_out": [list(event) for event in left_out],
        "faults": sorted(settings.faults),
        "always": sorted(settings.always),
        "journal": settings.journal,
        "sessions": settings.sessions,
        "messages": list(settings.messages),
        "uses_own_models": settings.uses_own_models,
        "problems": outcome.problems,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_seed(path: Path) -> tuple[int, Settings, list[EventKey]]:
    """Read a file that `write_seed` has written. Return the seed, the settings, and the events that the run omits.

    Raises:
        ConfigurationError: The file is not a seed file, or was written by another version.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != SEED_VERSION:
            raise ConfigurationError(
                f"{path} has version {content['version']}, expected {SEED_VERSION}: simulate its program again"
            )
        settings = Settings(
            program=(path.parent / content["program"]).resolve(),
            faults=frozenset(each for each in FAULTS if each in content["faults"]),
            always=frozenset(each for each in FAULTS if each in content.get("always", ())),
            journal=content["journal"],
            sessions=content["sessions"],
            messages=tuple(content["messages"]),
            uses_own_models=content["uses_own_models"],
        )
        return (
            int(content["seed"]),
            settings,
            [(str(name), int(number)) for name, number in content["left_out"]],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} is not a seed file: {type(error).__name__}: {error}") from error
