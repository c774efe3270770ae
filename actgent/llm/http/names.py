"""Names and ids as providers take them: `^[a-zA-Z0-9_-]{1,64}$`, while ours may hold dots and anything else.

The mapping is a pure function of the name alone, so a prompt's bytes never depend on what else
an agent has. A name that fits goes as it is; any other becomes a readable stem and a digest. A name
that merely looks like such a mapped one is mapped too, so no two names meet on the wire.
"""

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping

from actgent.messages import ToolSpec

NAME_LIMIT = 64
ID_LIMIT = 40
"""The shortest limit among providers (OpenAI chat completions)."""

_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
_MAPPED = re.compile(r"_[0-9a-f]{12}\Z")


@functools.lru_cache(maxsize=4096)
def wire_name(name: str, limit: int = NAME_LIMIT) -> str:
    """`name` in at most `limit` characters that every provider takes; the same for the same name, always."""
    if 0 < len(name) <= limit and not _FOREIGN.search(name) and not _MAPPED.search(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_FOREIGN.sub('_', name)[: limit - 13]}_{digest}"


def wire_id(call_id: str) -> str:
    """The id of a tool call as providers take it."""
    # Not cached: each id is new, and would only push names out.
    if 0 < len(call_id) <= ID_LIMIT and not _FOREIGN.search(call_id):
        return call_id
    return wire_name(call_id, ID_LIMIT)


def real_names(tools: Iterable[ToolSpec]) -> Mapping[str, str]:
    """Map the names that a model uses to the tools' own."""
    return {wire_name(tool.name): tool.name for tool in tools}
