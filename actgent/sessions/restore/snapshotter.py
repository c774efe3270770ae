"""`SessionSnapshotter`: creates snapshots of long sessions in the background, from their journal records."""

from collections.abc import Callable
from typing import Any

import attrs
import trio

from actgent.errors import Fenced
from actgent.errors.text_escaping import shown
from actgent.journal.journal_interface import Journal, Snapshot
from actgent.journal.record_types import MessageEndRecord, SessionCreatedRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.memory.memory_interface import Memory
from actgent.messages import Sender
from actgent.sessions.conversation import RecordedMessages, SessionConversation
from actgent.sessions.session_context import SessionContext
from actgent.sessions.session_record_writer import SessionLog
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.result_text import error_text

from .record_replayer import RecordReplayer
from .session_loader import apply_snapshot, decode_with_view
from .snapshot import BEGINNING, RECENT, Mark, encode_snapshot, take_snapshot

MARK_MESSAGES = 256
"""Minimum number of messages between two marks of a snapshot."""
PAGE_SIZE = 3_000
"""Number of records per read. One row of a journal has up to about 700 records."""
SLICE = 300
"""Number of records that are applied before the event loop gets a checkpoint, about 2 ms."""
SLACK = 2_000
"""Maximum number of newest records that a snapshot may omit in order to end between two turns."""
SMALL = 1_000
"""Number of messages above which a snapshot is encoded in a worker thread."""
_log = logger_of(__name__)


@attrs.define(eq=False, repr=False)
class SessionSnapshotter(FieldRepr):
    """Background service that creates snapshots of one agent's long sessions, one at a time."""

    journal: Journal
    """Journal of the sessions."""
    agent: str
    """Name of the agent."""
    memory: Memory
    """Memory of the agent, whose view becomes part of a snapshot."""
    start_soon: Callable[..., bool]
    """Function that starts a background task; it returns False if the agent is stopping."""
    _making: set[str] = attrs.field(factory=set)
    _one_at_a_time: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(1))

    def snapshot_in_background(self, log: SessionLog) -> None:
        """Start to create a snapshot of a session in the background, unless a snapshot of it is already being created."""
        if log.session_id not in self._making and self.start_soon(self._make_snapshot, log):
            self._making.add(log.session_id)

    async def _make_snapshot(self, log: SessionLog) -> None:
        try:
            async with self._one_at_a_time:
                records_since_snapshot, log.records_since_snapshot = log.records_since_snapshot, 0
                epoch = self.journal.epoch_of(log.session_id)
                maker = SnapshotBuilder(self.journal, SessionKey(self.agent, log.session_id), self.memory)
                await maker.make(slack=min(records_since_snapshot // 4, SLACK), epoch=epoch)
        except Fenced:
            pass  # another process owns the session and makes its snapshots
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - may come from a memory of the program; a snapshot is optional
            error = convert_user_error(raised, "memory", type(self.memory).__name__)
            _log.warning(
                "agent %s: the snapshot of session %s failed, so loading the session takes longer: %s",
                self.agent,
                LogVariable(log.session_id),
                shown(error_text(error)),
            )
        finally:
            self._making.discard(log.session_id)


class SnapshotBuilder:
    """Builder of one session's next snapshot. It reads the records after the last snapshot, and stores the new one."""

    def __init__(self, journal: Journal, key: SessionKey, memory: Memory) -> None:
        self._journal = journal
        self._key = key
        self._memory = memory
        view = memory.open_view()
        conversation = SessionConversation(view, RecordedMessages(0, ()))
        self._reader = RecordReplayer(
            SessionContext(key.session_id, Sender("nobody"), conversation, key.agent)
        )
        self._opened: SessionCreatedRecord | None = None
        self._marks: list[Mark] = []
        self._number = 0

    async def make(self, *, slack: int, epoch: int) -> bool:
        """Create and store a snapshot. The snapshot may omit at most the newest `slack` records.

        `epoch` is the ownership epoch (fencing number) under which this process may write. Return False if no snapshot can be created.

        Raises:
            JournalError: The journal cannot be read or written.
        """
        if self._memory.open_view().save() is None:
            return False
        head = await self._journal.head(self._key.agent, self._key.session_id)
        if head is None or head.closed:
            return False
        await self._begin()
        made = await self._read_until(head.records, slack)
        now = await self._journal.head(self._key.agent, self._key.session_id)
        if now is None or now.created_at != head.created_at:  # the session was recreated
            return False
        return made is not None and await self._journal.keep_snapshot(
            self._key.session_id, made, agent=self._key.agent, epoch=epoch
        )

    async def _begin(self) -> None:
        """Initialize the replayer from the newest snapshot of the session, if there is one."""
        stored = await self._journal.find_snapshot(self._key.session_id, agent=self._key.agent)
        snapshot = None if stored is None else await decode_with_view(stored, self._memory)
        if snapshot is not None:
            apply_snapshot(self._reader, snapshot, self._journal, self._key)
            self._opened, self._marks = snapshot.session_data.opened, list(snapshot.session_data.marks)
            self._number = snapshot.records

    async def _read_until(self, last: int, slack: int) -> Snapshot | None:
        """Read records up to the end of a turn, and return a snapshot at that position; None if there is no suitable position.

        The position is the first end of a turn that has at most `slack` records between it and the record number `last`.
        """
        while self._number < last:
            page = await self._journal.read(
                self._key.session_id, agent=self._key.agent, after=self._number, limit=PAGE_SIZE
            )
            if not page:
                return None
            for number, record in enumerate(page):
                if isinstance(record, SessionCreatedRecord):
                    self._opened = record
                self._reader.read(record)
                self._number += 1
                if type(record) is MessageEndRecord and self._reader.is_between_turns:
                    self._mark()
                    if self._number >= last - slack:
                        return await self._encode_snapshot()
                if number % SLICE == SLICE - 1:
                    await trio.lowlevel.checkpoint()
            self._messages.trim(RECENT)
        return None

    @property
    def _messages(self) -> Any:
        return self._reader.context.conversation.messages

    def _mark(self) -> None:
        """Add a mark at the current position, if enough messages follow the last mark. Reading of records can start at a mark."""
        messages = len(self._messages)
        since = messages - (self._marks or [BEGINNING])[-1].messages
        if since >= MARK_MESSAGES and not self._reader.accepted:
            self._marks.append(Mark(messages=messages, records=self._number))

    async def _encode_snapshot(self) -> Snapshot | None:
        """Return the encoded snapshot at the current position, encoded in a thread if it is large. None if there can be none."""
        if self._opened is None or self._opened.transient:
            return None
        if len(self._messages) < SMALL:
            return self._encode(self._opened)
        return await trio.to_thread.run_sync(self._encode, self._opened)

    def _encode(self, opened: SessionCreatedRecord) -> Snapshot | None:
        data = take_snapshot(self._reader, opened, tuple(self._marks))
        return None if data is None else encode_snapshot(data, self._number)
