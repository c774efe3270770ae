"""Ready checks, and what any check's result means."""

import inspect
import re
from collections.abc import Callable
from typing import Any

from actgent.errors.printable import counted
from actgent.support.foreign import failure_of
from actgent.tools.outputs.results import describe

from .cases import Case, Check, CheckResult, Trial

ENOUGH = 0.5
"""The score from which a check passes that gives a number."""


def contains(*texts: str, case_sensitive: bool = False) -> Check:
    """All of these texts stand in the answer; without any, the case's `expected`."""

    def check(trial: Trial) -> CheckResult:
        wanted = texts or (str(trial.case.expected),)
        fold: Callable[[str], str] = _spaced if case_sensitive else _folded
        missing = [text for text in wanted if fold(text) not in fold(trial.text)]
        score = 1 - len(missing) / len(wanted)
        return CheckResult(
            "contains", score, not missing, f"missing: {', '.join(missing)}" if missing else ""
        )

    return check


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _folded(text: str) -> str:
    return _spaced(text).casefold()


def equals(value: Any = None) -> Check:
    """The answer's data is this value, or its text this text; without one, the case's `expected`."""

    def check(trial: Trial) -> CheckResult:
        wanted = trial.case.expected if value is None else value
        got = trial.text.strip() if isinstance(wanted, str) else trial.data
        same = got == wanted
        return CheckResult(
            "equals", float(same), same, "" if same else f"{got!r:.200} is not {wanted!r:.200}"
        )

    return check


def matches(pattern: str, flags: int = 0) -> Check:
    """A regular expression is found in the answer."""
    compiled = re.compile(pattern, flags)

    def check(trial: Trial) -> CheckResult:
        found = compiled.search(trial.text) is not None
        return CheckResult("matches", float(found), found, "" if found else f"nothing matches {pattern}")

    return check


def calls(tool: str, **arguments: Any) -> Check:
    """The tool was called, once at least with these arguments; further arguments may be anything."""

    def check(trial: Trial) -> CheckResult:
        made = [call.arguments for call in trial.calls if call.name == tool]
        found = any(
            (isinstance(given, dict) and arguments.items() <= given.items()) or not arguments
            for given in made
        )
        reason = f"{tool} was called with {made!r:.200}" if made else f"{tool} was not called"
        return CheckResult(f"calls {tool}", float(found), found, "" if found else reason)

    return check


def calls_no_tool(trial: Trial) -> CheckResult:
    """No tool was called."""
    names = ", ".join(call.name for call in trial.calls)
    return CheckResult("calls no tool", float(not names), not names, f"called: {names}" if names else "")


def checks_of(case: Case) -> tuple[Check, ...]:
    """Return the checks of a case, with what its `expected` means where it has none."""
    own = () if case.user is None else (goal_reached,)
    if case.checks or case.judge or (own and case.expected is None):
        return (*case.checks, *own)
    return (contains() if isinstance(case.expected, str) else equals(), *own)


_STOPS = {"gave_up": "gave up", "transferred": "was transferred", "out_of_scope": "was asked out of scope"}


def goal_reached(trial: Trial) -> CheckResult:
    """The case's user says that they have what they want."""
    told = trial.simulation
    if told is not None and told.achieved:
        return CheckResult("goal reached", 1.0, True)  # noqa: FBT003 - a field
    turns = 0 if told is None else told.turns
    why = "had not reached it" if told is None else _STOPS.get(told.stop, "had not reached it")
    return CheckResult("goal reached", 0.0, False, f"the user {why} after {counted(turns, 'message')}")  # noqa: FBT003


async def result_of(check: Check, trial: Trial) -> CheckResult:
    """Have a check look at a run; what it raises is why the run has not passed."""
    name = getattr(check, "__name__", type(check).__name__)
    try:
        found = check(trial)
        said = await found if inspect.isawaitable(found) else found
    except AssertionError as error:
        return CheckResult(name, 0.0, False, str(error) or "an assertion failed")  # noqa: FBT003 - a field
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code; pytest.fail() raises no Exception
        failure = failure_of(raised, "check", name)
        return CheckResult(name, 0.0, False, f"the check raised {describe(failure)}")  # noqa: ASYNC104, FBT003 - no cancellation
    return _result(name, said)


def _result(name: str, said: object) -> CheckResult:
    match said:
        case CheckResult():
            return said
        case None:
            return CheckResult(name, 1.0, True)  # noqa: FBT003 - a field
        case bool():
            return CheckResult(name, float(said), said, "" if said else "it is not so")
        case int() | float():
            score = min(max(float(said), 0.0), 1.0)
            return CheckResult(name, score, score >= ENOUGH)
        case str():
            return CheckResult(name, 0.0 if said else 1.0, not said, said)
    return CheckResult(name, 0.0, False, f"the check gave {said!r:.80}: no result of a check")  # noqa: FBT003
