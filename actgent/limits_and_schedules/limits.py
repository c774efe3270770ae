"""`Limits`: bounds on the usage and duration of a turn or session."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import hints_for_limits

WEEK_SECONDS = 604_800.0


@attrs.frozen(repr=False)
class _Count(FieldRepr):
    """Validator of a limit that accepts a whole number of at least `least`."""

    least: int

    def __call__(self, _: object, field: "attrs.Attribute[Any]", value: object) -> None:
        if type(value) is not int or value < self.least:
            raise ConfigurationError(
                f"Limits({field.name}=...) must be a whole number of at least {self.least}, not {value!r}"
            )

    @property
    def form(self) -> Mapping[str, Any]:
        """JSON Schema of the accepted values."""
        return {"type": "integer", "minimum": self.least}


@attrs.frozen(repr=False)
class _Amount(FieldRepr):
    """Validator of a limit that accepts a number above zero, in `unit`."""

    unit: str

    def __call__(self, _: object, field: "attrs.Attribute[Any]", value: object) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= math.inf:  # type: ignore[operator]
            raise ConfigurationError(
                f"Limits({field.name}=...) must be a number of {self.unit} above 0, not {value!r}"
            )

    @property
    def form(self) -> Mapping[str, Any]:
        """JSON Schema of the accepted values."""
        return {"type": "number", "exclusiveMinimum": 0}


def _bound(default: object, check: _Count | _Amount, *, shared: str = "") -> Any:
    """Return a field of `Limits` with its default, validator and schema.

    `shared` is the help text for commands if sessions, runs and owners share the limit; empty for limits of
    turns.
    """
    validator = attrs.validators.optional(check) if default is None else check
    return attrs.field(default=default, validator=validator, metadata={"form": check.form, "shared": shared})


@hints_for_limits
@attrs.frozen(
    kw_only=True, slots=False, repr=False
)  # with slots, its cached properties would slow every other access
class Limits(FieldRepr):
    """Limits of a turn, or of a whole session (`create_session(limits=...)`).

    The first five limits are shared: work that other agents do for a turn also counts for the turn. The work of child sessions also
    counts for the parent session. A session accepts only these five limits. A turn that reaches one of the first five limits, a tree
    limit or `max_repeated_calls` ends with `Failure(kind="limit")`. A call of another agent is rejected if the chain of agents that
    wait for each other would be longer than `depth`.

    Raises:
        ConfigurationError: A value is out of range. The text names the limit.
    """

    model_calls: int | None = _bound(
        None,
        _Count(1),
        shared="Maximum number of model calls of the whole conversation, including child sessions. Default: no limit.",
    )
    """Maximum number of model calls. If the protocol also has a limit (`max_iterations`), the smaller one applies.

    None uses the limit of the protocol or, without one, 25. Such a default applies to this turn only and is not shared."""
    tool_calls: int | None = _bound(
        None, _Count(1), shared="Maximum number of tool calls of the whole conversation."
    )
    """Maximum number of tool calls. The calls of one answer run all or none. None disables the limit."""
    tokens: int | None = _bound(
        None, _Count(1), shared="Maximum sum of prompt and answer tokens of the whole conversation."
    )
    """Maximum sum of prompt and answer tokens, cached tokens included. None disables the limit."""
    cost: float | None = _bound(
        None,
        _Amount("US dollars"),
        shared="Maximum cost of the whole conversation in US dollars. Needs a model with a known price.",
    )
    """Maximum cost of model calls in US dollars, by the prices of genai-prices or the client's `price=`. None disables it."""
    seconds: float | None = _bound(
        None,
        _Amount("seconds"),
        shared="Maximum working time of the whole conversation in seconds, without the time in which it waits for the user.",
    )
    """Maximum working time in seconds. It includes waits for models, tools and other agents, but no suspended time."""
    tree_model_calls: int = _bound(250, _Count(1))
    """Maximum number of model calls of this turn and the turns that it causes.

    The caused turns are: turns of agents that are called or used as tools, and of delegated tasks; turns that start with a task's
    result; and turns that were scheduled to start within a minute.
    """
    tree_tool_calls: int = _bound(1000, _Count(1))
    """Maximum number of tool calls of this turn and the turns that it causes (see `tree_model_calls`)."""
    depth: int = _bound(8, _Count(1))
    """Maximum length of a chain of agents of which each waits for the answer of the next."""
    max_repeated_calls: int = _bound(3, _Count(1))
    """Maximum number of consecutive calls of one tool with equal arguments. It is also the maximum number of rounds
    (at least two) of a cycle of two to eight calls with equal results. A call that ends the process also counts.
    """
    answer_calls: int = _bound(64, _Count(1))
    """Maximum number of tool calls in one answer. If there are more, no call runs and the model gets an error."""
    argument_bytes: int = _bound(1_000_000, _Count(1))
    """Maximum size of all call arguments in one answer, in bytes of JSON. If they are larger, no call runs and the model gets an error."""
    output_retries: int = _bound(2, _Count(0))
    """Maximum number of consecutive repair requests after unusable answers."""
    model_timeout: float = _bound(120.0, _Amount("seconds"))
    """Timeout of a model call in seconds, including retries and waits for rate limits."""
    tool_timeout: float = _bound(60.0, _Amount("seconds"))
    """Timeout of a tool call in seconds, for tools without a timeout."""
    approval_timeout: float = _bound(WEEK_SECONDS, _Amount("seconds"))
    """Seconds until an undecided approval is rejected, for questions without a timeout."""
    result_characters: int = _bound(60_000, _Count(1))
    """Maximum length of a tool result in a request, in characters. Of a longer result the model gets the beginning and can read
    the rest with `read_result`."""
    kept_characters: int = _bound(4_000_000, _Count(0))
    """Maximum sum of the characters of long results that a session stores for `read_result`. 0 disables the tool."""

    @classmethod
    def for_long_turns(cls, **bounds: Any) -> "Limits":
        """Return limits for turns with hundreds of steps, such as those of coding and research agents.

        A turn may make 500 model calls, and 2,000 together with the turns that it causes, with 10,000 tool calls.
        One model call or tool call may take 10 minutes. All other limits keep their defaults. `bounds` replaces
        single limits by name.

        Raises:
            ConfigurationError: A limit has an invalid value.
        """
        profile: dict[str, Any] = {
            "model_calls": 500,
            "tree_model_calls": 2_000,
            "tree_tool_calls": 10_000,
            "model_timeout": 600.0,
            "tool_timeout": 600.0,
        }
        return cls(**profile | bounds)

    @cached_property
    def is_shared(self) -> bool:
        """True if at least one limit is set that sessions and owners can also have, such as `tokens` or `cost`."""
        return bool(self.shared)

    @cached_property
    def changed_turn_limits(self) -> Mapping[str, float]:
        """Turn limits that differ from their defaults, by name."""
        return {
            field.name: value
            for field in attrs.fields(Limits)
            if field.name not in SHARED and (value := getattr(self, field.name)) != field.default
        }

    @cached_property
    def shared(self) -> Mapping[str, float]:
        """Values of the shared limits that are set, by name."""
        return {name: bound for name in SHARED if (bound := getattr(self, name)) is not None}


FORMS: Mapping[str, Mapping[str, Any]] = {
    field.name: field.metadata["form"] for field in attrs.fields(Limits)
}
"""JSON Schema of each limit by name, for configuration files."""
OPTIONS: Mapping[str, str] = {
    field.name: field.metadata["shared"] for field in attrs.fields(Limits) if field.metadata["shared"]
}
"""Help text of each shared limit by name, for commands."""
SHARED = tuple(OPTIONS)
DEFAULT_MODEL_CALLS = 25
DEFAULT_LIMITS = Limits()
