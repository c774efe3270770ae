"""A case, a run of it, and what its checks say."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import attrs

from actgent.control.limits import Limits
from actgent.errors import ConfigurationError
from actgent.messages import NO_USAGE, Message, ToolCall, Usage

from .simulated import SimulatedUser, Simulation


@attrs.frozen
class CheckResult:
    """The result of one check."""

    name: str
    """What was checked."""
    score: float
    """From 0 to 1."""
    passed: bool
    """True if the answer is good enough."""
    reason: str = ""
    """Why not, in words; may be empty."""


@attrs.frozen(kw_only=True)
class Trial:
    """One run of a case."""

    case: "Case"
    """What was said and checked."""
    variant: str
    """Whose run it is: the name of an agent, a model or a prompt."""
    run: int
    """Its number, from 1."""
    text: str = ""
    """The last answer."""
    data: Any = None
    """Its structured part, where the agent has one."""
    error: str = ""
    """Why there is no answer; empty where there is one."""
    history: tuple[Message, ...] = attrs.field(default=(), repr=False)
    """All that was said in its session, oldest first."""
    usage: Usage = NO_USAGE
    """Of the whole session."""
    seconds: float = 0.0
    """From the first input to the last answer."""
    results: tuple[CheckResult, ...] = ()
    """Of the case's checks in their order, and of the judge."""
    judge_usage: Usage = NO_USAGE
    """Of the model that judged it."""
    simulation: Simulation | None = None
    """What the conversation with the case's user came to; None where it has none."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in their order."""
        return tuple(call for message in self.history for call in message.tool_calls)

    @property
    def passed(self) -> bool:
        """True if there is an answer, and all checks passed."""
        return not self.error and all(result.passed for result in self.results)

    @property
    def score(self) -> float:
        """The mean of the checks' scores; 0 without an answer."""
        if self.error:
            return 0.0
        return sum(result.score for result in self.results) / len(self.results) if self.results else 1.0


Found = bool | float | str | CheckResult | None
"""What a check says: true or false, a score from 0 to 1 (0.5 passes), a CheckResult, or what is wrong; None is a pass."""
Check = Callable[[Trial], Found | Awaitable[Found]]
"""Looks at a run, sync or async; an AssertionError is what is wrong, too."""


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
    """What is said to an agent, and what is checked of its answer.

    Without checks and without a judge, a text that is `expected` has to stand in the answer, in any case of letters, and
    another value has to be the answer's data.

    Raises:
        ConfigurationError: there is nothing to say, or nothing to check.
    """

    input: tuple[str, ...] = attrs.field(default=(), converter=_inputs)
    """What is said, one after the other in one session; the last answer is checked."""
    user: "SimulatedUser | Callable[[Any], SimulatedUser] | None" = None
    """Simulated user that continues the conversation after `messages`. The case passes only if the user reaches the goal.

    A function of the run's agent makes a user for each run, for example with tools that share a world with the agent's tools.
    """
    name: str = ""
    """For the report; the beginning of the input without it."""
    expected: Any = None
    """What the answer should be, for the checks and for the judge."""
    checks: tuple[Check, ...] = attrs.field(default=(), converter=_checks)
    """What is checked of the last answer."""
    judge: str = ""
    """What a judge model is asked: when is the answer good?"""
    limits: Limits | None = None
    """Of the run as a whole."""
    timeout: float | None = None
    """Seconds for each answer."""
    tags: tuple[str, ...] = attrs.field(default=(), converter=_tags)
    """For choosing cases."""

    def __attrs_post_init__(self) -> None:
        if not (self.input or self.user) or not all(map(str.strip, self.input)):
            raise ConfigurationError(
                f"the case {self.title!r} says nothing: give it input= (a text, or several)"
            )
        if not self.checks and not self.judge and self.expected is None and self.user is None:
            raise ConfigurationError(
                f"the case {self.title!r} checks nothing: give it expected=, checks= or judge="
            )

    @property
    def title(self) -> str:
        """The name, or the beginning of the input."""
        if self.name or not (self.input or self.user):
            return self.name
        words = " ".join((str(self.input[0]) if self.input else _goal(self.user)).split())
        return words if len(words) <= 60 else f"{words[:57]}..."  # noqa: PLR2004 - fits a line
