"""Delimiters around results from untrusted sources, so that the model treats them as data.

The delimiter is derived from the result, so it is equal after a restart and the cached prefix of a prompt stays valid.
"""

import attrs

from actgent.messages import File, Medium, ToolResult
from actgent.support.untrusted_text import OTHERS, delimiter_for, join_origins, neutral, split_readers

__all__ = ["mark_untrusted", "neutral"]


def mark_untrusted(result: ToolResult, origin: str) -> ToolResult:
    """Return a copy of a tool result that is marked as untrusted text of the source `origin`.

    The text is neutralized: delimiters and special tokens in it lose their meaning. `mark` is the delimiter around it.
    """
    content = neutral(result.content)
    error = None if result.error is None else neutral(result.error)
    names, readers = split_readers(neutral(origin))
    origin = names or OTHERS
    mark = delimiter_for(f"{result.call_id}\n{origin}\n{error}\n{content}")
    return ToolResult(  # not attrs.evolve: it takes as long as the rest of the function
        id=result.id,
        call_id=result.call_id,
        tool_name=result.tool_name,
        status=result.status,
        content=content,
        error=error,
        native=result.native,
        origin=origin,
        mark=mark,
        media=tuple(map(_neutralize_name, result.media)) if result.media else (),
        via=join_origins(result.via, readers),
    )


def _neutralize_name(medium: Medium) -> Medium:
    return attrs.evolve(medium, name=neutral(medium.name)) if isinstance(medium, File) else medium
