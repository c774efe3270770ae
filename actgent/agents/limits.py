"""How much one turn may take, and how long."""

import attrs
from attrs.validators import ge, gt


@attrs.frozen(kw_only=True)
class Limits:
    """The bounds of a turn. Reaching one of the first three ends it as a Failure."""

    model_calls: int | None = attrs.field(default=None, validator=attrs.validators.optional(ge(1)))
    """Model calls a turn; None is the protocol's own limit, or else 25."""
    identical_calls: int = attrs.field(default=3, validator=ge(1))
    """How often in a row the same tool may be called with the same arguments."""
    repairs: int = attrs.field(default=2, validator=ge(0))
    """How often in a row the model is asked again after an answer that cannot be used."""
    model_timeout: float = attrs.field(default=120.0, validator=gt(0))
    """Seconds a model call may take, its retries included."""
    tool_timeout: float = attrs.field(default=60.0, validator=gt(0))
    """Seconds a tool call may take, for tools that say nothing themselves."""
    handler_timeout: float = attrs.field(default=30.0, validator=gt(0))
    """Seconds an async handler may take."""
    result_characters: int = attrs.field(default=60_000, validator=ge(1))
    """The longest tool result that the model is shown; longer ones are cut, with a notice."""


DEFAULT_MODEL_CALLS = 25
