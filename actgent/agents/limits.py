"""How much one turn may take, and how long."""

import math
from collections.abc import Callable
from typing import Any

import attrs

from actgent.errors import ConfigurationError

_Validator = Callable[[object, "attrs.Attribute[Any]", object], None]


def _count(least: int) -> _Validator:
    def check(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
        if type(value) is not int or value < least:
            raise ConfigurationError(
                f"Limits({field.name}=...) is a whole number, at least {least}, not {value!r}"
            )

    return check


def _check_seconds(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if not isinstance(value, int | float) or not 0 < value <= math.inf:
        raise ConfigurationError(f"Limits({field.name}=...) is a number of seconds above 0, not {value!r}")


@attrs.frozen(kw_only=True)
class Limits:
    """The bounds of a turn. Reaching one of the first three ends it as a Failure.

    Raises:
        ConfigurationError: a bound makes no sense; the text names it.
    """

    model_calls: int | None = attrs.field(default=None, validator=attrs.validators.optional(_count(1)))
    """Model calls a turn; None is the protocol's own limit, or else 25."""
    identical_calls: int = attrs.field(default=3, validator=_count(1))
    """How often in a row the same tool may be called with the same arguments."""
    repairs: int = attrs.field(default=2, validator=_count(0))
    """How often in a row the model is asked again after an answer that cannot be used."""
    model_timeout: float = attrs.field(default=120.0, validator=_check_seconds)
    """Seconds a model call may take, its retries included."""
    tool_timeout: float = attrs.field(default=60.0, validator=_check_seconds)
    """Seconds a tool call may take, for tools that say nothing themselves."""
    result_characters: int = attrs.field(default=60_000, validator=_count(1))
    """The longest tool result that the model is shown; longer ones are cut, with a notice."""


DEFAULT_MODEL_CALLS = 25
