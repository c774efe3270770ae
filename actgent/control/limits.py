"""How much a turn or a session may take, and how long."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import attrs

from actgent.errors import ConfigurationError

WEEK = 604_800.0
_Validator = Callable[[object, "attrs.Attribute[Any]", object], None]


def _count(least: int) -> _Validator:
    def check(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
        if type(value) is not int or value < least:
            raise ConfigurationError(
                f"Limits({field.name}=...) is a whole number, at least {least}, not {value!r}"
            )

    return check


def _above_zero(unit: str) -> _Validator:
    def check(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= math.inf:  # type: ignore[operator]
            raise ConfigurationError(f"Limits({field.name}=...) is a number of {unit} above 0, not {value!r}")

    return check


_optional = attrs.validators.optional
_seconds = _above_zero("seconds")


@attrs.frozen(kw_only=True)
class Limits:
    """The bounds of a turn, or of a whole session (`create_session(limits=...)`).

    The first five are shared: what a turn lets other agents do is paid from its own, too, and what a session's
    children do from the session's. Of a session's limits only these five count. Reaching one of the first five, a limit of
    the tree or `identical_calls` ends the turn as a `Failure(kind="limit")`; an ask below `depth` is refused.

    Raises:
        ConfigurationError: a bound makes no sense; the text names it.
    """

    model_calls: int | None = attrs.field(default=None, validator=_optional(_count(1)))
    """Model calls; None is the protocol's own limit, or else 25, of this turn alone and not shared."""
    tool_calls: int | None = attrs.field(default=None, validator=_optional(_count(1)))
    """Tool calls; those of one answer run all or none. None is no limit: `model_calls` bounds the rounds."""
    tokens: int | None = attrs.field(default=None, validator=_optional(_count(1)))
    """Tokens of prompts and answers together, cached ones included."""
    cost: float | None = attrs.field(default=None, validator=_optional(_above_zero("US dollars")))
    """US dollars for model calls, by the tables of genai-prices or the client's `price=`."""
    seconds: float | None = attrs.field(default=None, validator=_optional(_seconds))
    """Seconds of work, waits for models, tools and other agents included; not time in which it is suspended."""
    tree_model_calls: int = attrs.field(default=250, validator=_count(1))
    """Model calls of the turn and of all that it leads to: asks, agents as tools, delegated tasks and what their results lead to."""
    tree_tool_calls: int = attrs.field(default=1000, validator=_count(1))
    """Tool calls of the same."""
    depth: int = attrs.field(default=8, validator=_count(1))
    """How many agents may ask each other, one below the other."""
    identical_calls: int = attrs.field(default=3, validator=_count(1))
    """How often in a row the same tool may be called with the same arguments, or a cycle of two or three calls
    may go round that brings the same results (at least twice)."""
    answer_calls: int = attrs.field(default=64, validator=_count(1))
    """How many tools one answer may call; of more none runs, and the model is told."""
    argument_bytes: int = attrs.field(default=1_000_000, validator=_count(1))
    """How large the arguments of one answer's calls may be together, as JSON; of larger ones none runs, and the model is told."""
    repairs: int = attrs.field(default=2, validator=_count(0))
    """How often in a row the model is asked again after an answer that cannot be used."""
    model_timeout: float = attrs.field(default=120.0, validator=_seconds)
    """Seconds a model call may take, with its retries and what it waits for the provider's limits."""
    tool_timeout: float = attrs.field(default=60.0, validator=_seconds)
    """Seconds a tool call may take, for tools that say nothing themselves."""
    approval_timeout: float = attrs.field(default=WEEK, validator=_seconds)
    """Seconds a person has to decide over a tool call, where the question says nothing itself; then it is rejected."""
    result_characters: int = attrs.field(default=60_000, validator=_count(1))
    """The longest tool result that the model is shown; longer ones are cut, with a notice."""

    @cached_property
    def is_shared(self) -> bool:
        """True if one of the shared bounds is set."""
        return bool(self.shared)

    @cached_property
    def shared(self) -> Mapping[str, float]:
        """The bounds that are set and shared, by name."""
        return {name: bound for name in SHARED if (bound := getattr(self, name)) is not None}


SHARED = ("model_calls", "tool_calls", "tokens", "cost", "seconds")
DEFAULT_MODEL_CALLS = 25
DEFAULT_LIMITS = Limits()
