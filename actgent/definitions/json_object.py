"""JSON that stands in an agent's folder: an object, strict, and what is wrong with it by line."""

import json
from typing import Any

from actgent.errors import InvalidFile

from .folder import looks_secret
from .front_matter import MAX_DEPTH, read_yaml

_MAX_REASON = 300


def json_object(text: str, name: str, first_line: int, *, what: str = "the schema") -> dict[str, Any]:
    """A JSON object without keys that are there twice.

    Raises:
        InvalidFile: it is none; with the line.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
        if isinstance(value, dict) and _depth(value) <= MAX_DEPTH:
            return value
        reason = (
            f"{what} is not a JSON object" if not isinstance(value, dict) else f"more than {MAX_DEPTH} levels"
        )
        raise InvalidFile(name, first_line, reason)
    except json.JSONDecodeError as error:
        raise InvalidFile(name, first_line + error.lineno - 1, f"no JSON: {error.msg}") from None
    except _Repeated:
        read_yaml(text, name=name, first_line=first_line)  # knows the lines, and refuses the same
        raise InvalidFile(name, first_line, "a key is there twice") from None
    except (ValueError, RecursionError) as error:
        raise InvalidFile(name, first_line, f"no JSON: {short_reason(error)}") from None


class _Repeated(ValueError):
    """A key is there twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _Repeated
    return members


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def short_reason(reason: object) -> str:
    """Shorten a reason, without words that may be secrets."""
    words = str(reason).split()
    text = " ".join("(not shown)" if looks_secret(word) else word for word in words)
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."
