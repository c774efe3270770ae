"""Conversion of the providers' words for the end of an answer to the stop reasons of actgent."""

import re

from actgent.llm.model_interface import StopReason

_WORDS: tuple[tuple[re.Pattern[str], StopReason | None], ...] = (
    (
        re.compile(
            r"content.?filter|safety|recitation|prohibited|blocklist|\bspii\b|sensitive|moderat|guardrail|toxic|^language$"
        ),
        "filter",
    ),
    (re.compile(r"refus"), "refusal"),
    (re.compile(r"length|max\w*.?tokens|token.?limit|context.?window"), "length"),
    (
        re.compile(
            r"error|abort|cancel|fail|timeout|malformed|unexpected_tool_call|insufficient_system_resource|interrupt"
        ),
        None,
    ),
)
"""Patterns of the words in a stop reason, in the order in which they are tried. None means that the server aborted the answer.

Servers add prefixes and details, such as `content_filter: RECITATION` or `function_call_filter: MALFORMED_FUNCTION_CALL`.
"""


def stop_reason(reason: object) -> StopReason:
    """Convert a provider's `finish_reason` or `stop_reason` to a stop reason. Unknown words mean a normal end.

    Raises:
        ValueError: The server aborted the answer.
    """
    text = str(reason).lower()
    for pattern, stop in _WORDS:
        if pattern.search(text):
            if stop is None:
                raise ValueError(f"the provider aborted the answer with the finish_reason {reason!r}")
            return stop
    return "end"
