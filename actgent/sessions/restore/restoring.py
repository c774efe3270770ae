"""A session made again from what stands of it in the journal.

From all of its records, or from a snapshot and those behind it: both are the same.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.journal.base import Journal, Snapshot
from actgent.journal.listing import SessionKey
from actgent.journal.records import WIRE, Changed, Opened, Record, Said
from actgent.memory.base import Memory, ModelView
from actgent.memory.short_term import ShortTermMemory
from actgent.messages import Message, Sender, Usage
from actgent.sessions.context import SessionContext
from actgent.sessions.conversation import SessionConversation

from .earlier import JournalMessages
from .reader import Reader, Restored, owner_of
from .snapshot import RECENT, Mark, SessionSnapshot, decode_snapshot, put

SLICE = 1000
"""Records after which others run, while a long session is read."""
LARGE = 100_000
"""Bytes of a snapshot that is read, or made, in a thread: others run meanwhile."""


@attrs.frozen
class Beginning:
    """A session up to a snapshot, with what models are shown of it."""

    taken: SessionSnapshot
    view: ModelView
    records: int


@attrs.frozen
class LoadedSession:
    """What a journal has of a session: a beginning, if it was snapshot, and the records behind it."""

    records: Sequence[Record] = ()
    beginning: Beginning | None = None

    @property
    def opened(self) -> Opened | None:
        """The session's first record; None if there is no such session."""
        return owner_of(self.records) if self.beginning is None else self.beginning.taken.opened


async def load_session(
    journal: Journal, key: SessionKey, memory: Memory, *, lookback: int | None
) -> LoadedSession:
    """Load a session from its snapshot on, where that does for this memory and a protocol that looks back so far."""
    if lookback is None or lookback > RECENT:
        return LoadedSession(await journal.load(key.session_id, agent=key.agent))
    tail = await journal.load_tail(key.session_id, agent=key.agent)
    if tail.snapshot is None:
        return LoadedSession(tail.records)
    beginning = await read_beginning(tail.snapshot, memory)
    if beginning is None:
        return LoadedSession(await journal.load(key.session_id, agent=key.agent))
    return LoadedSession(tail.records, beginning)


async def read_beginning(kept: Snapshot, memory: Memory) -> Beginning | None:
    """Return what a snapshot holds; None where this version, or this memory, does not know it."""
    if len(kept.body) < LARGE:
        return _read_beginning(kept, memory)
    return await trio.to_thread.run_sync(_read_beginning, kept, memory)


def _read_beginning(kept: Snapshot, memory: Memory) -> Beginning | None:
    taken = decode_snapshot(kept)
    view = None if taken is None else memory.restore_view(taken.view)
    return None if taken is None or view is None else Beginning(taken, view, kept.records)


def begin(reader: Reader, beginning: Beginning, journal: Journal, key: SessionKey) -> None:
    """Have a fresh reader go on behind a snapshot, whose messages stand in this journal."""
    taken, reader.number = beginning.taken, beginning.records
    end = Mark(messages=taken.messages, records=beginning.records)
    put(taken, reader, beginning.view, JournalMessages(journal, key, taken.marks, end))


async def restore_loaded(loaded: LoadedSession, context: SessionContext, journal: Journal) -> Restored:
    """Fill a fresh context with what was loaded; see `restore`."""
    reader = Reader(context)
    if loaded.beginning is not None:
        begin(reader, loaded.beginning, journal, context.key)
    return await _read_all(reader, loaded.records, loaded.opened)


async def restore(records: Sequence[Record], context: SessionContext) -> Restored:
    """Fill a fresh context with what happened, as it was when the last record was written."""
    return await _read_all(Reader(context), records, owner_of(records))


async def _read_all(reader: Reader, records: Sequence[Record], opened: Opened | None) -> Restored:
    if opened is None:
        raise ValueError("these are not the records of a session: they do not begin with Opened")
    for number, record in enumerate(records):
        reader.read(record)
        if number % SLICE == SLICE - 1:
            await trio.lowlevel.checkpoint()
    return reader.result(opened)


@attrs.frozen(kw_only=True)
class Rebuilt:
    """A session after one of its records."""

    step: int
    """The number of that record, from 1."""
    owner: Sender
    state: Mapping[str, Any]
    history: tuple[Message, ...]
    usage: Usage
    waiting: tuple[Message, ...]
    """Accepted and not ended."""

    @property
    def digest(self) -> str:
        """The same for the same history and state, in the running session and in any later replay."""
        return digest_of(self.history, self.state)


async def rebuild(records: Sequence[Record], *, to: int | None = None, session_id: str = "") -> Rebuilt:
    """The session after its record `to`, or after the last, by the code that recovers it after a crash.

    Raises:
        ConfigurationError: there is no such record.
        JournalDamaged: the records lack something; the text has this session id.
    """
    step = len(records) if to is None else to
    if not 1 <= step <= len(records):
        raise ConfigurationError(f"unknown step {step}: the session's records are 1 to {len(records)}")
    if owner_of(records[:1]) is None:
        raise ConfigurationError("these are not the records of a session: they do not begin with its opening")
    context = SessionContext(session_id, Sender("nobody"), SessionConversation(ShortTermMemory().open_view()))
    restored = await restore(records[:step], context)
    return Rebuilt(
        step=step,
        owner=restored.owner,
        state=dict(context.seen_state),
        history=tuple(context.conversation.messages),
        usage=context.conversation.usage,
        waiting=restored.waiting,
    )


def digest_of(history: Iterable[Message], state: Mapping[str, Any]) -> str:
    """32 hexadecimal digits that stand for a session's history and state.

    Raises:
        NotSerializable: the state holds what is no plain data.
    """
    said = [Said(message=message) for message in history]
    changes = [Changed(changes={key: state[key]}) for key in sorted(state)]
    return hashlib.blake2b(WIRE.encode([*said, *changes], Record), digest_size=16).hexdigest()
