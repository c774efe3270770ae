"""Schemas of approval forms as plain JSON."""

import json
from collections.abc import Mapping
from typing import Any

from actgent.errors import ConfigurationError, ParseError
from actgent.support.strict_json import loads


def plain_form(form: Mapping[str, Any] | None, *, owner: str) -> dict[str, Any] | None:
    """Validate the JSON Schema of an approval form, and return it as a plain dict; return None for None.

    `owner` names the form's owner in errors.

    Raises:
        ConfigurationError: The schema is invalid or is not JSON.
    """
    if form is None:
        return None
    from .schema_validation import compile_schema  # noqa: PLC0415 - loads a library, and few agents have forms

    compile_schema(form, owner=owner)
    try:
        plain: dict[str, Any] = loads(json.dumps(form, allow_nan=False, default=_plain_mapping))
    except ParseError as error:
        raise ConfigurationError(f"the JSON Schema of {owner} is not JSON: {error.reason}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the JSON Schema of {owner} is not JSON: {error}") from None
    return plain


def _plain_mapping(value: object) -> dict[Any, Any]:
    """Convert a mapping to a dict: the `default` function of `json.dumps`. Raise TypeError for other values."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"JSON cannot represent a value of type {type(value).__name__}")
