"""An answer that is too long to be shown again: its model said it, and is told how long it was."""

import operator

import attrs

from actgent.messages import ChatMessage, Part, Text, ToolCall

KEPT = 1_000
"""Characters of each of its parts that are shown; arguments of calls are shown whole or not at all."""


def shortened(said: ChatMessage) -> ChatMessage:
    """The answer with its calls, each of which keeps its result, without what is long in it."""
    parts = tuple(map(_shortened, said.parts))
    return said if all(map(operator.is_, parts, said.parts)) else ChatMessage(said.role, parts)


def _shortened(part: Part) -> Part:
    if isinstance(part, Text) and len(part.text) > KEPT:
        return Text(f"{part.text[:KEPT]}... ({len(part.text):,} characters in all, the rest is not shown)")
    if isinstance(part, ToolCall) and (size := len(str(part.arguments))) > KEPT:
        return attrs.evolve(part, arguments={"not_shown": f"{size:,} characters"})
    return part
