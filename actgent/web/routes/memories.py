"""Endpoints of long-term memories: list, search, show, correct and forget the memories of an owner."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, get_args

from starlette.responses import Response

from actgent.journal.session_list_queries import is_internal
from actgent.journal.session_search_by_owner import root_sessions_of
from actgent.memory.longterm.long_term_memory import LongTermMemory
from actgent.memory.longterm.memory_records import (
    MAX_TEXT_CHARACTERS,
    MemoryFilter,
    MemoryRecord,
    memory_label,
    metadata_of,
)
from actgent.messages import Sender, SenderKind
from actgent.runtime.waits_between_sessions import sources_of_caller
from actgent.web import json_response_types
from actgent.web.problem_documents import Problem, missing

from .common_request_schemas import AFTER, DATE, LIMIT, date_in
from .endpoints import ANY_NODE, IDEMPOTENCY_KEY, JSON, Endpoint, HTTPCall
from .json_serializers import to_date

_OWNER: Mapping[str, Any] = {
    "owner": {
        "type": "string",
        "minLength": 1,
        "description": "Owner of the memories; default: the owner of the token. Another owner requires the scope admin.",
    },
    "owner_kind": {
        "type": "string",
        "enum": list(get_args(SenderKind)),
        "description": "Kind of the owner; default `user`.",
    },
}
_CHANGES: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT_CHARACTERS},
        "kind": {"type": "string", "minLength": 1, "maxLength": 200, "examples": ["fact"]},
        "importance": {"type": "number", "minimum": 0, "maximum": 1},
        "is_kept": {"type": "boolean", "description": "True protects the memory from eviction."},
        "valid_until": {
            **DATE,
            "type": ["string", "null"],
            "description": "Time from which the memory is no longer valid; null has no end.",
            "examples": ["2026-11-27T09:00:00Z"],
        },
    },
    "additionalProperties": False,
    "minProperties": 1,
    "examples": [{"text": "Ada lives in Paris"}],
}


async def get_memories(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.MemoryDocument]]:
    """List the current long-term memories of an owner, the newest first. With `q`, return one page with the best matches.

    The request does not count as a use of the memories. Memories that are not valid now are included.
    """
    query = call.query
    async with _open_memory(call) as memories:
        page = await memories.browse(
            query.get("q", ""),
            owner=_owner_in(call),
            filters=MemoryFilter(
                kinds=[query["kind"]] if query.get("kind") else [],
                since=date_in(query, "since"),
                until=date_in(query, "until"),
            ),
            after=query.get("after"),
            limit=min(query.get("limit", 100), call.gateway.limits.page),
        )
    return JSON({"items": [_of_memory(each) for each in page.memories], "next": page.following})


async def get_memory_owners(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.MemoryOwner]]:
    """List the owners that have long-term memories, each with the number of current memories."""
    query = call.query
    limit = min(query.get("limit", 100), call.gateway.limits.page)
    async with _open_memory(call) as memories:
        page = await memories.owner_page(after=query.get("after"), limit=limit)
    items: list[json_response_types.MemoryOwner] = [
        {"owner": owner.name, "owner_kind": owner.kind, "memories": count} for owner, count in page.owners
    ]
    return JSON({"items": items, "next": page.following})


async def get_memory(call: HTTPCall) -> JSON[json_response_types.MemoryVersions]:
    """Get all versions of a long-term memory, and its links to other memories. The path has the id of any version."""
    owner, memory_id = _owner_in(call), call.path["memory"]
    async with _open_memory(call) as memories:
        versions = await memories.history(memory_id, owner=owner)
        if versions[-1].owner != owner:  # a shared memory of another owner
            raise missing()
        links = await memories.associations(versions[-1].id, owner=owner)
    items: list[json_response_types.MemoryLink] = [
        {"id": each.id, "relation": each.relation, "is_from_here": each.is_from_here} for each in links
    ]
    return JSON({"versions": [_of_memory(each) for each in versions], "links": items})


async def update_memory(call: HTTPCall) -> JSON[json_response_types.MemoryDocument]:
    """Store a changed version of a long-term memory, and return this version. Earlier versions stay in the memory's history.

    The status is 409 if another request has already replaced the memory. `replaced_by` of the problem has the id of the
    newer version.
    """
    changes = dict(call.body)
    if changes.get("valid_until") is not None:
        changes["valid_until"] = date_in(changes, "valid_until")
    key = f"http/{call.idempotency_key}" if call.idempotency_key else ""
    owner, memory_id = _owner_in(call), call.path["memory"]
    async with _open_memory(call) as memories:
        if sources := sources_of_caller():
            changes |= metadata_of(sources, await memories.get(memory_id, owner=owner))
        made = await memories.update(memory_id, owner=owner, key=key, **changes)
    return JSON(_of_memory(made))


async def forget_memory(call: HTTPCall) -> Response:
    """Delete a long-term memory with all its versions, vectors and links."""
    async with _open_memory(call) as memories:
        if not await memories.forget(call.path["memory"], owner=_owner_in(call)):
            raise missing()
    return Response(status_code=204)


async def erase_memories(call: HTTPCall) -> JSON[json_response_types.Erasure]:
    """Erase all data of an owner in an agent's long-term memory: memories, versions, vectors, links and keys.

    With `sessions=true`, the owner's sessions of all agents are closed and erased first, with their child sessions,
    because an agent could store their content again. This requires the scope admin.
    """
    if "owner" not in call.query:
        raise Problem("invalid", "the query parameter owner= must name the owner whose memories are erased")
    owner, with_sessions = _owner_in(call), call.query.get("sessions") == "true"
    if with_sessions and not call.caller.is_admin:
        raise Problem("forbidden", "sessions=true requires the scope `admin`: use a token with this scope")
    access, count = call.gateway.access, 0
    async with _open_memory(call) as memories:
        if with_sessions:
            for key in await root_sessions_of(access.journal, owner):
                if not is_internal(key):
                    await access.runtime.delete_session(key.session_id, agent=key.agent)
                    count += 1
        erased = await memories.erase(owner)
    return JSON({"memories": erased, "sessions": count})


def _open_memory(call: HTTPCall) -> AbstractAsyncContextManager[LongTermMemory]:
    """Return a context manager that opens the long-term memory of the agent whose name is in the path.

    Raises:
        Problem: No agent of this name is running, or it has no long-term memory.
    """
    name, access = call.path["a"], call.gateway.access
    access.known_opener(name)
    agent = access.runtime.agents.agent(name)
    memories = None if agent is None else agent.long_term_memory
    if not isinstance(memories, LongTermMemory):
        raise Problem("not-found", "the agent in the path has no long-term memory")
    return memories


def _owner_in(call: HTTPCall) -> Sender:
    """Return the owner whose memories the request reads or changes.

    Raises:
        Problem: The query names another owner than the caller's owner, and the caller lacks the scope `admin`.
    """
    caller, query = call.caller, call.query
    owner = Sender(query.get("owner", caller.owner), query.get("owner_kind", "user"))
    if not caller.is_admin and owner != Sender(caller.owner):
        raise Problem(
            "forbidden",
            "owner= requires the scope `admin`: without it, a token can access only the memories of its owner",
        )
    return owner


def _of_memory(memory: MemoryRecord) -> json_response_types.MemoryDocument:
    label = memory_label(memory)
    return {
        "id": memory.id,
        "text": memory.text,
        "kind": memory.kind,
        "owner": memory.owner.name,
        "owner_kind": memory.owner.kind,
        "sources": sorted(label.sources),
        "readers": None if label.readers is None else sorted(label.readers),
        "importance": memory.importance,
        "is_kept": memory.is_kept,
        "is_shared": memory.is_shared,
        "agent": memory.agent,
        "session_id": memory.session_id,
        "message_id": memory.message_id,
        "created_at": _to_date(memory.created_at),
        "last_used_at": _to_date(memory.last_used),
        "uses": memory.uses,
        "valid_from": _to_date(memory.valid_from),
        "valid_until": _to_date(memory.valid_until),
        "metadata": dict(memory.metadata),
        "replaces": memory.replaces,
        "replaced_by": memory.replaced_by,
    }


def _to_date(at: float | None) -> str | None:
    """Convert a Unix time in seconds to a date text (RFC 3339); None if the time is None or out of range."""
    try:
        return None if at is None else to_date(at)
    except (OverflowError, ValueError, OSError):
        return None


ENDPOINTS = (
    Endpoint(
        verb="GET",
        path="/agents/{a}/memories",
        answer=get_memories,
        scope="read",
        query={
            "q": {"type": "string", "description": "Text to search for."},
            "kind": {"type": "string", "description": "Only memories of this kind."},
            "since": DATE,
            "until": DATE,
            **_OWNER,
            "after": AFTER,
            "limit": LIMIT,
        },
        forwarding=ANY_NODE,
    ),
    Endpoint(
        verb="DELETE",
        path="/agents/{a}/memories",
        answer=erase_memories,
        scope="chat",
        query={
            **_OWNER,
            "owner": {**_OWNER["owner"], "description": "Owner whose memories are erased. It must be given."},
            "sessions": {
                "type": "string",
                "enum": ["true"],
                "description": "Also erase the owner's sessions; requires the scope admin.",
            },
        },
        forwarding=ANY_NODE,
    ),
    Endpoint(
        verb="GET",
        path="/agents/{a}/memory-owners",
        answer=get_memory_owners,
        scope="admin",
        query={"after": AFTER, "limit": LIMIT},
        forwarding=ANY_NODE,
    ),
    Endpoint(
        verb="GET",
        path="/agents/{a}/memories/{memory}",
        answer=get_memory,
        scope="read",
        query=_OWNER,
        forwarding=ANY_NODE,
    ),
    Endpoint(
        verb="PATCH",
        path="/agents/{a}/memories/{memory}",
        answer=update_memory,
        scope="chat",
        query=_OWNER,
        body=_CHANGES,
        headers={
            IDEMPOTENCY_KEY: "A repeated key changes the memory once, and returns the result of the first request."
        },
        forwarding=ANY_NODE,
    ),
    Endpoint(
        verb="DELETE",
        path="/agents/{a}/memories/{memory}",
        answer=forget_memory,
        scope="chat",
        query=_OWNER,
        statuses=(204,),
        forwarding=ANY_NODE,
    ),
)
