"""A session's conversation: its messages, what a model is shown of them, and the ids of its calls.

The messages of a session that was opened from a snapshot: the newest are here, the others stand in its journal.
"""

import hashlib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

import attrs
import trio

from actgent.control.arguments import at_least_one
from actgent.errors import ConfigurationError
from actgent.journal.records import Said
from actgent.memory.base import ModelView
from actgent.messages import NO_USAGE, Message, Part, Text, ToolCall, ToolResult, ToolSpec, Usage, new_id
from actgent.support.outside_text import join_origins

from .recent_records import RecentRecords

MAX_DESCRIPTION = 2000
"""Characters of a description that are kept with the session; its first message has all of it."""
DIGEST = 8
"""Bytes that stand for the id of a call from before a snapshot."""


class EarlierMessages(typing.Protocol):
    """Messages of a session that stand in its journal, by their places from 0."""

    async def read(self, first: int, end: int) -> Sequence[Message]: ...
    def read_now(self, first: int, end: int) -> Sequence[Message]: ...


@attrs.frozen
class MessagePage:
    """Some messages of a session, in their order."""

    messages: tuple[Message, ...]
    first: int
    """The place of the first of them, from 0: what is `before` it is the page before."""
    total: int
    """The number that the session has."""
    last: int = -1
    """The place of the last of them; -1 where there is none."""

    def __attrs_post_init__(self) -> None:
        if self.last < 0 and self.messages:
            object.__setattr__(self, "last", self.first + len(self.messages) - 1)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class RecordedMessages(Sequence[Message]):
    """All messages of a session, of which the first may stand in its journal only; whoever looks there has all read, at once."""

    def __init__(self, missing: int, held: Iterable[Message], earlier: EarlierMessages | None = None) -> None:
        self.missing = missing
        """The number of the first that are not in memory."""
        self._held = list(held)
        self._earlier = earlier

    def append(self, message: Message) -> None:
        """Add the next one."""
        self._held.append(message)

    def forget(self, kept: int) -> None:
        """Keep so many of the newest in memory."""
        gone = max(0, len(self._held) - kept)
        self.missing += gone
        del self._held[:gone]

    async def read(self, first: int, end: int) -> tuple[Message, ...]:
        """Return those of these places; what is not in memory is read, and not kept."""
        await trio.lowlevel.checkpoint()
        missing, earlier = self.missing, self._earlier
        if first >= missing or earlier is None:
            return tuple(self[first:end])
        held = self._held[: max(0, end - missing)]
        return (*await earlier.read(first, min(end, missing)), *held)

    def __len__(self) -> int:
        return self.missing + len(self._held)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> list[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | list[Message]:
        places = range(len(self))[place]
        if isinstance(places, int):
            return self._from(places)[places - self.missing]
        if not places:
            return []
        held = self._from(min(places))
        return [held[each - self.missing] for each in places]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._from(0))

    def __reversed__(self) -> Iterator[Message]:
        missing = self.missing
        yield from reversed(self._held)
        if missing:
            yield from reversed(self._from(0)[:missing])

    def _from(self, place: int) -> list[Message]:
        """Return those that are in memory, of this place and all behind it."""
        if place < self.missing:
            if self._earlier is None:
                raise LookupError(f"message {place} is not in memory")
            self._held = [*self._earlier.read_now(0, self.missing), *self._held]
            self.missing = 0
        return self._held


@attrs.define(eq=False)
class OfferedTools:
    """Which tools a session's model is offered in every request, so that its prompt's beginning stays as it is."""

    specs: tuple[ToolSpec, ...]
    version: int = -1
    """That of the agent's tools when the model was last told of changes."""


@attrs.define(eq=False)
class SessionConversation:
    """All messages of a session, in their order, and what they came to."""

    _view: ModelView
    messages: list[Message] | RecordedMessages = attrs.field(factory=list)
    usage: Usage = NO_USAGE
    unwritten: Usage | None = None
    """Usage of the sessions below since the last record of this one; the next record has it."""
    system: str | None = None
    """The session's system prompt; None is the agent's."""
    description: str = ""
    """What the session was opened with, as `describe` keeps it; empty where nothing was said then."""
    open_calls: tuple[ToolCall, ...] = ()
    """Calls of the last answer that have no result yet."""
    offered: OfferedTools | None = None
    """None: the agent's tools never change."""
    keeps_recent: bool = False
    """True if no journal holds the session, so that its newest records stay in memory."""
    former_ids: bytes = b""
    """Digests of the ids of calls from before a snapshot, `DIGEST` bytes each, sorted."""
    origin: str = ""
    """The sources of all text from outside in the conversation, such as `page, memories`; empty if there is none."""
    last_answer: Said | None = None
    """The model's last answer, if it was read from the journal: its usage tells how long the request before it was."""
    _call_ids: set[str] | None = None
    _notices: dict[str, str] | None = None
    """The marks of the last notices, by their sources."""
    _history: tuple[Message, ...] = ()
    """The messages when they were last asked for as a whole."""
    recent: RecentRecords | None = None
    """The newest records, for observations; None in a session that a journal holds, and before the first message."""
    _unseen: Message | None = None
    """The last answer as long as the view does not have it: many a session's last one is never shown to a model."""

    def describe(self, message: Message) -> None:
        """Keep the beginning of the message that the session was opened with."""
        self.description = message.text[:MAX_DESCRIPTION]

    def add_child_usage(self, usage: Usage) -> None:
        """Count what a session took that works for this one."""
        self.usage = self.usage.with_child(usage)
        self.unwritten = usage if self.unwritten is None else self.unwritten + usage

    def take_unwritten(self) -> Usage:
        """Return what sessions below took and no record has yet; the caller writes it."""
        if self.unwritten is None:
            return NO_USAGE
        taken, self.unwritten = Usage(children=self.unwritten), None
        return taken

    def append(self, message: Message, *, answered: bool = False) -> None:
        """Add the next message; `answered`: its turn has had its answer, so it is not to be noticed."""
        self.messages.append(message)
        if self.keeps_recent:
            if self.recent is None:
                self.recent = RecentRecords()
            self.recent.add(message)
        if message.origin or message.sender.kind == "tool":
            self.know_origins((message,))
        if self._unseen is not None:
            self._show(self._unseen)
        if message.sender.kind == "assistant" and not answered:
            self._unseen = message
            return
        self._view.add(message, answered=answered)
        if not answered and message.sender.kind == "system" and message.is_note:
            self._notices = {**(self._notices or {}), message.sender.name: message.causation_id or ""}

    def add_origin(self, origin: str) -> None:
        """Note that the model is shown text from this source, which stands in no message."""
        self.origin = join_origins(self.origin, origin)

    def know_origins(self, messages: Iterable[Message]) -> None:
        """Add the origins of messages to those of the conversation."""
        for message in messages:
            self.origin = join_origins(self.origin, message.origin)
            for part in message.parts:
                if isinstance(part, ToolResult) and part.origin:
                    self.origin = join_origins(self.origin, part.origin)

    def open_recent(self) -> RecentRecords | None:
        """Return the newest records, for observations; None if a journal holds the session."""
        if self.recent is None and self.keeps_recent:
            self.recent = RecentRecords()
        return self.recent

    @property
    def view(self) -> ModelView:
        """What a model is shown of them."""
        if self._unseen is not None:
            self._show(self._unseen)
        return self._view

    @view.setter
    def view(self, view: ModelView) -> None:
        self._view, self._unseen = view, None

    def _show(self, unseen: Message) -> None:
        self._unseen = None
        self._view.add(unseen)

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages as a whole; copied once for all who ask before they grow."""
        if len(self._history) != len(self.messages):
            self._history = tuple(self.messages)
        return self._history

    async def read(
        self, *, limit: int = 100, before: int | None = None, after: int | None = None
    ) -> MessagePage:
        """Read the newest messages, those before a place or those behind one; see `Session.messages`."""
        total = len(self.messages)
        first, end = _places(total, limit, before, after)
        if isinstance(self.messages, RecordedMessages):
            found = await self.messages.read(first, end)
        else:
            await trio.lowlevel.checkpoint()
            found = tuple(self.messages[first:end])
        return MessagePage(found, first, total)

    @property
    def last_message(self) -> Message | None:
        """The last message, ignoring notices."""
        for message in reversed(self.messages):
            if not message.is_note:
                return message
        return None

    @property
    def notices(self) -> Mapping[str, str]:
        """The marks of the last notices, by their sources."""
        return self._notices or {}

    def know_notices(self, notices: Mapping[str, str]) -> None:
        """Take over the marks of the last notices."""
        self._notices = dict(notices) or None

    def last_notice(self, source: str) -> str | None:
        """Return the mark of the last notice of a source; None if there is none."""
        return None if self._notices is None else self._notices.get(source)

    def reserve_call_ids(self, ids: Iterable[str]) -> None:
        """Mark ids of calls as taken."""
        for call_id in ids:
            if self._call_ids is None:
                self._call_ids = set()
            self._call_ids.add(call_id)

    def all_call_ids(self) -> bytes:
        """The digests of all ids of calls, `DIGEST` bytes each, sorted."""
        former = self.former_ids
        digests = {former[at : at + DIGEST] for at in range(0, len(former), DIGEST)}
        digests.update(map(_digest, self._call_ids or ()))
        return b"".join(sorted(digests))

    def with_own_calls(self, parts: tuple[Part, ...]) -> tuple[tuple[Part, ...], tuple[ToolCall, ...]]:
        """The parts of an answer, its calls under ids that no others of the session have; and these calls."""
        if len(parts) == 1 and type(parts[0]) is Text:  # the usual case
            return parts, ()
        changed: dict[int, Part] = {}
        calls: list[ToolCall] = []
        for place, part in enumerate(parts):
            if isinstance(part, ToolCall):
                call = self.assign_call_id(part)
                calls.append(call)
                if call is not part:
                    changed[place] = call
        if changed:
            parts = tuple([changed.get(place, part) for place, part in enumerate(parts)])
        return parts, tuple(calls)

    def assign_call_id(self, call: ToolCall, otherwise: str = "") -> ToolCall:
        """Give a call an id that no other call of the session has: its own if it is one, or else `otherwise`."""
        if self._call_ids is None:
            self._call_ids = set()
        theirs = call.provider_id if call.provider_id is not None else call.id
        is_free = (
            theirs and theirs not in self._call_ids and not (self.former_ids and self._is_former(theirs))
        )
        ours = theirs if is_free else otherwise or new_id()
        self._call_ids.add(ours)
        if ours == call.id:
            return call
        return ToolCall(
            call.name,
            call.arguments,
            ours,
            provider_id=call.provider_id,
            native=call.native,
            mapped=call.mapped,
        )

    def _is_former(self, call_id: str) -> bool:
        """Return True if a call from before the snapshot has this id."""
        wanted, ids = _digest(call_id), self.former_ids
        low, high = 0, len(ids) // DIGEST
        while low < high:
            middle = (low + high) // 2
            found = ids[middle * DIGEST : (middle + 1) * DIGEST]
            if found == wanted:
                return True
            low, high = (middle + 1, high) if found < wanted else (low, middle)
        return False


def _digest(call_id: str) -> bytes:
    return hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST).digest()


def _places(total: int, limit: int, before: int | None, after: int | None) -> tuple[int, int]:
    """The first place of a page, and the one behind its last."""
    at_least_one("limit", limit)
    if before is not None and after is not None:
        raise ConfigurationError("a page is before= a place or after= one, not both")
    if after is not None:
        first = min(max(0, after + 1), total)
        return first, min(first + limit, total)
    end = total if before is None else min(max(0, before), total)
    return max(0, end - limit), end
