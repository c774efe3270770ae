"""Predefined checks, and the conversion of a check's return value to a `CheckResult`."""

import inspect
import re
from collections.abc import Callable
from typing import Any

from actgent.errors.text_escaping import counted
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.result_text import describe

from .cases_and_results import Case, Check, CheckResult, Trial

PASSING_SCORE = 0.5
"""Score from which a check that returns a number passes."""


def contains(*texts: str, case_sensitive: bool = False) -> Check:
    """Make a check that all texts occur in the answer. Differences in white space are ignored.

    Args:
        texts: Texts to find; without texts, the case's `expected`.
        case_sensitive: True if upper and lower case must be equal.
    """

    def check(trial: Trial) -> CheckResult:
        wanted = texts or (str(trial.case.expected),)
        fold: Callable[[str], str] = _normalize_spaces if case_sensitive else _fold_case
        missing = [text for text in wanted if fold(text) not in fold(trial.text)]
        score = 1 - len(missing) / len(wanted)
        return CheckResult(
            "contains", score, not missing, f"missing: {', '.join(missing)}" if missing else ""
        )

    return check


def _normalize_spaces(text: str) -> str:
    return " ".join(text.split())


def _fold_case(text: str) -> str:
    return _normalize_spaces(text).casefold()


def equals(value: Any = None) -> Check:
    """Make a check that the answer's data equals a value. If the value is a text, the answer's text is compared.

    Args:
        value: Expected value; None uses the case's `expected`.
    """

    def check(trial: Trial) -> CheckResult:
        wanted = trial.case.expected if value is None else value
        got = trial.text.strip() if isinstance(wanted, str) else trial.data
        same = got == wanted
        return CheckResult(
            "equals", float(same), same, "" if same else f"{got!r:.200} is not {wanted!r:.200}"
        )

    return check


def matches(pattern: str, flags: int = 0) -> Check:
    """Make a check that a regular expression matches a part of the answer.

    `flags` are those of the module `re`.
    """
    compiled = re.compile(pattern, flags)

    def check(trial: Trial) -> CheckResult:
        found = compiled.search(trial.text) is not None
        return CheckResult("matches", float(found), found, "" if found else f"no match of {pattern}")

    return check


def calls(tool: str, **arguments: Any) -> Check:
    """Make a check that the tool was called at least once with these values among its arguments."""

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
    """Check that the agent called no tool in the run."""
    names = ", ".join(call.name for call in trial.calls)
    return CheckResult("calls no tool", float(not names), not names, f"called: {names}" if names else "")


def checks_of(case: Case) -> tuple[Check, ...]:
    """Return the checks to run for a case.

    Without checks and without a judge, `expected` is checked. For a simulated user, `goal_reached` is added.
    """
    own = () if case.user is None else (goal_reached,)
    if case.checks or case.judge or (own and case.expected is None):
        return (*case.checks, *own)
    return (contains() if isinstance(case.expected, str) else equals(), *own)


_STOPS = {"gave_up": "gave up", "transferred": "was transferred", "out_of_scope": "was asked out of scope"}


def goal_reached(trial: Trial) -> CheckResult:
    """Check that the simulated user stated that its goal is reached."""
    simulation = trial.simulation
    if simulation is not None and simulation.achieved:
        return CheckResult("goal reached", 1.0, True)  # noqa: FBT003 - a field
    turns = 0 if simulation is None else simulation.turns
    why = "had not reached it" if simulation is None else _STOPS.get(simulation.stop, "had not reached it")
    return CheckResult("goal reached", 0.0, False, f"the user {why} after {counted(turns, 'message')}")  # noqa: FBT003


async def result_of(check: Check, trial: Trial) -> CheckResult:
    """Run a check and return its result. An exception of the check is a failed result."""
    name = getattr(check, "__name__", type(check).__name__)
    try:
        found = check(trial)
        value = await found if inspect.isawaitable(found) else found
    except AssertionError as error:
        return CheckResult(name, 0.0, False, str(error) or "an assertion failed")  # noqa: FBT003 - a field
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - checks are user code; pytest.fail() raises a BaseException
        failure = convert_user_error(raised, "check", name)
        return CheckResult(name, 0.0, False, f"the check raised {describe(failure)}")  # noqa: ASYNC104, FBT003 - convert_user_error has re-raised cancellations
    return _result(name, value)


def _result(name: str, value: object) -> CheckResult:
    match value:
        case CheckResult():
            return value
        case None:
            return CheckResult(name, 1.0, True)  # noqa: FBT003 - a field
        case bool():
            return CheckResult(name, float(value), value, "" if value else "the check returned False")
        case int() | float():
            score = min(max(float(value), 0.0), 1.0)
            return CheckResult(name, score, score >= PASSING_SCORE)
        case str():
            return CheckResult(name, 0.0 if value else 1.0, not value, value)
    reason = f"the check returned {value!r:.80}: expected a bool, number, str, CheckResult or None"
    return CheckResult(name, 0.0, False, reason)  # noqa: FBT003 - a field
