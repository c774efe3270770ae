"""The order of messages that a compatible server takes."""

from collections.abc import Iterable
from typing import Any

from actgent.llm.http import Body

from .providers import CompatibleProvider

_BRIDGE = "Understood."
"""The assistant's word between a tool's message and a user's."""
_OPENING = "(The conversation begins with your own message.)"


def in_order(messages: Iterable[Body], row: CompatibleProvider) -> list[Body]:
    """Return the messages with what the provider's order demands between them."""
    if row.has_user_after_tool and not row.alternates:
        return list(messages)
    ordered: list[Body] = []
    for message in messages:
        before, role = (ordered[-1]["role"] if ordered else ""), message["role"]
        if before == "tool" and role == "user" and not row.has_user_after_tool:
            ordered.append({"role": "assistant", "content": _BRIDGE})
        elif row.alternates and role == "assistant" and before in ("", "system"):
            ordered.append({"role": "user", "content": _OPENING})
        elif row.alternates and role == before != "tool":
            ordered[-1] = _merged(ordered[-1], message)
            continue
        ordered.append(message)
    return ordered


def _merged(first: Body, second: Body) -> Body:
    """Two neighbours of one role as one message."""
    one, other = first.get("content"), second.get("content")
    content: Any = one or other
    if one and other:
        is_text = isinstance(one, str) and isinstance(other, str)
        content = f"{one}\n\n{other}" if is_text else [*_parts(one), *_parts(other)]
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return {**first, **second, "content": content, **({"tool_calls": calls} if calls else {})}


def _parts(content: str | list[Body]) -> list[Body]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
