"""What a conversation in the terminal may take, as options of its command."""

from typing import Annotated

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from actgent.control.limits import Limits

_Count = Annotated[int, Parameter(validator=Number(gte=1))]
_Amount = Annotated[float, Parameter(validator=Number(gt=0))]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class Bounds:
    """Options named as the fields of `Limits`; they hold for the whole conversation, with all that it leads to."""

    limit_model_calls: _Count | None = None
    """Model calls that the whole conversation may take, with all that it leads to; no limit without it."""
    limit_tool_calls: _Count | None = None
    """Tool calls that it may take."""
    limit_tokens: _Count | None = None
    """Tokens, of prompts and answers together, that it may take."""
    limit_cost: _Amount | None = None
    """US dollars that it may take; the model's price has to be known."""
    limit_seconds: _Amount | None = None
    """Seconds of work that it may take, without those in which it waits for you."""

    @property
    def limits(self) -> Limits:
        """The same for a session."""
        return Limits(
            model_calls=self.limit_model_calls,
            tool_calls=self.limit_tool_calls,
            tokens=self.limit_tokens,
            cost=self.limit_cost,
            seconds=self.limit_seconds,
        )


def limits_of(bounds: Bounds | None) -> Limits | None:
    """None where no option was given."""
    return None if bounds is None else bounds.limits
