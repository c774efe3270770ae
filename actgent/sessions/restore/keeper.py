"""Snapshots of long sessions, made beside their turns from what stands in the journal, and kept there."""

from collections.abc import Callable
from typing import Any

import attrs
import trio

from actgent.errors import Fenced
from actgent.errors.printable import shown
from actgent.journal.base import Journal, Snapshot
from actgent.journal.listing import SessionKey
from actgent.journal.records import Ended, Opened
from actgent.memory.base import Memory
from actgent.messages import Sender
from actgent.sessions.context import SessionContext
from actgent.sessions.conversation import RecordedMessages, SessionConversation
from actgent.sessions.session_log import SessionLog
from actgent.support.foreign import failure_of
from actgent.support.logs import Each, logger_of
from actgent.tools.outputs.results import worded

from .reader import Reader
from .restoring import begin, read_beginning
from .snapshot import BEGINNING, RECENT, Mark, encode_snapshot, take

MARK_MESSAGES = 256
"""Messages between two marks, at least: who looks back reads as many."""
PAGE = 3_000
"""Records that are read at once: a session that is written as fast as it can be has some 700 in a row."""
SLICE = 300
"""Records that are applied at once, about 2 ms: others run in between."""
SLACK = 2_000
"""Records that a snapshot may leave out at the end, to find a place between two turns."""
SMALL = 1_000
"""Messages up to which a snapshot is made at once, and not in a thread."""
_log = logger_of(__name__)


@attrs.define(eq=False)
class SnapshotKeeper:
    """Has the long sessions of one agent snapshot, one at a time, while nobody has to wait for it."""

    journal: Journal
    agent: str
    memory: Memory
    start_soon: Callable[..., bool]
    """Runs something beside the turns, or returns False."""
    _making: set[str] = attrs.field(factory=set)
    _one: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(1))

    def keep_soon(self, log: SessionLog) -> None:
        """Have a session snapshot whose log has grown long; the next one is due when it has grown as long again."""
        if log.session_id not in self._making and self.start_soon(self._keep, log):
            self._making.add(log.session_id)

    async def _keep(self, log: SessionLog) -> None:
        try:
            async with self._one:
                grown, log.grown = log.grown, 0
                epoch = self.journal.epoch_of(log.session_id)
                maker = SnapshotMaker(self.journal, SessionKey(self.agent, log.session_id), self.memory)
                await maker.make(slack=min(grown // 4, SLACK), epoch=epoch)
        except Fenced:
            pass  # another process goes on with the session, and with its snapshots
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - also of a memory of the developer's; all goes on without it
            error = failure_of(raised, "memory", type(self.memory).__name__)
            _log.warning(
                "agent %s: no snapshot of session %s is kept, so opening it takes longer: %s",
                self.agent,
                Each(log.session_id),
                shown(worded(error)),
            )
        finally:
            self._making.discard(log.session_id)


class SnapshotMaker:
    """Goes through a session's records from its last snapshot on, and makes the next one."""

    def __init__(self, journal: Journal, key: SessionKey, memory: Memory) -> None:
        self._journal = journal
        self._key = key
        self._memory = memory
        view = memory.open_view()
        conversation = SessionConversation(view, RecordedMessages(0, ()))
        self._reader = Reader(SessionContext(key.session_id, Sender("nobody"), conversation, key.agent))
        self._opened: Opened | None = None
        self._marks: list[Mark] = []
        self._number = 0

    async def make(self, *, slack: int, epoch: int) -> bool:
        """Keep a snapshot of all but the last records, at most `slack` of them; False where there is no place for one.

        Raises:
            JournalError: it cannot be read or written.
        """
        if self._memory.open_view().save() is None:
            return False
        head = await self._journal.head(self._key.agent, self._key.session_id)
        if head is None or head.closed:
            return False
        await self._begin()
        made = await self._read_until(head.records, slack)
        now = await self._journal.head(self._key.agent, self._key.session_id)
        if now is None or now.created_at != head.created_at:  # another session has the id by now
            return False
        return made is not None and await self._journal.keep_snapshot(
            self._key.session_id, made, agent=self._key.agent, epoch=epoch
        )

    async def _begin(self) -> None:
        """Go on from the last snapshot, if there is one."""
        kept = await self._journal.find_snapshot(self._key.session_id, agent=self._key.agent)
        beginning = None if kept is None else await read_beginning(kept, self._memory)
        if beginning is not None:
            begin(self._reader, beginning, self._journal, self._key)
            self._opened, self._marks = beginning.taken.opened, list(beginning.taken.marks)
            self._number = beginning.records

    async def _read_until(self, last: int, slack: int) -> Snapshot | None:
        """Read up to the first moment between two turns that is near the last record, and take the snapshot there."""
        while self._number < last:
            page = await self._journal.read(
                self._key.session_id, agent=self._key.agent, after=self._number, limit=PAGE
            )
            if not page:
                return None
            for number, record in enumerate(page):
                if isinstance(record, Opened):
                    self._opened = record
                self._reader.read(record)
                self._number += 1
                if type(record) is Ended and self._reader.is_between_turns:
                    self._mark()
                    if self._number >= last - slack:
                        return await self._take()
                if number % SLICE == SLICE - 1:
                    await trio.lowlevel.checkpoint()
            self._messages.forget(RECENT)
        return None

    @property
    def _messages(self) -> Any:
        return self._reader.context.conversation.messages

    def _mark(self) -> None:
        """Note a moment at which reading may begin."""
        messages = len(self._messages)
        since = messages - (self._marks or [BEGINNING])[-1].messages
        if since >= MARK_MESSAGES and not self._reader.accepted:
            self._marks.append(Mark(messages=messages, records=self._number))

    async def _take(self) -> Snapshot | None:
        if self._opened is None or self._opened.transient:
            return None
        if len(self._messages) < SMALL:
            return self._taken(self._opened)
        return await trio.to_thread.run_sync(self._taken, self._opened)

    def _taken(self, opened: Opened) -> Snapshot | None:
        taken = take(self._reader, opened, tuple(self._marks))
        return None if taken is None else encode_snapshot(taken, self._number)
