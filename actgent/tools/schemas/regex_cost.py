"""Limits of the regular expressions in a JSON Schema: memory when compiled, and backtracking steps when matched.

Most patterns run in linear time. Patterns with lookaround or backreferences backtrack each time they match a text.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs

_MAX_BYTES = 32_000_000
"""Maximum memory of all compiled patterns of a schema."""
_MAX_PATTERN_BYTES = 10_000_000
"""Maximum memory of one compiled pattern."""
_MAX_CACHE_BYTES = 2_000_000
"""Maximum memory of one pattern's DFA cache."""
_MIN_PATTERN_BYTES = 20_000
"""Memory granted to each pattern even if a schema has many."""
MAX_BACKTRACKS = 10_000_000
"""Maximum number of backtracking steps per value, about 0.4 s."""
MAX_TEXT_BACKTRACKS = 1_000_000
"""Maximum number of backtracking steps per text."""
MIN_TEXT_BACKTRACKS = 100
"""Backtracking steps granted to each text even if a value has many."""
_BACKTRACKS = re.compile(r"\(\?(?:[=!>]|<[=!])|\\[1-9k]|[*+?}]\+")


def find_patterns(schema: Any) -> set[str]:
    """Return all regular expressions in a schema."""
    return set(_patterns(schema))


def _patterns(schema: Any) -> Iterator[str]:
    """Yield the regular expressions in a schema, at any depth."""
    stack = [schema]
    while stack:
        each = stack.pop()
        if isinstance(each, Mapping):
            named = each.get("patternProperties")
            texts = (each.get("pattern"), *(named if isinstance(named, Mapping) else ()))
            yield from (text for text in texts if isinstance(text, str))
            stack += each.values()
        elif isinstance(each, list | tuple):
            stack += each


def is_backtracking(pattern: str) -> bool:
    """Return True if a pattern may backtrack, so that it does not run in linear time."""
    return _BACKTRACKS.search(pattern) is not None


def backtracks_for(tries: int) -> int:
    """Return the backtracking limit per text, a power of ten, for a value with `tries` texts and patterns.

    The total stays bounded.
    """
    backtracks = MAX_TEXT_BACKTRACKS
    while backtracks > MIN_TEXT_BACKTRACKS and backtracks * tries > MAX_BACKTRACKS:
        backtracks //= 10
    return backtracks


def pattern_options(patterns: int, backtracks: int = MAX_TEXT_BACKTRACKS) -> jsonschema_rs.FancyRegexOptions:
    """Return the library's limits for each pattern of a schema with `patterns` patterns."""
    share = max(_MAX_BYTES // max(patterns, 1), _MIN_PATTERN_BYTES)
    return jsonschema_rs.FancyRegexOptions(
        backtrack_limit=backtracks,
        size_limit=min(share, _MAX_PATTERN_BYTES),
        dfa_size_limit=min(share, _MAX_CACHE_BYTES),
    )
