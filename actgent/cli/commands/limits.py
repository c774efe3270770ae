"""What a conversation in the terminal may take, as options of its command."""

from typing import Annotated, Any

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from actgent.control.limits import FORMS, OPTIONS, Limits


def _option(name: str) -> Any:
    """One option; a count where the bound is one, and else an amount."""
    if FORMS[name]["type"] == "integer":
        kind: Any = Annotated[int, Parameter(validator=Number(gte=1), help=OPTIONS[name])]
    else:
        kind = Annotated[float, Parameter(validator=Number(gt=0), help=OPTIONS[name])]
    return attrs.field(default=None, type=kind | None)


@Parameter(name="*")
@attrs.frozen(kw_only=True, these={f"limit_{name}": _option(name) for name in OPTIONS})
class Bounds:
    """Options named as the fields of `Limits`; they hold for the whole conversation, with all that it leads to."""

    @property
    def limits(self) -> Limits:
        """The same for a session."""
        return Limits(**{name: getattr(self, f"limit_{name}") for name in OPTIONS})


def limits_of(bounds: Bounds | None) -> Limits | None:
    """None where no option was given."""
    return None if bounds is None else bounds.limits
