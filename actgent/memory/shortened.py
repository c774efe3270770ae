"""Shortens an answer that is too long to be shown to its model again."""

import operator

import attrs

from actgent.messages import ChatMessage, Part, Text, ToolCall

KEPT = 1_000
"""Characters of a text part that are kept. Arguments of a call that are longer are replaced as a whole."""


def shortened(said: ChatMessage) -> ChatMessage:
    """Return an answer with long texts and call arguments shortened. All calls are kept.

    Returns the same object if nothing is long.
    """
    parts = tuple(map(_shortened, said.parts))
    return said if all(map(operator.is_, parts, said.parts)) else ChatMessage(said.role, parts)


def _shortened(part: Part) -> Part:
    if isinstance(part, Text) and len(part.text) > KEPT:
        return Text(f"{part.text[:KEPT]}... ({len(part.text):,} characters in all, the rest is not shown)")
    if isinstance(part, ToolCall) and (size := len(str(part.arguments))) > KEPT:
        return attrs.evolve(part, arguments={"not_shown": f"{size:,} characters"})
    return part
