"""JSON Schemas that several endpoints share, and the ids that clients may choose."""

import re
from collections.abc import Mapping
from typing import Any, get_args

import attrs

from actgent.control.limits import Limits
from actgent.journal.listing import STATES
from actgent.messages import OnBusy
from actgent.web.problems import Problem

CLIENT_ID = (
    r"^(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}|\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}|\.\.[A-Za-z0-9._-]{1,126})$"
)
"""What clients may call things: no more than every address and every log carries as it is, and neither `.` nor `..`.

It says so without looking ahead, so that it runs in linear time, and the work of a body need not be counted before it is checked.
"""
ID: Mapping[str, Any] = {"type": "string", "pattern": CLIENT_ID}
TEXT: Mapping[str, Any] = {"type": "string"}
AGENT: Mapping[str, Any] = {
    "type": "string",
    "description": "Whose session, where several agents have one of this id.",
}
AFTER: Mapping[str, Any] = {"type": "string", "description": "`next` of the page before.", "maxLength": 2000}
LIMIT: Mapping[str, Any] = {
    "type": "integer",
    "minimum": 1,
    "description": "At most so many; 100 without it.",
}
NUMBER: Mapping[str, Any] = {
    "type": "integer",
    "minimum": 0,
    "description": "Behind the record of this number.",
}
PLACE: Mapping[str, Any] = {
    "type": "integer",
    "minimum": 0,
    "description": "A place in what was said, from 0.",
}
STATE: Mapping[str, Any] = {"type": "string", "enum": list(STATES)}
ON_BUSY: Mapping[str, Any] = {"enum": list(get_args(OnBusy))}
PRIORITY: Mapping[str, Any] = {"enum": ["urgent", "high", "normal", "low"]}
METADATA: Mapping[str, Any] = {
    "type": "object",
    "description": "Kept with the message for programs, and never shown to a model; at most 16,000 characters.",
}
SECONDS: Mapping[str, Any] = {"type": "number", "exclusiveMinimum": 0, "maximum": 3e9}
DECISIONS = ("approve", "reject", "edit", "respond")
SHARED = ("model_calls", "tool_calls", "tokens", "cost", "seconds")
SESSION_LIMITS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        field.name: field.metadata["form"] for field in attrs.fields(Limits) if field.name in SHARED
    },
    "additionalProperties": False,
}
"""The limits that count for a session as a whole."""
IDEMPOTENCY: Mapping[str, str] = {
    "Idempotency-Key": "The same key again is the same request: nothing happens twice, also after a restart. With another body it is a 422."
}
_CLIENT_ID = re.compile(CLIENT_ID)


def check_client_id(what: str, value: str) -> str:
    """An id that a client has chosen.

    Raises:
        Problem: it has other characters than letters, digits, dots, lines and underscores, or too many.
    """
    if not _CLIENT_ID.match(value) or value.endswith("\n"):
        raise Problem("invalid", f"{what} has 1 to 128 of the characters A-Z a-z 0-9 . _ -")
    return value
