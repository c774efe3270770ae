"""What the regular expressions of a JSON Schema may cost: memory when they are compiled, and steps that they take back.

Most are run in linear time. Those that look around or refer to their groups try one way after another, each time that they meet a text.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs

_MAX_BYTES = 32_000_000
"""Of all patterns of a schema together."""
_MAX_PATTERN_BYTES = 10_000_000
_MAX_CACHE_BYTES = 2_000_000
_LEAST_BYTES = 20_000
MAX_STEPS = 10_000_000
"""That are taken back for one value, 0.4 s."""
MAX_TEXT_STEPS = 1_000_000
"""That are taken back for one text."""
LEAST_STEPS = 100
_BACKTRACKS = re.compile(r"\(\?(?:[=!>]|<[=!])|\\[1-9k]|[*+?}]\+")


def patterns_of(schema: Any) -> set[str]:
    """All regular expressions in a schema."""
    return set(_patterns(schema))


def _patterns(schema: Any) -> Iterator[str]:
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
    """Return True for a pattern that is not run in linear time."""
    return _BACKTRACKS.search(pattern) is not None


def steps_for(tries: int) -> int:
    """How many steps one text may take back if so many may be met: a power of ten."""
    steps = MAX_TEXT_STEPS
    while steps > LEAST_STEPS and steps * tries > MAX_STEPS:
        steps //= 10
    return steps


def pattern_options(patterns: int, steps: int = MAX_TEXT_STEPS) -> jsonschema_rs.FancyRegexOptions:
    """The bounds of each pattern of a schema that has so many."""
    share = max(_MAX_BYTES // max(patterns, 1), _LEAST_BYTES)
    return jsonschema_rs.FancyRegexOptions(
        backtrack_limit=steps,
        size_limit=min(share, _MAX_PATTERN_BYTES),
        dfa_size_limit=min(share, _MAX_CACHE_BYTES),
    )
