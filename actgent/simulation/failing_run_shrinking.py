"""Shrinking of a failing seed: leave out optional events until each remaining one is necessary.

This is delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002) on the list of
optional events: messages, tool calls, faults and kills.
"""

import re
from collections.abc import Callable

from .fault_and_workload_plan import Settings
from .seeded_choices import EventKey
from .single_seed_run import SeedOutcome, play

MAX_PLAYS = 300
"""Maximum number of runs for one seed."""


def shrink(
    failed: SeedOutcome, settings: Settings, on_play: Callable[[int], object] = lambda _: None
) -> tuple[SeedOutcome, list[EventKey]]:
    """Search for the smallest run that fails in the same way as a seed. Return its outcome and the events that it omits.

    Args:
        failed: Outcome of the failed seed with all events.
        settings: Settings of the failed run.
        on_play: Function that is called with the number of runs so far, to show progress.
    """
    wanted, best, left_out, plays = problem_kinds(failed), failed, list[EventKey](), 0
    size = max(1, len(best.happened) // 2)
    while plays < MAX_PLAYS:
        has_shrunk = False
        position = 0
        while position < len(best.happened) and plays < MAX_PLAYS:
            removed = best.happened[position : position + size]
            plays += 1
            on_play(plays)
            outcome = play(failed.seed, settings, [*left_out, *removed])
            if problem_kinds(outcome) & wanted:
                left_out += removed
                best, has_shrunk = outcome, True
            else:
                position += size
        if size == 1 and not has_shrunk:
            break
        size = max(1, size // 2)
    return best, left_out


def problem_kinds(outcome: SeedOutcome) -> set[str]:
    """Return the problems of a run with numbers and ids replaced, so that problems of two runs can be compared."""
    return {re.sub(r"[0-9a-f]{6,}|\d+", "#", each.split("\n", 1)[0])[:80] for each in outcome.problems}
