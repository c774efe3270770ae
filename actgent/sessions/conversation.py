"""Messages of a session, the memory view that models see, and the ids of tool calls.

If a session was loaded from a snapshot, only its newest messages are in memory. Older ones are read from the
journal.
"""

import hashlib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.information_flow_labels import Label, label_of, without_source
from actgent.journal.record_types import AgentMessageRecord
from actgent.limits_and_schedules.id_and_number_validation import at_least_one
from actgent.memory.memory_interface import ModelView
from actgent.messages import NO_USAGE, Message, Part, Text, ToolCall, ToolResult, ToolSpec, Usage, new_id
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.untrusted_text_delimiters import join_origins

from .recent_records_without_journal import Entry, RecentRecords

MAX_DESCRIPTION_CHARS = 2000
"""Maximum length of a session's description in characters. The first message has the complete text."""
DIGEST_BYTES = 8
"""Size in bytes of each digest of a call id in a snapshot."""


class EarlierMessages(typing.Protocol):
    """Interface that reads older messages of a session from the journal, by position from 0."""

    async def read(self, first: int, end: int) -> Sequence[Message]: ...
    def read_blocking(self, first: int, end: int) -> Sequence[Message]: ...


@attrs.frozen(repr=False)
class MessagePage(FieldRepr):
    """A page of a session's messages, in order."""

    messages: tuple[Message, ...]
    """Messages of the page, oldest first."""
    first: int
    """Position of the first message of the page, from 0. Pass it as `before` to get the previous page."""
    total: int
    """Number of messages of the whole session."""
    last: int = -1
    """Position of the last message of the page; -1 if the page is empty."""

    def __attrs_post_init__(self) -> None:
        if self.last < 0 and self.messages:
            object.__setattr__(self, "last", self.first + len(self.messages) - 1)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class RecordedMessages(Sequence[Message]):
    """Sequence of all messages of a session. The oldest messages may be only in the journal.

    Access by index to such a message loads all messages.
    """

    def __init__(
        self, missing: int, newest: Iterable[Message], earlier: EarlierMessages | None = None
    ) -> None:
        self.missing = missing
        """Number of messages, from the oldest, that are not in memory."""
        self._held = list(newest)
        self._earlier = earlier

    def append(self, message: Message) -> None:
        """Append a new message to those that are in memory."""
        self._held.append(message)

    def trim(self, count: int) -> None:
        """Keep only the `count` newest messages in memory. The journal has the others."""
        excess = max(0, len(self._held) - count)
        self.missing += excess
        del self._held[:excess]

    async def read(self, first: int, end: int) -> tuple[Message, ...]:
        """Return the messages from position `first` to `end - 1`.

        Messages that are not in memory are read from the journal, and do not stay in memory.
        """
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

    def _from(self, position: int) -> list[Message]:
        """Return all messages in memory. Load the older messages first if the message at `position` is not in memory.

        Loading blocks the event loop. The index of a message in the result is its position minus `missing`.
        """
        if position < self.missing:
            if self._earlier is None:
                raise LookupError(f"message {position} of the session is not in memory")
            self._held = [*self._earlier.read_blocking(0, self.missing), *self._held]
            self.missing = 0
        return self._held


@attrs.define(eq=False, repr=False)
class OfferedTools(FieldRepr):
    """Tools that the model of a session receives with each request. They never change, so the provider can cache the prompt."""

    specs: tuple[ToolSpec, ...]
    """Descriptions of the tools."""
    version: int = -1
    """Version of the agent's tools that the last notice to the model described; -1 before the first notice."""


@attrs.define(eq=False, repr=False)
class SessionConversation(FieldRepr):
    """Messages of a session in order, with usage, memory view and call ids."""

    _view: ModelView
    messages: list[Message] | RecordedMessages = attrs.field(factory=list)
    """All messages of the session."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the session."""
    unwritten: Usage | None = None
    """Token usage of child sessions that no record of this session contains yet; None if there is none."""
    system: str | None = None
    """System prompt of the session; None uses the system prompt of the agent."""
    description: str = ""
    """Beginning of the session's first message; empty if the session was created without one."""
    open_calls: tuple[ToolCall, ...] = ()
    """Tool calls of the last answer that have no results."""
    offered: OfferedTools | None = None
    """Tools that the model of this session receives; None if the agent's tools never change."""
    former_ids: bytes = b""
    """Digests of the call ids from before the loaded snapshot: `DIGEST_BYTES` bytes each, sorted."""
    origin: str = ""
    """Sources of all untrusted text in the conversation, such as `page, memories`; empty if there is none."""
    via: str = ""
    """Untrusted sources that influenced the conversation although it does not contain their text; empty if there are none.

    For example, the sources of a calling session.
    """
    unrecorded: str = ""
    """Untrusted sources of other sessions' answers that no record of this session contains yet; empty if there are none."""
    revealed: str = ""
    """Untrusted sources of withheld values that replaced references in replies. The model has not read these values."""
    last_message: Message | None = None
    """Last message that is not a notice (system message about a change); None if there is none."""
    last_answer: AgentMessageRecord | None = None
    """Record of the model's last answer, if it was read from the journal; else None. Its token usage shows the size of the request."""
    _call_ids: set[str] | None = None
    _notices: dict[str, str] | None = None
    """Mark of the last notice from each source; None without notices. See `notices`."""
    _history: tuple[Message, ...] = ()
    """Cached result of `history`."""
    recent: RecentRecords | None = None
    """Newest records of the session, for observations; None if a journal stores the session."""
    _unseen: Message | None = None
    """Last answer, if it is not yet in the memory view; else None. It is added before the next model call."""

    def describe(self, message: Message) -> None:
        """Set the description of the session to the beginning of a message's text."""
        self.description = message.text[:MAX_DESCRIPTION_CHARS]

    def add_child_usage(self, usage: Usage) -> None:
        """Add the usage of a child session, or of another call made for this session.

        The usage is recorded with the next answer or the next tool results.
        """
        self.usage = self.usage.with_child(usage)
        self.unwritten = usage if self.unwritten is None else self.unwritten + usage

    def take_unwritten(self) -> Usage:
        """Return the token usage of child sessions that no journal record contains, and reset it. The caller must record it."""
        if self.unwritten is None:
            return NO_USAGE
        taken, self.unwritten = Usage(children=self.unwritten), None
        return taken

    def append(self, message: Message, *, answered: bool = False) -> None:
        """Append a message to the history and the memory view.

        Add the untrusted sources of the message to the conversation's label.

        An answer is added to the view only when the next message is appended. `answered` is True for a message that a turn answers.
        """
        self.messages.append(message)
        kind = message.sender.kind
        if kind != "system" or not message.is_note:
            self.last_message = message
        if (recent := self.recent) is not None:
            recent.append(message)
            if recent.readers:
                recent.wake()
        if message.origin or message.via or kind == "tool":
            self.add_origins((message,))
        if self._unseen is not None:
            self._show(self._unseen)
        if answered:
            self._view.add(message, answered=True)
            return
        if kind == "assistant":
            self._unseen = message
            return
        self._view.add(message)
        if kind == "system" and message.is_note:
            self._notices = {**(self._notices or {}), message.sender.name: message.causation_id or ""}

    def note(self, entry: Entry) -> None:
        """Add an entry to the recent records of a session without a journal, from which observers read. Otherwise do nothing."""
        recent = self.recent
        if recent is not None:
            recent.append(entry)
            if recent.readers or len(recent) > recent.TRIM_AT:
                recent.note_growth()

    def add_origin(self, origin: str) -> None:
        """Add untrusted sources to the label of the conversation, because the model reads their text, e.g. in a prompt or a memory."""
        self.origin = join_origins(self.origin, origin)

    def add_revealed_sources(self, sources: str) -> None:
        """Add the untrusted sources of withheld values that a reply contains. The user reads these values, the model does not."""
        self.revealed = join_origins(self.revealed, sources)

    def add_via(self, sources: str) -> None:
        """Add untrusted sources to the label of the conversation that influenced it without adding text."""
        self.via = join_origins(self.via, sources)

    def add_unrecorded_via(self, sources: str) -> None:
        """Add untrusted sources that influenced the conversation and that no record contains yet, e.g. of another session's answer."""
        self.add_via(sources)
        self.unrecorded = join_origins(self.unrecorded, sources)

    def remove_source(self, source: str) -> None:
        """Remove an untrusted source from the label of the conversation, because a person trusts the text that came from it.

        The messages still name the source. If a new message with this source is appended, the label contains the source again.
        """
        self.origin = without_source(self.origin, source)
        self.via = without_source(self.via, source)
        self.unrecorded = without_source(self.unrecorded, source)

    @property
    def sources(self) -> str:
        """Names of all untrusted sources on which the next request to the model depends; empty if there are none."""
        return join_origins(self.origin, self.via)

    @property
    def label(self) -> Label:
        """Label (the set of untrusted sources) of the next request to the model.

        Only `remove_source` removes a source from the label.
        """
        return label_of(self.origin, self.via)

    def add_origins(self, messages: Iterable[Message]) -> None:
        """Add the untrusted sources of messages to the label of the conversation."""
        for message in messages:
            if message.origin:
                self.add_origin(message.origin)
            if message.via:
                self.add_via(message.via)
            for part in message.parts:
                if isinstance(part, ToolResult):
                    if part.origin:
                        self.add_origin(part.origin)
                    if part.via:
                        self.add_via(part.via)

    def current_view(self) -> ModelView:
        """Return the memory view, which selects the messages for the model, after adding the newest answer to it."""
        if self._unseen is not None:
            self._show(self._unseen)
        return self._view

    def replace_view(self, view: ModelView) -> None:
        """Replace the memory view by `view`, which must already contain all messages of the session."""
        self._view, self._unseen = view, None

    def replace_messages(self, messages: RecordedMessages) -> None:
        """Replace all messages, after the session was loaded from a snapshot."""
        self.messages = messages
        self.last_message = next((each for each in reversed(messages) if not each.is_note), None)

    def _show(self, unseen: Message) -> None:
        self._unseen = None
        self._view.add(unseen)

    @property
    def history(self) -> tuple[Message, ...]:
        """All messages of the session as a tuple, which is cached until the next message is appended."""
        if len(self._history) != len(self.messages):
            self._history = tuple(self.messages)
        return self._history

    async def read(
        self, *, limit: int = 100, before: int | None = None, after: int | None = None
    ) -> MessagePage:
        """Return a page of at most `limit` messages: the newest, or those before or after a position. See `Session.messages`."""
        total = len(self.messages)
        first, end = _page_bounds(total, limit, before, after)
        if isinstance(self.messages, RecordedMessages):
            found = await self.messages.read(first, end)
        else:
            await trio.lowlevel.checkpoint()
            found = tuple(self.messages[first:end])
        return MessagePage(found, first, total)

    @property
    def notices(self) -> Mapping[str, str]:
        """Mark of the last notice (system message to the model) from each source, by source name.

        A mark identifies the change that the notice described.
        """
        return self._notices or {}

    def restore_notices(self, notices: Mapping[str, str]) -> None:
        """Set the marks of the last notices, as read from a snapshot."""
        self._notices = dict(notices) or None

    def last_notice(self, source: str) -> str | None:
        """Return the mark of the last notice from `source`, such as `toolsets`; None without a notice."""
        return None if self._notices is None else self._notices.get(source)

    def reserve_call_ids(self, ids: Iterable[str]) -> None:
        """Mark call ids as used, so that new calls get other ids."""
        for call_id in ids:
            if self._call_ids is None:
                self._call_ids = set()
            self._call_ids.add(call_id)

    def all_call_ids(self) -> bytes:
        """Return the digests of all used call ids: `DIGEST_BYTES` bytes each, sorted."""
        former = self.former_ids
        digests = {former[at : at + DIGEST_BYTES] for at in range(0, len(former), DIGEST_BYTES)}
        digests.update(map(_digest, self._call_ids or ()))
        return b"".join(sorted(digests))

    def with_unique_call_ids(self, parts: tuple[Part, ...]) -> tuple[tuple[Part, ...], tuple[ToolCall, ...]]:
        """Return the parts of an answer with call ids that are unique in the session, and the calls among the parts."""
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
        """Return the tool call with an id that is unique in the session.

        This is the provider's id if it is unused, else `otherwise`, or a new id if `otherwise` is empty.
        """
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
        """Return True if a call id was used before the snapshot from which the session was loaded."""
        wanted, ids = _digest(call_id), self.former_ids
        low, high = 0, len(ids) // DIGEST_BYTES
        while low < high:
            middle = (low + high) // 2
            found = ids[middle * DIGEST_BYTES : (middle + 1) * DIGEST_BYTES]
            if found == wanted:
                return True
            low, high = (middle + 1, high) if found < wanted else (low, middle)
        return False


def _digest(call_id: str) -> bytes:
    """Return the digest of a call id, `DIGEST_BYTES` bytes."""
    return hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _page_bounds(total: int, limit: int, before: int | None, after: int | None) -> tuple[int, int]:
    """Return the first position of a page, and the position after its last message, in a history of `total` messages.

    `limit`, `before` and `after` select the page as in `SessionConversation.read`.
    """
    at_least_one("limit", limit)
    if before is not None and after is not None:
        raise ConfigurationError("before= and after= cannot both be positions: pass one of them")
    if after is not None:
        first = min(max(0, after + 1), total)
        return first, min(first + limit, total)
    end = total if before is None else min(max(0, before), total)
    return max(0, end - limit), end
