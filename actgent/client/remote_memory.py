"""`RemoteLongTermMemory`: the long-term memories of a remote agent, with the methods of `LongTermMemory`."""

from collections.abc import Mapping
from typing import Any

from actgent.errors import ConfigurationError, MemoryNotFound
from actgent.memory.longterm.memory_records import (
    EVERYTHING,
    Association,
    MemoryFilter,
    MemoryOwnerPage,
    MemoryPage,
    MemoryRecord,
)
from actgent.messages import Sender, new_secret

from .event_subscription import ServerLink
from .json_conversion import to_seconds
from .search_json_conversion import format_date
from .transport_interface import Operation, RemoteRequest

_SAME = (
    *("id", "text", "kind", "importance", "is_kept", "is_shared", "agent", "session_id", "message_id"),
    *("uses", "metadata", "replaces", "replaced_by"),
)
"""Fields of a memory that have the same name and value in JSON."""


class RemoteLongTermMemory:
    """Proxy of the long-term memory of a remote agent. Another owner than the token's requires the scope admin."""

    def __init__(self, link: ServerLink, agent: str) -> None:
        self.agent = agent
        """Name of the agent."""
        self._link = link

    def __repr__(self) -> str:
        return f"<RemoteLongTermMemory of {self.agent!r}>"

    async def browse(
        self,
        query: str = "",
        *,
        owner: Sender | str,
        filters: MemoryFilter = EVERYTHING,
        after: str | None = None,
        limit: int = 100,
    ) -> MemoryPage:
        """Return a page of current memories of an owner for a review: the best matches of a query, or all, newest first.

        Args:
            query: Text to search for; without words, all memories are returned.
            owner: Owner of the memories.
            filters: Memory kind and creation times; a server supports no other condition.
            after: `following` of the previous page; None returns the first page.
            limit: Maximum number of memories to return.

        Raises:
            ConfigurationError: `filters` has a condition that a server does not support.
            MemoryNotFound: The agent has no long-term memory.
            PermissionDenied: The token may not read the memories of another owner.
        """
        found = {"q": query, "kind": _kind_of(filters), "after": after, "limit": limit}
        times = {"since": format_date(filters.since), "until": format_date(filters.until)}
        page = await self._send("get_memories", owner, query=found | times)
        return MemoryPage(memories=tuple(map(_to_memory, page["items"])), following=page["next"])

    async def history(self, memory_id: str, *, owner: Sender | str) -> list[MemoryRecord]:
        """Return all versions of a memory, from the first to the current one. `memory_id` is the id of any version.

        Raises:
            MemoryNotFound: The owner has no memory with this id.
        """
        found = await self._send("get_memory", owner, memory_id)
        return [_to_memory(each) for each in found["versions"]]

    async def associations(self, memory_id: str, *, owner: Sender | str) -> list[Association]:
        """Return the links between a memory and other current memories, in both directions.

        Raises:
            MemoryNotFound: The owner has no memory with this id.
        """
        found = await self._send("get_memory", owner, memory_id)
        return [Association(each["id"], each["relation"], each["is_from_here"]) for each in found["links"]]

    async def update(
        self, memory_id: str, text: str | None = None, *, owner: Sender | str, key: str = "", **changes: Any
    ) -> MemoryRecord:
        """Store a changed version of a memory, and return it. The earlier version stays readable with `history`.

        Args:
            memory_id: Id of the memory to replace.
            text: New text of the memory; None keeps the text.
            owner: Owner of the memory.
            key: Idempotency key: a second call with the same key changes nothing, and returns the result of the first call.
            changes: Further fields to change: `kind`, `importance`, `is_kept` and `valid_until`.

        Raises:
            MemoryNotFound: The owner has no memory with this id.
            MemoryReplaced: The memory was replaced before. The error contains the id of the newer version.
            ConfigurationError: An argument is invalid.
        """
        body = changes if text is None else {**changes, "text": text}
        if body.get("valid_until") is not None:
            body["valid_until"] = format_date(body["valid_until"])
        return _to_memory(
            await self._send("update_memory", owner, memory_id, body=body, key=key or new_secret())
        )

    async def forget(self, *ids: str, owner: Sender | str) -> int:
        """Delete memories with their history by ids, and return the number of deleted memories. Unknown ids are ignored.

        Raises:
            ConfigurationError: No id is given. `erase` deletes all memories of an owner.
        """
        if not ids:
            raise ConfigurationError(
                "forget() requires at least one memory id: delete all memories of an owner with erase(owner)"
            )
        return sum([await self._forget_one(each, owner) for each in ids])

    async def _forget_one(self, memory_id: str, owner: Sender | str) -> bool:
        try:
            await self._send("forget_memory", owner, memory_id, is_done_if_missing=True)
        except MemoryNotFound:
            return False
        return True

    async def erase(self, owner: Sender | str, *, sessions: bool = False) -> int:
        """Delete all data of an owner (memories, history, indexes, links, keys and marks), and return the number of memories.

        Args:
            owner: Owner whose memories are deleted.
            sessions: True closes and erases the owner's sessions of all agents first, so that no agent stores their content
                again. It requires the scope admin.

        Raises:
            PermissionDenied: The token may not erase the data of this owner.
        """
        query = {"sessions": "true"} if sessions else {}
        found = await self._send("erase_memories", owner, query=query)
        return int(found["memories"])

    async def owner_page(self, *, after: str | None = None, limit: int = 100) -> MemoryOwnerPage:
        """Return a page of the owners, each with the number of current memories. Requires the scope admin."""
        query = {"after": after, "limit": limit}
        request = RemoteRequest(operation="get_memory_owners", agent=self.agent, query=_without_none(query))
        page = await self._link.requests.send(request)
        owners = [(Sender(each["owner"], each["owner_kind"]), each["memories"]) for each in page["items"]]
        return MemoryOwnerPage(owners=tuple(owners), following=page["next"])

    async def _send(
        self,
        operation: Operation,
        owner: Sender | str,
        memory_id: str = "",
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str = "",
        is_done_if_missing: bool = False,
    ) -> Any:
        """Send a request about memories of an owner, and return the response as decoded JSON.

        `is_done_if_missing=True`: on a retry, a missing memory proves that an earlier try succeeded.
        """
        sender = owner if isinstance(owner, Sender) else Sender.named(owner)
        request = RemoteRequest(
            operation=operation,
            agent=self.agent,
            part=memory_id,
            query=_without_none({**(query or {}), "owner": sender.name, "owner_kind": sender.kind}),
            body=body,
            key=key,
        )
        return await self._link.requests.send(request, done_by=("not-found",) if is_done_if_missing else ())


def _without_none(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def _kind_of(memory_filter: MemoryFilter) -> str | None:
    """Return the kind of memories that a filter selects; None for all kinds.

    Raises:
        ConfigurationError: The filter has other conditions than one kind and creation times.
    """
    kinds = tuple(memory_filter.kinds)
    if len(kinds) > 1 or memory_filter != MemoryFilter(
        kinds=memory_filter.kinds, since=memory_filter.since, until=memory_filter.until
    ):
        raise ConfigurationError(
            "filters= of browse() must have only one kind, since= and until=: a remote agent supports no other filter"
        )
    return kinds[0] if kinds else None


def _to_memory(item: Mapping[str, Any]) -> MemoryRecord:
    """Convert the JSON of a memory to a `MemoryRecord`."""
    return MemoryRecord(
        **{name: item[name] for name in _SAME},
        owner=Sender(item["owner"], item["owner_kind"]),
        created_at=to_seconds(item["created_at"]),
        last_used=to_seconds(item["last_used_at"]),
        valid_from=None if item["valid_from"] is None else to_seconds(item["valid_from"]),
        valid_until=None if item["valid_until"] is None else to_seconds(item["valid_until"]),
    )
