"""JSON Schemas that several endpoints share, and validation of ids that clients choose."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, get_args

from actgent.errors.text_escaping import quoted
from actgent.journal.session_list_queries import STATES
from actgent.journal.session_tags_and_metadata import (
    MAX_KEY_CHARS,
    MAX_METADATA_KEYS,
    MAX_TAG_CHARS,
    MAX_TAGS,
    MAX_VALUE_CHARS,
)
from actgent.limits_and_schedules.limits import FORMS, SHARED
from actgent.messages import OnBusy
from actgent.web.problem_documents import Problem

CLIENT_ID = (
    r"^(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}|\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}|\.\.[A-Za-z0-9._-]{1,126})$"
)
"""Pattern of ids that clients choose: 1 to 128 characters that need no escaping in URLs and logs, except `.` and `..`.

The pattern has no lookahead, so it matches in linear time, and a body can be validated without a limit on the work.
"""
ID: Mapping[str, Any] = {"type": "string", "pattern": CLIENT_ID, "examples": ["order-17"]}
TEXT: Mapping[str, Any] = {"type": "string"}
AGENT: Mapping[str, Any] = {
    "type": "string",
    "description": "Whose session, where several agents have one of this id.",
}
AFTER: Mapping[str, Any] = {"type": "string", "description": "`next` of the page before.", "maxLength": 2000}
LIMIT: Mapping[str, Any] = {
    "type": "integer",
    "minimum": 1,
    "description": "Maximum number of items; default 100.",
}
AMOUNT: Mapping[str, Any] = {"type": "number", "minimum": 0}
DATE: Mapping[str, Any] = {
    "type": "string",
    "format": "date-time",
    "description": "Date and time with a time zone, such as 2026-11-27T09:00:00Z.",
}
NUMBER: Mapping[str, Any] = {
    "type": "integer",
    "minimum": 0,
    "description": "Record number; the response starts after this record.",
}
PLACE: Mapping[str, Any] = {
    "type": "integer",
    "minimum": 0,
    "description": "Index of a message in the conversation, from 0.",
}
STATE: Mapping[str, Any] = {"type": "string", "enum": list(STATES)}
ON_BUSY: Mapping[str, Any] = {"type": "string", "enum": list(get_args(OnBusy))}
PRIORITY: Mapping[str, Any] = {"type": "string", "enum": ["urgent", "high", "normal", "low"]}
METADATA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": True,
    "description": "Kept with the message for programs, and never shown to a model; at most 16,000 characters.",
}
SECONDS: Mapping[str, Any] = {"type": "number", "exclusiveMinimum": 0, "maximum": 3e9}
DECISIONS = ("approve", "reject", "edit", "respond")
LOCATION: Mapping[str, str] = {"Location": "Path of the created object."}
MAX_SAFE_INTEGER = 2**53 - 1
"""Largest integer that JSON parsers with 64-bit floats read without loss."""
SESSION_LIMITS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        name: {**FORMS[name], **({"maximum": MAX_SAFE_INTEGER} if FORMS[name]["type"] == "integer" else {})}
        for name in SHARED
    },
    "additionalProperties": False,
}
"""JSON Schema of the limits that apply to a whole session."""
TAGS: Mapping[str, Any] = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": MAX_TAG_CHARS},
    "maxItems": MAX_TAGS,
    "description": "Tags of the session: texts without commas.",
    "examples": [["billing"]],
}
SESSION_METADATA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": "string", "maxLength": MAX_VALUE_CHARS},
    "maxProperties": MAX_METADATA_KEYS,
    "description": f"Metadata of the session. Keys have 1 to {MAX_KEY_CHARS} characters of A-Z a-z 0-9 . _ -",
    "examples": [{"ticket": "4711"}],
}
ANNOTATION_FILTERS: Mapping[str, Any] = {
    "tags": {
        "type": "string",
        "maxLength": MAX_TAGS * (MAX_TAG_CHARS + 1),
        "description": "Tags, separated by commas: only sessions with all of them.",
        "examples": ["billing,urgent"],
    },
    "metadata": {
        "type": "string",
        "contentMediaType": "application/json",
        "maxLength": 2000,
        "description": "JSON object of texts: only sessions with all of these metadata values.",
        "examples": ['{"ticket":"4711"}'],
    },
}
"""Query parameters that select sessions by their tags and metadata."""
_CLIENT_ID = re.compile(CLIENT_ID)


def list_pattern(words: Sequence[str]) -> str:
    """Return a regular expression that matches comma-separated lists of these words."""
    word = f"({'|'.join(words)})"
    return f"^{word}(,{word})*$"


def date_in(query: Mapping[str, Any], name: str) -> float | None:
    """Return the date in the query parameter `name` as Unix time in seconds; None if the parameter is missing.

    Raises:
        Problem: The value is not a date with a time zone.
    """
    if name not in query:
        return None
    try:
        date = datetime.fromisoformat(query[name])
    except ValueError:
        date = datetime.min  # noqa: DTZ901 - has no time zone, so it is refused below
    if date.tzinfo is None:
        raise Problem(
            "invalid",
            f"{name}= must be a date with a time zone, such as 2026-11-27T09:00:00Z, not {quoted(query[name], 40)}",
        )
    return date.timestamp()


def check_client_id(label: str, value: str) -> str:
    """Check the characters of an id that a client has chosen, and return the id. `label` is the id's name for the error.

    Raises:
        Problem: The id does not match `CLIENT_ID`.
    """
    if not _CLIENT_ID.match(value) or value.endswith("\n"):
        raise Problem("invalid", f"{label} must have 1 to 128 of the characters A-Z a-z 0-9 . _ -")
    return value
