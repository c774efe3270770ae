"""Loading of a session from all its records, or from a snapshot and the records after it. Both give the same session."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.journal.journal_interface import Journal, Snapshot
from actgent.journal.record_types import (
    WIRE,
    AgentMessageRecord,
    Record,
    SessionCreatedRecord,
    StateChangeRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.memory.memory_interface import Memory, ModelView
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import Message, Sender, Usage
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.session_context import SessionContext
from actgent.support.field_repr import FieldRepr

from .history_loader import JournalMessages
from .record_replayer import RecordReplayer, RestoredSession, owner_of
from .snapshot import RECENT, Mark, SessionSnapshot, decode_snapshot, put

SLICE = 1000
"""Number of records that are applied before the event loop gets a checkpoint."""
LARGE = 100_000
"""Size in bytes above which a snapshot is decoded in a worker thread."""


@attrs.frozen(repr=False)
class DecodedSnapshot(FieldRepr):
    """A decoded session snapshot with its memory view."""

    taken: SessionSnapshot
    """Data of the session."""
    view: ModelView
    """Memory view: the messages that models see."""
    records: int
    """Number of records that the snapshot covers."""


@attrs.frozen(repr=False)
class LoadedSession(FieldRepr):
    """A session as read from the journal: a snapshot, if there is one, and the records after it."""

    records: Sequence[Record] = ()
    """Records after the snapshot; all records without a snapshot."""
    beginning: DecodedSnapshot | None = None
    """The decoded snapshot; None if all records were loaded."""

    @property
    def opened(self) -> SessionCreatedRecord | None:
        """Record that created the session; None if the session does not exist."""
        return owner_of(self.records) if self.beginning is None else self.beginning.taken.opened


async def load_session(
    journal: Journal, key: SessionKey, memory: Memory, *, lookback: int | None
) -> LoadedSession:
    """Load a session from the journal, from its snapshot if the snapshot can be used.

    Args:
        journal: The journal.
        key: Key of the session.
        memory: Memory of the agent. If it cannot restore the snapshot's view, all records are loaded.
        lookback: Number of newest messages that the protocol reads; None if it may read all, so all records are
            loaded.
    """
    if lookback is None or lookback > RECENT:
        return LoadedSession(await journal.load(key.session_id, agent=key.agent))
    tail = await journal.load_tail(key.session_id, agent=key.agent)
    if tail.snapshot is None:
        return LoadedSession(tail.records)
    beginning = await read_beginning(tail.snapshot, memory)
    if beginning is None:
        return LoadedSession(await journal.load(key.session_id, agent=key.agent))
    return LoadedSession(tail.records, beginning)


async def read_beginning(kept: Snapshot, memory: Memory) -> DecodedSnapshot | None:
    """Decode a snapshot, in a worker thread if it is large. Return None if this version or this memory cannot read it."""
    if len(kept.body) < LARGE:
        return _read_beginning(kept, memory)
    return await trio.to_thread.run_sync(_read_beginning, kept, memory)


def _read_beginning(kept: Snapshot, memory: Memory) -> DecodedSnapshot | None:
    taken = decode_snapshot(kept)
    view = None if taken is None else memory.restore_view(taken.view)
    return None if taken is None or view is None else DecodedSnapshot(taken, view, kept.records)


def begin(reader: RecordReplayer, beginning: DecodedSnapshot, journal: Journal, key: SessionKey) -> None:
    """Initialize a new replayer with a decoded snapshot, so that it continues with the records after the snapshot."""
    taken, reader.number = beginning.taken, beginning.records
    end = Mark(messages=taken.messages, records=beginning.records)
    put(taken, reader, beginning.view, JournalMessages(journal, key, taken.marks, end))


async def restore_loaded(loaded: LoadedSession, context: SessionContext, journal: Journal) -> RestoredSession:
    """Restore a new session context from the snapshot and the records that `load_session` has read."""
    reader = RecordReplayer(context)
    if loaded.beginning is not None:
        begin(reader, loaded.beginning, journal, context.key)
    return await _read_all(reader, loaded.records, loaded.opened)


async def restore(records: Sequence[Record], context: SessionContext) -> RestoredSession:
    """Restore a new session context by applying all records of the session, without a snapshot."""
    return await _read_all(RecordReplayer(context), records, owner_of(records))


async def _read_all(
    reader: RecordReplayer, records: Sequence[Record], opened: SessionCreatedRecord | None
) -> RestoredSession:
    if opened is None:
        raise ValueError(
            "these are not the records of a session: they do not begin with SessionCreatedRecord"
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
        """Digest of history and state, equal in the running session and in each replay."""
        return digest_of(self.history, self.state)


async def rebuild(
    records: Sequence[Record], *, to: int | None = None, session_id: str = ""
) -> RebuiltSession:
    """Restore a session from its records up to number `to`, or from all of them, and return its content for inspection.

    The code is that of crash recovery.

    Raises:
        ConfigurationError: The session has no record with this number, or the records do not begin with the
            creation.
        JournalDamaged: A record is missing. The error names `session_id`.
    """
    step = len(records) if to is None else to
    if not 1 <= step <= len(records):
        raise ConfigurationError(f"unknown step {step}: the session's records are 1 to {len(records)}")
    if owner_of(records[:1]) is None:
        raise ConfigurationError(
            "these are not the records of a session: the first record is not its creation"
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
