"""Validators for number fields of attrs classes. The error names the class, the field and the value."""

import math
from typing import Any

import attrs

from actgent.errors import ConfigurationError


def whole_number(least: int) -> Any:
    """Return a validator for whole numbers of at least `least`."""

    def check(instance: object, field: "attrs.Attribute[Any]", value: object) -> None:
        if type(value) is not int or value < least:
            raise _invalid(instance, field, f"a whole number of at least {least}", value)

    return check


def bounded_number(*, least: float | None = None, above: float | None = None, most: float = math.inf) -> Any:
    """Return a validator for numbers of at least `least` or above `above`, and of at most `most`."""
    bounds = f"of at least {least:g}" if least is not None else f"above {above:g}"
    label = f"a number {bounds}" if most == math.inf else f"a number {bounds} and at most {most:g}"

    def check(instance: object, field: "attrs.Attribute[Any]", value: object) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if (
            not is_number
            or not value <= most  # type: ignore[operator]
            or (least is not None and not value >= least)  # type: ignore[operator]
            or (above is not None and not value > above)  # type: ignore[operator]
        ):
            raise _invalid(instance, field, label, value)

    return check


def _invalid(
    instance: object, field: "attrs.Attribute[Any]", label: str, value: object
) -> ConfigurationError:
    return ConfigurationError(
        f"{type(instance).__name__}({field.name}=...) must be {label}, not {value!r:.200}"
    )
