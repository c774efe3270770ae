"""Strict parser of JSON objects in an agent's folder; errors have line numbers."""

import json
from typing import Any

from actgent.errors import InvalidFile

from .front_matter import MAX_DEPTH, read_yaml
from .untrusted_folder_reading import looks_secret

_MAX_REASON_CHARACTERS = 300


def json_object(text: str, name: str, first_line: int, *, label: str = "the schema") -> dict[str, Any]:
    """Parse a JSON object without duplicate keys.

    Args:
        text: The JSON text.
        name: Path of the file, for errors.
        first_line: Line number of the first line of `text` in the file.
        label: Name of the object in errors.

    Raises:
        InvalidFile: The text is not a JSON object, has a duplicate key, or is nested too deeply.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_reject_duplicate_members, parse_constant=_reject_non_number
        )
        if isinstance(value, dict) and _depth(value) <= MAX_DEPTH:
            return value
        reason = (
            f"{label} is not a JSON object"
            if not isinstance(value, dict)
            else f"more than {MAX_DEPTH} levels"
        )
        raise InvalidFile(name, first_line, reason)
    except json.JSONDecodeError as error:
        raise InvalidFile(name, first_line + error.lineno - 1, f"invalid JSON: {error.msg}") from None
    except _DuplicateKey:
        read_yaml(text, name=name, first_line=first_line)  # raises the same error with its line number
        raise InvalidFile(name, first_line, "duplicate key") from None
    except (ValueError, RecursionError) as error:
        raise InvalidFile(name, first_line, f"invalid JSON: {short_reason(error)}") from None


class _DuplicateKey(ValueError):
    """Internal error of the parser: a JSON object has a duplicate key."""


def _reject_duplicate_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _DuplicateKey
    return members


def _reject_non_number(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def short_reason(reason: object) -> str:
    """Shorten an error text, and remove words that look like secrets."""
    words = str(reason).split()
    text = " ".join("(not shown)" if looks_secret(word) else word for word in words)
    return text if len(text) <= _MAX_REASON_CHARACTERS else f"{text[:_MAX_REASON_CHARACTERS]}..."
