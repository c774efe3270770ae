"""How much a turn or a session may take, and how long."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.support.leads import for_limits

WEEK = 604_800.0


@attrs.frozen
class _Count:
    """A whole number."""

    least: int

    def __call__(self, _: object, field: "attrs.Attribute[Any]", value: object) -> None:
        if type(value) is not int or value < self.least:
            raise ConfigurationError(
                f"Limits({field.name}=...) is a whole number, at least {self.least}, not {value!r}"
            )

    @property
    def form(self) -> Mapping[str, Any]:
        """The same as a JSON Schema."""
        return {"type": "integer", "minimum": self.least}


@attrs.frozen
class _Amount:
    """A number of something, above zero."""

    unit: str

    def __call__(self, _: object, field: "attrs.Attribute[Any]", value: object) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= math.inf:  # type: ignore[operator]
            raise ConfigurationError(
                f"Limits({field.name}=...) is a number of {self.unit} above 0, not {value!r}"
            )

    @property
    def form(self) -> Mapping[str, Any]:
        """The same as a JSON Schema."""
        return {"type": "number", "exclusiveMinimum": 0}


def _bound(default: object, check: _Count | _Amount, *, shared: str = "") -> Any:
    """One field of `Limits`: all that others know of it; `shared` is how a command line says it of one that is shared."""
    validator = attrs.validators.optional(check) if default is None else check
    return attrs.field(default=default, validator=validator, metadata={"form": check.form, "shared": shared})


@for_limits
@attrs.frozen(kw_only=True, slots=False)  # with slots, its cached properties would slow every other access
class Limits:
    """The bounds of a turn, or of a whole session (`create_session(limits=...)`).

    The first five are shared: what a turn lets other agents do is paid from its own, too, and what a session's
    children do from the session's. Of a session's limits only these five count. Reaching one of the first five, a limit of
    the tree or `identical_calls` ends the turn as a `Failure(kind="limit")`; an ask below `depth` is refused.

    Raises:
        ConfigurationError: a bound makes no sense; the text names it.
    """

    model_calls: int | None = _bound(
        None,
        _Count(1),
        shared="Model calls that the whole conversation may take, with all that it leads to; no limit without it.",
    )
    """Model calls. If the protocol has a limit as well (`max_iterations`), the smaller one counts.

    None: the limit of the protocol or, without one, 25; such a limit bounds this turn alone and is not shared."""
    tool_calls: int | None = _bound(None, _Count(1), shared="Tool calls that it may take.")
    """Tool calls; those of one answer run all or none. None is no limit: `model_calls` bounds the rounds."""
    tokens: int | None = _bound(
        None, _Count(1), shared="Tokens, of prompts and answers together, that it may take."
    )
    """Tokens of prompts and answers together, cached ones included."""
    cost: float | None = _bound(
        None, _Amount("US dollars"), shared="US dollars that it may take; the model's price has to be known."
    )
    """US dollars for model calls, by the tables of genai-prices or the client's `price=`."""
    seconds: float | None = _bound(
        None,
        _Amount("seconds"),
        shared="Seconds of work that it may take, without those in which it waits for you.",
    )
    """Seconds of work, waits for models, tools and other agents included; not time in which it is suspended."""
    tree_model_calls: int = _bound(250, _Count(1))
    """Model calls of the turn and of all that it leads to: asks, agents as tools, delegated tasks, what their
    results lead to, and turns that it schedules within a minute."""
    tree_tool_calls: int = _bound(1000, _Count(1))
    """Tool calls of the same."""
    depth: int = _bound(8, _Count(1))
    """How many agents may ask each other, one below the other."""
    identical_calls: int = _bound(3, _Count(1))
    """How often in a row the same tool may be called with the same arguments, or a cycle of two to eight calls
    may go round that brings the same results (at least twice). A call that ends the process counts, too: one whose
    outcome stays unknown is not made for ever."""
    answer_calls: int = _bound(64, _Count(1))
    """How many tools one answer may call; of more none runs, and the model is told."""
    argument_bytes: int = _bound(1_000_000, _Count(1))
    """How large the arguments of one answer's calls may be together, as JSON; of larger ones none runs, and the model is told."""
    repairs: int = _bound(2, _Count(0))
    """How often in a row the model is asked again after an answer that cannot be used."""
    model_timeout: float = _bound(120.0, _Amount("seconds"))
    """Seconds a model call may take, with its retries and what it waits for the provider's limits."""
    tool_timeout: float = _bound(60.0, _Amount("seconds"))
    """Seconds a tool call may take, for tools that say nothing themselves."""
    approval_timeout: float = _bound(WEEK, _Amount("seconds"))
    """Seconds a person has to decide over a tool call, where the question says nothing itself; then it is rejected."""
    result_characters: int = _bound(60_000, _Count(1))
    """The longest tool result that the model is shown; of longer ones it gets the beginning, and `read_result` for the rest."""
    kept_characters: int = _bound(4_000_000, _Count(0))
    """What a session keeps of longer results, in its whole life; 0: nothing, and its model is not offered `read_result`."""

    @cached_property
    def is_shared(self) -> bool:
        """True if one of the shared bounds is set."""
        return bool(self.shared)

    @cached_property
    def bounds_of_turns(self) -> Mapping[str, float]:
        """The bounds that differ from their defaults and hold for turns only, by name."""
        return {
            field.name: value
            for field in attrs.fields(Limits)
            if field.name not in SHARED and (value := getattr(self, field.name)) != field.default
        }

    @cached_property
    def shared(self) -> Mapping[str, float]:
        """The bounds that are set and shared, by name."""
        return {name: bound for name in SHARED if (bound := getattr(self, name)) is not None}


FORMS: Mapping[str, Mapping[str, Any]] = {
    field.name: field.metadata["form"] for field in attrs.fields(Limits)
}
"""The JSON Schema of each bound, for files."""
OPTIONS: Mapping[str, str] = {
    field.name: field.metadata["shared"] for field in attrs.fields(Limits) if field.metadata["shared"]
}
"""What each shared bound is, for command lines."""
SHARED = tuple(OPTIONS)
DEFAULT_MODEL_CALLS = 25
DEFAULT_LIMITS = Limits()
