"""`actgent memory`: list, show, correct, forget and export the long-term memories of an owner."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from actgent.cli.terminal_io import Terminal, one_line, printable
from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.journal.session_search_by_owner import root_sessions_of
from actgent.memory.longterm.long_term_memory import LongTermMemory
from actgent.memory.longterm.memory_records import MemoryFilter, MemoryRecord
from actgent.messages import Sender

from .journal_commands import open_for_writing

PAGE_SIZE = 500
"""Number of memories per read."""


def memories_at(location: str) -> LongTermMemory:
    """Open the long-term memory at a file path or URL.

    Raises:
        ConfigurationError: The memory file does not exist.
    """
    name = location.removeprefix("sqlite:///")
    if "://" in name:
        return LongTermMemory(location)
    if not Path(name).is_file():
        raise ConfigurationError(f"no such file: {name}; pass a file of memories or postgres://HOST/DATABASE")
    return LongTermMemory(f"sqlite:///{name}")


async def list_memories(location: str, terminal: Terminal, *, owner: str | None, kind: str | None) -> int:
    """Print the current memories of an owner. If `owner` is None, print all owners with the number of their memories."""
    async with memories_at(location) as memories:
        if owner is None:
            for found, count in await memories.owners():
                terminal.line(f"{one_line(_format_owner(found), 60)}  {count:,}")
            return 0
        filters = MemoryFilter(kinds=[kind] if kind else [])
        after: MemoryRecord | None = None
        while page := await memories.page(owner=_owner(owner), filters=filters, after=after, limit=PAGE_SIZE):
            for each in page:
                terminal.line(
                    f"{each.id}  {_format_time(each.created_at)}  {one_line(each.kind, 20)}  {one_line(each.text, 200)}"
                )
            after = page[-1]
    return 0


async def show_memory(location: str, memory_id: str, terminal: Terminal, *, owner: str) -> int:
    """Print one memory with its earlier versions, its source and its links."""
    owner_sender = _owner(owner)
    async with memories_at(location) as memories:
        for each in await memories.history(memory_id, owner=owner_sender):
            state = f"replaced by {each.replaced_by}" if each.replaced_by else "current"
            terminal.line(f"{each.id}  {_format_time(each.created_at)}  {state}", style="bold")
            terminal.line(printable(each.text))
            for name, value in _fields(each):
                terminal.line(f"  {name}: {one_line(value, 200)}")
        for link in await memories.associations(memory_id, owner=owner_sender):
            arrow = "->" if link.is_from_here else "<-"
            terminal.line(f"  {arrow} {one_line(link.relation, 60)} {link.id}")
    return 0


async def correct_memory(location: str, memory_id: str, text: str, terminal: Terminal, *, owner: str) -> int:
    """Replace the text of a memory, and print the id of the new version."""
    async with memories_at(location) as memories:
        corrected = await memories.update(memory_id, text, owner=_owner(owner))
    terminal.line(f"{corrected.id} replaces {memory_id}; the old text stays in the history")
    return 0


async def forget_memories(
    location: str, ids: Iterable[str], terminal: Terminal, *, owner: str, erase_all: bool, journal: str | None
) -> int:
    """Forget memories by id, or erase all data of an owner. Return the exit code: 1 if an id was not found, else 0.

    Args:
        location: Memory file or URL.
        ids: Ids of the memories to forget; empty if `erase_all` is True.
        terminal: Output of the command.
        owner: Name of the owner.
        erase_all: True to erase all data of the owner.
        journal: Journal whose sessions of the owner are also erased, if `erase_all` is True; None erases no sessions.

    Raises:
        ConfigurationError: Ids and `erase_all` are both given or both missing, or `journal` is given without `erase_all`.
    """
    owner_sender, memory_ids = _owner(owner), tuple(ids)
    if bool(memory_ids) is erase_all or (journal is not None and not erase_all):
        raise ConfigurationError(
            "pass either ids of memories, or --all to erase all data of the owner; --journal requires --all"
        )
    async with memories_at(location) as memories:
        if memory_ids:
            count = await memories.forget(*memory_ids, owner=owner_sender)
            terminal.line(f"forgotten: {count} of {len(memory_ids)}")
            return 0 if count == len(memory_ids) else 1
        if journal is not None:  # sessions first: an open session could store new memories
            terminal.line(f"sessions erased: {await _erase_sessions(journal, owner_sender)}")
        terminal.line(f"memories erased: {await memories.erase(owner_sender)}")
    return 0


async def _erase_sessions(location: str, owner: Sender) -> int:
    """Erase the sessions of an owner with their child sessions, summaries and snapshots. Return the number of erased sessions."""
    async with open_for_writing(location) as journal:
        own = set(await root_sessions_of(journal, owner))
        found = await journal.sessions()
        erased = [each for each in found if each.key in own or each.root in own]
        for each in erased:
            await journal.delete(each.session_id, agent=each.agent)
    return len(erased)


async def export_memories(location: str, terminal: Terminal, *, owner: str) -> int:
    """Print all memories of an owner, with history and links, as JSON lines."""
    owner_sender = _owner(owner)
    async with memories_at(location) as memories:
        for each in await memories.export(owner_sender):
            links = [] if each.replaced_by else await memories.associations(each.id, owner=owner_sender)
            row = attrs.asdict(each) | {"links": [attrs.asdict(link) for link in links]}
            terminal.json_line(json.dumps(row, ensure_ascii=False))
    return 0


def _owner(owner: str) -> Sender:
    """Parse the option `--owner`. `agent:cook` is the agent `cook`; a name without `agent:` is a user."""
    kind, colon, name = owner.partition(":")
    return Sender(name, "agent") if colon and kind == "agent" else Sender.named(owner)


def _format_owner(owner: Sender) -> str:
    return owner.name if owner.kind == "user" else f"{owner.kind}:{owner.name}"


def _format_time(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="minutes")[:16]
    except (OverflowError, ValueError, OSError):  # the timestamp is out of range
        return "unknown"


def _fields(memory: MemoryRecord) -> Iterable[tuple[str, Any]]:
    """Yield label and value of each attribute of a memory, except its text, for display."""
    yield "kind", memory.kind
    yield "importance", memory.importance
    sources = {"agent": memory.agent, "session": memory.session_id, "message": memory.message_id}
    yield from ((name, value) for name, value in sources.items() if value)
    for name, at in (("valid from", memory.valid_from), ("valid until", memory.valid_until)):
        if at is not None:
            yield name, _format_time(at)
    yield from (
        (name, True) for name, is_so in (("pinned", memory.is_kept), ("shared", memory.is_shared)) if is_so
    )
    yield "recalled", counted(memory.uses, "time")
    yield from memory.metadata.items()
