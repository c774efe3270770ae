"""Evaluation cases, their runs, and the results of their checks."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.information_flow_labels import TRUSTED, Label
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import NO_USAGE, Message, ToolCall, Usage

from .simulated_user import SimulatedUser, Simulation


@attrs.frozen
class CheckResult:
    """Result of one check of an answer."""

    name: str
    """Name of the check in reports."""
    score: float
    """Score of the answer from 0 to 1."""
    passed: bool
    """True if the answer passed the check."""
    reason: str = ""
    """Reason of the result as text; empty without a reason."""


@attrs.frozen(kw_only=True)
class Trial:
    """One run of an evaluation case with one variant."""

    case: "Case"
    """The case that was run."""
    variant: str
    """Name of the variant (agent, model or prompt) that was run."""
    run: int
    """Number of the run of this case and variant, from 1."""
    text: str = ""
    """Text of the agent's last answer; empty without an answer."""
    data: Any = None
    """Structured data of the agent's last answer; None if the answer has none."""
    error: str = ""
    """Text of the error that prevented an answer; empty if there is an answer."""
    history: tuple[Message, ...] = attrs.field(default=(), repr=False)
    """All messages of the run's session, oldest first."""
    usage: Usage = NO_USAGE
    """Token usage and cost of the run's session."""
    seconds: float = 0.0
    """Time in seconds from the first input to the last answer."""
    results: tuple[CheckResult, ...] = ()
    """Results of the case's checks in their order, then of the judge."""
    judge_usage: Usage = NO_USAGE
    """Token usage and cost of the judge model for this run."""
    simulation: Simulation | None = None
    """Result of the conversation with the simulated user; None if the case has no user."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Tool calls that the agent made in the run, oldest first."""
        return tuple(call for message in self.history for call in message.tool_calls)

    @property
    def passed(self) -> bool:
        """True if there is an answer, and all checks passed."""
        return not self.error and all(result.passed for result in self.results)

    @property
    def score(self) -> float:
        """Mean score of the checks; 0 without an answer."""
        if self.error:
            return 0.0
        return sum(result.score for result in self.results) / len(self.results) if self.results else 1.0


CheckReturn = bool | float | str | CheckResult | None
"""Return value of a check: a boolean, a score from 0 to 1 (0.5 passes), a `CheckResult`, or an error text. None passes."""
Check = Callable[[Trial], CheckReturn | Awaitable[CheckReturn]]
"""Function, sync or async, that checks a run. An AssertionError is a failed check."""


def _inputs(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _checks(value: Iterable[Check]) -> tuple[Check, ...]:
    return tuple(value)


def _tags(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


def _goal(user: "SimulatedUser | Callable[[Any], SimulatedUser] | None") -> str:
    return user.goal if isinstance(user, SimulatedUser) else getattr(user, "__name__", "a user")


@attrs.frozen(kw_only=True)
class Case:
    """Messages to send to an agent, and checks of its last answer.

    Without checks and without a judge, a text in `expected` must occur in the answer, ignoring case; another value must
    equal the answer's data.

    Raises:
        ConfigurationError: The case has no input and no user, or nothing to check.
    """

    input: tuple[str, ...] = attrs.field(default=(), converter=_inputs)
    """Messages that are sent one after the other in one session; the last answer is checked."""
    user: "SimulatedUser | Callable[[Any], SimulatedUser] | None" = None
    """Simulated user that continues the conversation after `input`. The case passes only if the user reaches the goal.

    A function receives the agent of the run and returns a user for each run, e.g. with tools that share state with the
    agent's tools.
    """
    name: str = ""
    """Name of the case in reports; empty uses the beginning of the input."""
    expected: Any = None
    """Expected answer, for checks and for the judge; None if any answer may pass."""
    checks: tuple[Check, ...] = attrs.field(default=(), converter=_checks)
    """Checks of the last answer."""
    judge: str = ""
    """Criteria for the judge model; empty if no judge is used."""
    limits: Limits | None = None
    """Limits of each run of the case; None sets no limits."""
    timeout: float | None = None
    """Time limit in seconds for each answer; None sets no limit."""
    tags: tuple[str, ...] = attrs.field(default=(), converter=_tags)
    """Tags that select cases on the command line."""
    label: Label = TRUSTED
    """Label of the messages in `input`. A policy checks the calls of the agent as in a session with these sources."""

    def __attrs_post_init__(self) -> None:
        if not (self.input or self.user) or not all(map(str.strip, self.input)):
            raise ConfigurationError(
                f"case {self.title!r} must have an input: set input= (a string, or several) or user="
            )
        if not self.checks and not self.judge and self.expected is None and self.user is None:
            raise ConfigurationError(
                f"case {self.title!r} must check something: set expected=, checks= or judge="
            )

    @property
    def title(self) -> str:
        """Name of the case, or the beginning of its input."""
        if self.name or not (self.input or self.user):
            return self.name
        words = " ".join((str(self.input[0]) if self.input else _goal(self.user)).split())
        return words if len(words) <= 60 else f"{words[:57]}..."  # noqa: PLR2004 - fits a line
