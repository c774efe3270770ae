"""Delimiters around results from untrusted sources, so that the model treats them as data.

The delimiter is derived from the result, so it is equal after a restart and the cached prefix of a prompt stays valid.
"""

import attrs

from actgent.messages import File, Medium, ToolResult
from actgent.support.untrusted_text_delimiters import (
    OTHERS,
    delimiter_of_result,
    join_origins,
    replace_special_tokens,
    split_readers,
)

__all__ = ["mark_untrusted", "replace_special_tokens"]


def mark_untrusted(result: ToolResult, origin: str) -> ToolResult:
    """Return a copy of a tool result that is marked as untrusted text of the source `origin`.

    Special tokens of models in the text are broken, so that they have no effect. The field `mark` of the copy names
    the delimiter that surrounds the text in requests.
    """
    content = replace_special_tokens(result.content)
    error = None if result.error is None else replace_special_tokens(result.error)
    names, readers = split_readers(replace_special_tokens(origin))
    origin = names or OTHERS
    mark = delimiter_of_result(result.call_id, origin, error, content)
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
        raised=result.raised,
        via=join_origins(result.via, readers),
        started_at=result.started_at,
        ended_at=result.ended_at,
    )


def _neutralize_name(medium: Medium) -> Medium:
    return (
        attrs.evolve(medium, name=replace_special_tokens(medium.name)) if isinstance(medium, File) else medium
    )
