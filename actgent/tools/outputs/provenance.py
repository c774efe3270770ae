"""Results that strangers wrote: data for the model, whatever they say; see `support/outside_text.py`.

The same result always has the same mark, also after a restart, so a prompt's prefix stays as it is.
"""

import attrs

from actgent.messages import File, Medium, ToolResult
from actgent.support.outside_text import mark_for, neutral

__all__ = ["from_outside", "neutral"]


def from_outside(result: ToolResult, origin: str) -> ToolResult:
    """The result with its words as data from `origin`, and with the mark that closes them."""
    content = neutral(result.content)
    error = None if result.error is None else neutral(result.error)
    origin = neutral(origin)
    mark = mark_for(f"{result.call_id}\n{origin}\n{error}\n{content}")
    return ToolResult(  # written out: attrs.evolve would cost as much as the rest
        id=result.id,
        call_id=result.call_id,
        tool_name=result.tool_name,
        status=result.status,
        content=content,
        error=error,
        native=result.native,
        origin=origin,
        mark=mark,
        media=tuple(map(_named, result.media)) if result.media else (),
    )


def _named(medium: Medium) -> Medium:
    return attrs.evolve(medium, name=neutral(medium.name)) if isinstance(medium, File) else medium
