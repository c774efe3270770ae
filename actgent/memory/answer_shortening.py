"""Shortens an answer that is too long to be shown to its model again."""

import operator

import attrs

from actgent.messages import ChatMessage, Part, Text, ToolCall

MAX_TEXT_CHARACTERS = 1_000
"""Maximum length of a shown text in characters. Longer arguments of a call are replaced as a whole."""


def shorten_answer(answer: ChatMessage) -> ChatMessage:
    """Return an answer with long texts and call arguments shortened. All calls are kept.

    Returns the same object if nothing is long.
    """
    parts = tuple(map(_shorten_part, answer.parts))
    return answer if all(map(operator.is_, parts, answer.parts)) else ChatMessage(answer.role, parts)


def _shorten_part(part: Part) -> Part:
    if isinstance(part, Text) and len(part.text) > MAX_TEXT_CHARACTERS:
        return Text(
            f"{part.text[:MAX_TEXT_CHARACTERS]}... ({len(part.text):,} characters in all, the rest is not shown)"
        )
    if isinstance(part, ToolCall) and (size := len(str(part.arguments))) > MAX_TEXT_CHARACTERS:
        return attrs.evolve(part, arguments={"not_shown": f"{size:,} characters"})
    return part
