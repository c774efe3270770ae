"""Loading of a session from all its records, or from a snapshot and the later records. Both ways give the same session."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs
import trio

from actgent.errors import ConfigurationError, SessionNotFound
from actgent.journal.journal_interface import Journal, Snapshot
from actgent.journal.record_types import (
    WIRE,
    ActionFailureRecord,
    AgentMessageRecord,
    Record,
    SessionCreatedRecord,
    StateChangeRecord,
    StateRollbackRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.memory.memory_interface import Memory, ModelView
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import ChatMessage, Message, Sender, Usage
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.session_context import SessionContext
from actgent.support.attrs_class_repr import FieldRepr

from .record_replayer import RecordReplayer, RestoredSession, creation_record_of
from .snapshot import BEGINNING, RECENT, Mark, SessionSnapshot, decode_snapshot, restore_snapshot

SLICE = 1000
"""Number of records that are applied before the event loop gets a checkpoint."""
LARGE = 100_000
"""Size in bytes above which a snapshot is decoded in a worker thread."""


@attrs.frozen(repr=False)
class DecodedSnapshot(FieldRepr):
    """A decoded session snapshot, together with the memory view that was restored from it."""

    session_data: SessionSnapshot
    """Data of the session in the snapshot."""
    view: ModelView
    """Restored memory view, which selects the messages that models see."""
    records: int
    """Number of records that the snapshot covers."""


@attrs.frozen(repr=False)
class LoadedSession(FieldRepr):
    """A session as read from the journal: a snapshot, if there is one, and the records after it."""

    records: Sequence[Record] = ()
    """Records after the snapshot; all records without a snapshot."""
    snapshot: DecodedSnapshot | None = None
    """The decoded snapshot; None if all records were loaded."""

    @property
    def record_count(self) -> int:
        """Number of records of the session, including those in the snapshot."""
        return len(self.records) + (0 if self.snapshot is None else self.snapshot.records)

    @property
    def opened(self) -> SessionCreatedRecord | None:
        """Record that created the session; None if the session does not exist."""
        return (
            creation_record_of(self.records) if self.snapshot is None else self.snapshot.session_data.opened
        )


async def load_session(
    journal: Journal, key: SessionKey, memory: Memory, *, lookback: int | None
) -> LoadedSession:
    """Load a session from the journal, from its snapshot if the snapshot can be used.

    Args:
        journal: The journal.
        key: Key of the session.
        memory: Memory of the agent. If it cannot restore the snapshot's view, all records are loaded.
        lookback: Number of newest messages that the protocol reads; None if it may read all messages. Then all records are
            loaded.
    """
    if lookback is None or lookback > RECENT:
        return LoadedSession(await journal.load(key.session_id, agent=key.agent))
    tail = await journal.load_tail(key.session_id, agent=key.agent)
    if tail.snapshot is None:
        return LoadedSession(tail.records)
    snapshot = await decode_with_view(tail.snapshot, memory)
    if snapshot is None:
        return LoadedSession(await journal.load(key.session_id, agent=key.agent))
    return LoadedSession(tail.records, snapshot)


async def decode_with_view(stored: Snapshot, memory: Memory) -> DecodedSnapshot | None:
    """Decode a stored snapshot and restore the memory view in it. A large snapshot is decoded in a worker thread.

    Return None if this version of actgent or this memory cannot read the snapshot.
    """
    if len(stored.body) < LARGE:
        return _decode_with_view(stored, memory)
    return await trio.to_thread.run_sync(_decode_with_view, stored, memory)


def _decode_with_view(stored: Snapshot, memory: Memory) -> DecodedSnapshot | None:
    data = decode_snapshot(stored)
    view = None if data is None else memory.restore_view(data.view)
    return None if data is None or view is None else DecodedSnapshot(data, view, stored.records)


def apply_snapshot(
    reader: RecordReplayer, snapshot: DecodedSnapshot, journal: Journal, key: SessionKey
) -> None:
    """Initialize a new replayer from a decoded snapshot. The replayer can then continue with the records after the snapshot."""
    data, reader.number = snapshot.session_data, snapshot.records
    end = Mark(messages=data.messages, records=snapshot.records)
    restore_snapshot(data, reader, snapshot.view, JournalMessages(journal, key, data.marks, end))


async def restore_loaded(loaded: LoadedSession, context: SessionContext, journal: Journal) -> RestoredSession:
    """Restore a new session context from the snapshot and the records that `load_session` has read."""
    reader = RecordReplayer(context)
    if loaded.snapshot is not None:
        apply_snapshot(reader, loaded.snapshot, journal, context.key)
    return await _read_all(reader, loaded.records, loaded.opened)


async def restore(records: Sequence[Record], context: SessionContext) -> RestoredSession:
    """Restore a new session context by applying all records of the session, without a snapshot."""
    return await _read_all(RecordReplayer(context), records, creation_record_of(records))


async def _read_all(
    reader: RecordReplayer, records: Sequence[Record], opened: SessionCreatedRecord | None
) -> RestoredSession:
    if opened is None:
        raise ValueError(
            "the records are not those of a whole session: they must begin with a SessionCreatedRecord"
        )
    for number, record in enumerate(records):
        reader.read(record)
        if number % SLICE == SLICE - 1:
            await trio.lowlevel.checkpoint()
    return reader.result(opened)


@attrs.frozen(kw_only=True, repr=False)
class RebuiltSession(FieldRepr):
    """The content of a session after one of its records."""

    step: int
    """Number of the record up to which the session was rebuilt, from 1."""
    owner: Sender
    """Owner of the session."""
    state: Mapping[str, Any]
    """State of the session."""
    history: tuple[Message, ...]
    """Messages of the session, oldest first."""
    usage: Usage
    """Tokens and cost of the session."""
    waiting: tuple[Message, ...]
    """Accepted messages that have not ended."""

    @property
    def digest(self) -> str:
        """Digest of history and state. It is the same in the running session and in each replay."""
        return digest_of(self.history, self.state)


async def rebuild(
    records: Sequence[Record], *, to: int | None = None, session_id: str = ""
) -> RebuiltSession:
    """Restore the content of a session from its records up to number `to`, for inspection. None as `to` uses all records.

    The same code restores sessions after a crash.

    Raises:
        ConfigurationError: The session has no record with this number, or the records do not begin with the
            creation.
        JournalDamaged: A record is missing. The error names `session_id`.
    """
    step = len(records) if to is None else to
    if not 1 <= step <= len(records):
        raise ConfigurationError(
            f"the session has no record {step}: its records are numbered 1 to {len(records)}"
        )
    if creation_record_of(records[:1]) is None:
        raise ConfigurationError(
            "the records are not those of a whole session: the first record must be the creation of the session"
        )
    context = SessionContext(session_id, Sender("nobody"), SessionConversation(ShortTermMemory().open_view()))
    restored = await restore(records[:step], context)
    return RebuiltSession(
        step=step,
        owner=restored.owner,
        state=dict(context.seen_state),
        history=tuple(context.conversation.messages),
        usage=context.conversation.usage,
        waiting=restored.waiting,
    )


def digest_of(history: Iterable[Message], state: Mapping[str, Any]) -> str:
    """Return a digest of a history and a state, 32 hexadecimal digits, to compare a session with its replay.

    Raises:
        NotSerializable: The state has a value that is not plain data.
    """
    records = [AgentMessageRecord(message=message) for message in history]
    changes = [StateChangeRecord(changes={key: state[key]}) for key in sorted(state)]
    return hashlib.blake2b(WIRE.encode([*records, *changes], Record), digest_size=16).hexdigest()


# --- history loader --------------------------------------------------------------------------

_PAGE = 3_000
"""Number of records per read. One row of a journal has up to about 700 records."""
_WIDE = 10_000
"""Maximum number of records between two marks for which they are read in one read."""


@attrs.frozen(repr=False)
class _Part(FieldRepr):
    """Range of journal records between two marks (positions at which reading can start)."""

    begin: Mark
    end: Mark

    def messages_between(self, messages: Sequence[Message], first: int, end: int) -> Sequence[Message]:
        """Return those of `messages` at the positions `first` to `end - 1` of the conversation.

        `messages` are all messages of this range of records. The first of them has the position `begin.messages`.
        """
        return messages[max(0, first - self.begin.messages) : max(0, end - self.begin.messages)]


@attrs.frozen(repr=False)
class JournalMessages(FieldRepr):
    """Messages of a session from before a snapshot, read from the journal by position. Implements `EarlierMessages`."""

    journal: Journal
    """Journal of the session."""
    key: SessionKey
    """Key of the session."""
    marks: tuple[Mark, ...]
    """Positions between turns at which reading of records can start, from the snapshot."""
    end: Mark
    """Position of the snapshot, where the messages in memory begin."""

    async def read(self, first: int, end: int) -> Sequence[Message]:
        """Return the messages from position `first` to position `end - 1`.

        Raises:
            JournalError: The messages cannot be read.
        """
        found: list[Message] = []
        for part in self._parts(first, end):
            records: list[Record] = []
            while (after := part.begin.records + len(records)) < part.end.records:
                limit = min(_PAGE, part.end.records - after)
                page = await self.journal.read(
                    self.key.session_id, agent=self.key.agent, after=after, limit=limit
                )
                records += page or _raise_session_lost(self.key)
            found += part.messages_between(
                messages_in(records[: part.end.records - part.begin.records]), first, end
            )
        return found

    def read_blocking(self, first: int, end: int) -> Sequence[Message]:
        """Return the messages from position `first` to position `end - 1`, and block the event loop while reading."""
        found: list[Message] = []
        for part in self._parts(first, end):
            after, count = part.begin.records, part.end.records - part.begin.records
            page = self.journal.read_blocking(
                self.key.session_id, agent=self.key.agent, after=after, limit=count
            )
            whole = page[:count] if len(page) >= count else _raise_session_lost(self.key)
            found += part.messages_between(messages_in(whole), first, end)
        return found

    def _parts(self, first: int, end: int) -> Iterator[_Part]:
        edges = [BEGINNING, *self.marks, self.end]
        part: _Part | None = None
        for begin, stop in pairwise(edges):
            if begin.messages >= end or stop.messages <= first:
                continue
            if part is not None and stop.records - part.begin.records <= _WIDE:
                part = _Part(part.begin, stop)
                continue
            if part is not None:
                yield part
            part = _Part(begin, stop)
        if part is not None:
            yield part


def _raise_session_lost(key: SessionKey) -> tuple[Record, ...]:
    raise SessionNotFound(key.agent, key.session_id)


def messages_in(records: Iterable[Record]) -> Sequence[Message]:
    """Return the messages that a sequence of records adds to the conversation.

    The records must begin and end at marks of a snapshot, so that no record refers to an earlier one.
    """
    context = SessionContext("", Sender("nobody"), SessionConversation(_NoView()))
    reader = RecordReplayer(context)
    for record in records:
        if not isinstance(
            record, StateChangeRecord | ActionFailureRecord | StateRollbackRecord
        ):  # state records need earlier ones, which are not read
            reader.read(record)
    return context.conversation.messages


class _NoView(ModelView):
    """Memory view that selects no messages, for reading old messages of a conversation."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        """Ignore the message."""

    def messages(self) -> Sequence[ChatMessage]:
        return ()
