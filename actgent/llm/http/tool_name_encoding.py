"""Encoding of tool names and call ids for providers, which accept only `^[a-zA-Z0-9_-]{1,64}$`.

The encoded name depends on the name alone, so that the bytes of a prompt do not depend on the other tools of an agent. A valid
name is unchanged; any other becomes a readable stem and a digest. A valid name that looks like an encoded one is encoded as
well, so that two names never become equal.
"""

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping

from actgent.messages import ToolSpec

NAME_LIMIT = 64
"""Maximum length of a tool name in characters."""
ID_LIMIT = 40
"""Maximum length of a call id in characters: the lowest limit among providers (OpenAI chat completions)."""

_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
_MAPPED = re.compile(r"_[0-9a-f]{12}\Z")


@functools.lru_cache(maxsize=4096)
def provider_tool_name(name: str, limit: int = NAME_LIMIT) -> str:
    """Encode a tool name in a form that every provider accepts, with at most `limit` characters.

    Equal names give equal results.
    """
    if 0 < len(name) <= limit and not _FOREIGN.search(name) and not _MAPPED.search(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_FOREIGN.sub('_', name)[: limit - 13]}_{digest}"


def provider_call_id(call_id: str) -> str:
    """Encode a tool call id in a form that every provider accepts.

    An invalid or long id is replaced by a shorter one with a digest.
    """
    # Not cached: each id is new, and would evict names from the cache.
    if 0 < len(call_id) <= ID_LIMIT and not _FOREIGN.search(call_id):
        return call_id
    return provider_tool_name(call_id, ID_LIMIT)


def names_by_provider_name(tools: Iterable[ToolSpec]) -> Mapping[str, str]:
    """Return the real names of tools by their encoded names."""
    return {provider_tool_name(tool.name): tool.name for tool in tools}
