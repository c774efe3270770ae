"""`actgent memory`: what is remembered of an owner, to be read, corrected, taken along and erased."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from actgent.cli.terminal import Terminal, one_line, printable
from actgent.errors import ConfigurationError
from actgent.errors.printable import counted
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.journal.records import Opened
from actgent.memory.longterm import Memories, MemoryFilter, MemoryUnit
from actgent.messages import Sender

from .journal import opened as opened_journal

PAGE = 500


def memories_at(place: str) -> Memories:
    """The memories of an address; the path of their file will do.

    Raises:
        ConfigurationError: there is no such file.
    """
    name = place.removeprefix("sqlite:///")
    if "://" in name:
        return Memories(place)
    if not Path(name).is_file():
        raise ConfigurationError(
            f"no such file: {name} (expected a file of memories or postgres://HOST/DATABASE)"
        )
    return Memories(f"sqlite:///{name}")


async def list_memories(place: str, terminal: Terminal, *, owner: str | None, kind: str | None) -> int:
    """List the memories of an owner; without one, the owners."""
    async with memories_at(place) as memories:
        if owner is None:
            for who, count in await memories.owners():
                terminal.line(f"{one_line(_named(who), 60)}  {count:,}")
            return 0
        wanted = MemoryFilter(kinds=[kind] if kind else [])
        after: MemoryUnit | None = None
        while page := await memories.page(owner=_owner(owner), wanted=wanted, after=after, limit=PAGE):
            for each in page:
                terminal.line(
                    f"{each.id}  {_day(each.created_at)}  {one_line(each.kind, 20)}  {one_line(each.text, 200)}"
                )
            after = page[-1]
    return 0


async def show_memory(place: str, memory_id: str, terminal: Terminal, *, owner: str) -> int:
    """Show one memory with its history and its links."""
    who = _owner(owner)
    async with memories_at(place) as memories:
        for each in await memories.history(memory_id, owner=who):
            state = f"replaced by {each.replaced_by}" if each.replaced_by else "what is known now"
            terminal.line(f"{each.id}  {_day(each.created_at)}  {state}", style="bold")
            terminal.line(printable(each.text))
            for name, value in _fields(each):
                terminal.line(f"  {name}: {one_line(value, 200)}")
        for link in await memories.associations(memory_id, owner=who):
            arrow = "->" if link.is_from_here else "<-"
            terminal.line(f"  {arrow} {one_line(link.relation, 60)} {link.id}")
    return 0


async def correct_memory(place: str, memory_id: str, text: str, terminal: Terminal, *, owner: str) -> int:
    """Put a corrected memory in the place of one."""
    async with memories_at(place) as memories:
        made = await memories.update(memory_id, text, owner=_owner(owner))
    terminal.line(f"{made.id} stands in the place of {memory_id}, which stays as its history")
    return 0


async def forget_memories(
    place: str, ids: Iterable[str], terminal: Terminal, *, owner: str, all_of: bool, journal: str | None
) -> int:
    """Forget memories, or erase all that is kept of an owner, in a journal, too."""
    who, named = _owner(owner), tuple(ids)
    if bool(named) is all_of or (journal is not None and not all_of):
        raise ConfigurationError(
            "say which: ids of memories, or --all for everything of the owner; --journal goes with --all"
        )
    async with memories_at(place) as memories:
        if named:
            count = await memories.forget(*named, owner=who)
            terminal.line(f"forgotten: {count} of {len(named)}")
            return 0 if count == len(named) else 1
        if journal is not None:  # first: a session that is left could remember again
            terminal.line(f"sessions erased: {await _erase_sessions(journal, who)}")
        terminal.line(f"memories erased: {await memories.erase(who)}")
    return 0


async def _erase_sessions(place: str, owner: Sender) -> int:
    """Erase the sessions of an owner with all below them, and their summaries and snapshots; returns their number."""
    async with opened_journal(place) as journal:
        found = await journal.sessions()
        roots = {each.key for each in found if each.owner == owner.name and each.parent_id is None}
        own = {key for key in roots if await _is_of(journal, key, owner)}
        doomed = [each for each in found if each.key in own or each.root in own]
        for each in doomed:
            await journal.delete(each.session_id, agent=each.agent)
    return len(doomed)


async def _is_of(journal: Journal, key: SessionKey, owner: Sender) -> bool:
    """Return True if a session is this owner's: lists know names alone, and not that an agent may be called like a person."""
    (first, *_) = await journal.read(key.session_id, agent=key.agent, limit=1)
    return isinstance(first, Opened) and first.owner == owner


async def export_memories(place: str, terminal: Terminal, *, owner: str) -> int:
    """Write all that is remembered of an owner, history and links too, as lines of JSON."""
    who = _owner(owner)
    async with memories_at(place) as memories:
        for each in await memories.export(who):
            links = [] if each.replaced_by else await memories.associations(each.id, owner=who)
            row = attrs.asdict(each) | {"links": [attrs.asdict(link) for link in links]}
            terminal.raw(json.dumps(row, ensure_ascii=False))
    return 0


def _owner(owner: str) -> Sender:
    """The owner of a name, as sessions read it; `agent:cook` is the agent of that name."""
    kind, colon, name = owner.partition(":")
    return Sender(name, "agent") if colon and kind == "agent" else Sender.named(owner)


def _named(owner: Sender) -> str:
    return owner.name if owner.kind == "user" else f"{owner.kind}:{owner.name}"


def _day(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="minutes")[:16]
    except (OverflowError, ValueError, OSError):  # of a clock that was far off
        return "unknown"


def _fields(memory: MemoryUnit) -> Iterable[tuple[str, Any]]:
    """Return what there is to be said of a memory besides its text."""
    yield "kind", memory.kind
    yield "importance", memory.importance
    said = {"agent": memory.agent, "session": memory.session_id, "message": memory.message_id}
    yield from ((name, value) for name, value in said.items() if value)
    for name, at in (("valid from", memory.valid_from), ("valid until", memory.valid_until)):
        if at is not None:
            yield name, _day(at)
    yield from (
        (name, True) for name, is_so in (("kept", memory.is_kept), ("shared", memory.is_shared)) if is_so
    )
    yield "recalled", counted(memory.uses, "time")
    yield from memory.metadata.items()
