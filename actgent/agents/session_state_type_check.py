"""`state=`: checks that state changes fit the declared type of the session state."""

import json
from collections.abc import Mapping
from typing import Any

from actgent.errors import ConfigurationError, InvalidState, did_you_mean
from actgent.errors.text_escaping import quoted
from actgent.state.session_state import StateCheck
from actgent.tools.outputs.result_text import to_text
from actgent.tools.schemas import compile_schema, compile_type

_OF_PROTOCOLS = frozenset({"plan"})
"""Keys without a dot or an underscore that protocols write themselves."""


def state_check_of(declared: object) -> StateCheck | None:
    """Return a function that checks state changes against the type in `state=`; None if the type is None.

    The type is an attrs class, a dataclass, a pydantic model or a TypedDict. A changed key must be a field, and its value
    must fit the type of the field. After all required fields are set, the whole state must fit, with the validators of the
    class.

    Raises:
        ConfigurationError: The type has no fields, or one of them has no JSON Schema.
    """
    if declared is None:
        return None
    compiled = compile_type(declared)
    schema = compiled.schema
    fields = schema.get("properties")
    if not isinstance(declared, type) or not isinstance(fields, Mapping) or not fields:
        raise ConfigurationError(
            f"state= must be a type with fields (attrs, dataclass, pydantic, TypedDict), not {declared!r:.200}"
        )
    required = frozenset(schema.get("required", ()))
    is_open = schema.get("additionalProperties", False) is not False
    partial_schema = {name: value for name, value in schema.items() if name != "required"}
    checked = compile_schema(partial_schema, owner=f"state={declared.__name__}")

    def check(changes: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        changed = {key: value for key, value in changes.items() if not _is_of_framework(key, fields)}
        if not is_open and (unknown := changed.keys() - fields.keys()):
            key = min(unknown)
            known = did_you_mean(key, fields) or f"the fields are {', '.join(fields)}"
            raise InvalidState(declared.__name__, f"{declared.__name__} has no field {quoted(key)}: {known}")
        if (reason := checked.reason(_to_plain_json(changed))) is not None:
            raise InvalidState(declared.__name__, reason)
        if required <= state.keys():
            whole = {key: value for key, value in state.items() if key in fields}
            try:
                compiled.convert(_to_plain_json(whole))
            except ValueError as error:
                raise InvalidState(declared.__name__, str(error)) from None

    return check


def _is_of_framework(key: str, fields: Mapping[str, Any]) -> bool:
    """Return True if actgent or a protocol writes a state key, and the declared type has no field of this name."""
    return key not in fields and (key.startswith("_") or "." in key or key in _OF_PROTOCOLS)


def _to_plain_json(values: Mapping[str, Any]) -> Any:
    return json.loads(to_text(dict(values)))
