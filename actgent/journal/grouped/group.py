"""Group commit: what all journals share but the storage itself.

One task writes, and nothing cuts it: who waits for a step may leave, or give up after its patience, while the storage
is still at it. Meanwhile steps of all sessions gather, and go together into the next transaction. Where nothing is to be
waited for before, whoever brings a step has the storage begin with it at once. If the storage has nothing else to do, who
brought it waits for the storage itself, and the task that writes hears nothing of it: a round of the loop costs as much as
the work of a step. Cancelled, out of patience, or with an error in hand, it leaves the rest to that task.
Steps that nobody waits for start no transaction of their own for `FLUSH_DELAY_SECONDS`.
"""

import itertools
import math
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Self

import attrs
import outcome
import trio

from actgent.errors import (
    ActgentError,
    Fenced,
    JournalDamaged,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalSlow,
    UsageError,
)
from actgent.errors.printable import counted
from actgent.journal.base import Entry, SessionSummary, SessionTail, Snapshot, one_of
from actgent.journal.encryption import check_readable, current_keys
from actgent.journal.feed import FeedReader, Written
from actgent.journal.listing import ALL, Cursor, SessionFilter, SessionKey, State, to_findable
from actgent.journal.records import Record
from actgent.journal.statistics import JournalStatistics
from actgent.support.logs import logger_of

from .heads import KnownHeads
from .paging import Pages
from .reading import Found, Readings
from .step_queue import QueuedStep, StepQueue, Steps, make_queued
from .steps import (
    Head,
    JournalStep,
    Page,
    Row,
    encode_entry,
    find_parent,
    join_steps,
    place_step,
)
from .storage import HeadFound, StoredJournal, Work
from .telling import Feed, Onlookers, written_steps

logger = logger_of(__name__)

FLUSH_DELAY_SECONDS = 0.05
"""Seconds that a step without a waiter may wait for others to be written with it."""
EVERYONE = SessionKey("", "")
"""Names no session: a step of it, without records, waits for all."""
ACQUIRE_PATIENCE = 0.5
"""Seconds in which a dying owner may still let go."""
RETRY = 1.0
"""Seconds after which a step that could not be written, and that nobody waits for, is tried again."""
LEAVING = 10.0
"""Seconds that leaving the block takes at most, with a storage that does not answer."""
NAMED = 10
"""Sessions that are named in one record of the log, at most."""


@attrs.define(eq=False)
class _Transaction:
    """What a group of steps becomes in the storage."""

    heads: dict[SessionKey, Head]
    before: Mapping[SessionKey, Head]
    """The heads that were there."""
    rows: list[Row]
    given: list[Sequence[Record]]
    """The records of each row, as they were given."""
    at: float
    """When it began: Unix time in seconds."""


@attrs.define(eq=False)
class _Begun:
    """A group that the storage is at, while the task that writes waits for it."""

    group: list[QueuedStep]
    transaction: _Transaction
    work: Work
    leader: QueuedStep | None
    """Who waits for it in the place of the task that writes."""
    is_left: bool = False
    """True if that one waits no more."""


class GroupedJournal(StoredJournal):
    """A journal whose members only read and write: order, groups, epochs and errors are here."""

    def __init__(self) -> None:
        self.statistics: JournalStatistics = JournalStatistics()
        self._keys = current_keys()
        self._epoch = 0
        self._queue = StepQueue()
        self._begun: _Begun | None = None
        self._retry_at = 0.0
        self._arrived = trio.Event()
        self._is_awaited = False
        """True if someone waits for a step in the queue, or it is time to write."""
        self._is_resting = False
        """True if the task that writes has nothing to do, or waits for what the storage has begun with."""
        self._heads = KnownHeads()
        self._storage = trio.Semaphore(1, max_value=1)
        """Held by whoever has the storage do something; one task may take it, and another one release it."""
        self._readings = Readings(self._storage, self._read_known)
        self._onlookers = Onlookers(Pages(self._storage, self), Feed(self._read_step))
        self._is_open = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self, None]:
        """The block in which the journal works; leaving it writes what is queued, and ends whatever the storage does."""
        error: BaseException | None = None
        async with trio.open_nursery() as nursery:
            self._is_open = True
            # Shielded: whatever ends the block, what is queued is written first.
            writing, rousing = trio.CancelScope(shield=True), trio.CancelScope(shield=True)
            nursery.start_soon(self._write_groups, writing, name="journal writer")
            nursery.start_soon(self._rouse, rousing, name="journal clock")
            try:
                yield self
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
                error = raised
            try:
                with trio.move_on_after(LEAVING, shield=True):
                    await self._leave_steadily()
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - as above
                error = error or raised
            finally:
                writing.cancel()
                rousing.cancel()
                self._end()  # last: whatever comes of it, the block ends
        if error is not None:
            raise error

    async def _leave_steadily(self) -> None:
        """Leave, also where Ctrl-C is pressed meanwhile, which comes through any shield; once more, and it ends here."""
        try:
            await self._leave()
        except KeyboardInterrupt:
            await self._leave()
            raise

    async def _leave(self) -> None:
        """Write what is queued, and let the storage go."""
        if self._epoch:
            self._try_kept_again()
            try:
                await self._flush(EVERYONE)
            except ActgentError as error:
                logger.error("the journal could not be written when it was left: %s", error)  # noqa: TRY400 - no bug of ours
        await self._lock_storage()
        try:
            await self._release()
        finally:
            self._storage.release()

    @trio.lowlevel.enable_ki_protection
    def _end(self) -> None:
        """Be closed, whatever state this is in: who waits is told, and what is not written is named."""
        left = self._queue.count_unwritten()
        self._is_open = False
        self._epoch = 0
        self._onlookers.feed.end()
        self._let_go()
        if left:
            names = ", ".join(repr("/".join(key)) for key in itertools.islice(left, NAMED))
            more = "" if len(left) <= NAMED else ", ..."
            text = "the journal was left with %s of %s unwritten: %s%s"
            logger.error(text, counted(left.total(), "step"), counted(len(left), "session"), names, more)

    # --- the journal ----------------------------------------------------------------------

    async def acquire(self) -> int:
        if not self._is_open:
            raise UsageError("the journal is used outside of its `async with open_journal(...)` block")
        async with self._storage:
            former, self._epoch = self._epoch, await self._take_patiently()
            if self._keys is None:
                check_readable(await self._newest_body(), None)
            self._heads.begin_epoch()
            if self._epoch != former + 1:  # another owner may have written in between
                self._heads.doubts.clear()
                self._queue.drop(Fenced(f"epoch {former} of the journal is over: nothing was written"))
            self._try_kept_again()
            self._onlookers.pages.forget()
        return self._epoch

    def epoch_of(self, session_id: str) -> int:
        return self._epoch

    async def _take_patiently(self) -> int:
        until = time.monotonic() + ACQUIRE_PATIENCE
        while True:
            try:
                return await self._take()
            except Fenced:
                if time.monotonic() > until:
                    raise
            await trio.sleep(ACQUIRE_PATIENCE / 10)

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        step = encode_entry(entry)
        if durable or self._queue.is_behind(step.key) or self._may_be_second(step):
            await self._wait_written(step, epoch, entry.patience, is_kept=entry.is_kept)
        else:
            self._enqueue(make_queued(step, epoch))
            await trio.lowlevel.checkpoint()

    def _may_be_second(self, step: JournalStep) -> bool:
        """Return True if another session may have the id of the new one that this step is of, which whoever makes it is to hear."""
        is_there = self._queue.has_unwritten(step.key) or step.key in self._heads.by_key
        return step.creation is not None and (step.is_refused or (is_there and step.begins))

    def write_soon(self, entry: Entry, *, epoch: int) -> None:
        self._enqueue(make_queued(encode_entry(entry), epoch))
        if entry.is_awaited:
            self._ask_writer()

    async def load(self, session_id: str, *, agent: str | None = None) -> tuple[Record, ...]:
        key = await self._key_of(session_id, agent)
        if key is None:
            return ()
        await self._settle(key)
        return (await self._readings.read(key)).records

    async def load_tail(self, session_id: str, *, agent: str) -> SessionTail:
        key = SessionKey(agent, session_id).findable()
        await self._settle(key)
        stored = await self._readings.read(key, self._read_known_tails)
        return SessionTail(records=stored.records, snapshot=stored.snapshot)

    async def read(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        key = await self._key_of(session_id, agent)
        if key is None:
            return ()
        return (await self._page_of(key, after, limit)).records

    async def read_steps(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[Written, ...]:
        key = await self._key_of(session_id, agent)
        return () if key is None else written_steps(key, await self._page_of(key, after, limit))

    async def _page_of(self, key: SessionKey, after: int, limit: int) -> Page:
        await self._settle(key)
        async with self._storage:
            return await self._read_page(key, after, limit)

    def feed(
        self, session: SessionKey | None = None, *, capacity: int = 1000, records: bool = True
    ) -> AbstractAsyncContextManager[FeedReader]:
        return self._onlookers.feed.open(session, capacity=capacity, with_records=records)

    async def _read_step(self, key: SessionKey, after: int, count: int) -> tuple[Record, ...]:
        return (await self.read(key.session_id, agent=key.agent, after=after, limit=count))[:count]

    def read_now(
        self, session_id: str, *, agent: str, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        return self._read_page_now(SessionKey(agent, session_id), after, limit).records

    async def find_snapshot(self, session_id: str, *, agent: str) -> Snapshot | None:
        key = SessionKey(agent, session_id)
        await self._settle(key)
        async with self._storage:
            return await self._find_snapshot(key)

    async def keep_snapshot(self, session_id: str, snapshot: Snapshot, *, agent: str, epoch: int) -> bool:
        async with self._storage:
            self._check_session(SessionKey(agent, session_id), epoch)
            return await self._keep_snapshot(SessionKey(agent, session_id), snapshot, epoch)

    async def drop_snapshots(self, session_id: str, *, agent: str, epoch: int) -> None:
        async with self._storage:
            self._check_session(SessionKey(agent, session_id), epoch)
            await self._drop_snapshots(SessionKey(agent, session_id), epoch)

    async def _settle(self, key: SessionKey) -> None:
        """Have all that a session was given stand in the storage, and nothing else."""
        await self._flush_session(key)
        if key in self._heads.doubts:
            async with self._storage:
                await self._settle_doubts([key])

    @asynccontextmanager
    async def _all_settled(self) -> AsyncGenerator[None, None]:
        """The same of all sessions, but for what there is no space for; nothing is written in the block."""
        with suppress(JournalFull):
            await self._flush(EVERYONE)
        async with self._storage:
            await self.settle_all()
            yield

    async def settle_all(self) -> None:
        await self._settle_doubts([*self._heads.doubts])

    async def _key_of(self, session_id: str, agent: str | None) -> SessionKey | None:
        if agent is not None:
            return SessionKey(agent, session_id).findable()
        return one_of(await self.agents_of(session_id), session_id)

    async def _flush_session(self, key: SessionKey) -> None:
        if self._queue.has_unwritten(key):
            await self._flush(key)
        self._check_epoch(self._epoch)

    async def _read_known(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        """Read sessions whose next steps will be written soon, and keep their heads for that."""
        return self._kept_heads(await self._read_some(keys))

    async def _read_known_tails(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return self._kept_heads(await self._read_tails(keys))

    def _kept_heads(self, found: Sequence[Found]) -> Sequence[Found]:
        stored = [each.value for each in found if isinstance(each, outcome.Value)]
        self._heads.keep({each.head.key: each.head for each in stored if each.head is not None})
        return found

    async def unfinished(self, agent: str) -> list[str]:
        async with self._all_settled():
            return await self._list_unfinished(agent)

    async def waiting(self) -> dict[str, int]:
        async with self._all_settled():
            return await self._count_waiting()

    async def due(self, agent: str) -> list[tuple[str, float]]:
        async with self._all_settled():
            return await self._list_due(agent)

    async def suspended(self, agent: str, *, after: str = "", limit: int = 100) -> list[str]:
        async with self._all_settled():
            return await self._list_suspended(agent, to_findable(after), limit)

    async def sessions(self, agent: str | None = None) -> list[SessionSummary]:
        async with self._all_settled():
            return [head.summary for head in await self._list_heads(agent)]

    async def agents_of(self, session_id: str) -> list[str]:
        async with self._all_settled():
            unwritten = {key.agent for key in self._queue.kept if key.session_id == session_id}
            return sorted({*await self._list_agents(to_findable(session_id)), *unwritten})

    async def head(self, agent: str, session_id: str) -> SessionSummary | None:
        key = SessionKey(agent, session_id).findable()
        await self._flush_session(key)
        if (known := self._heads.settled(key)) is not None:
            await trio.lowlevel.checkpoint()
            return known.summary
        async with self._storage:
            await self._settle_doubts([key])
            found = (await self._known_heads([key])).get(key)
        return None if found is None else found.summary

    def head_now(self, agent: str, session_id: str) -> SessionSummary | None:
        key = SessionKey(agent, session_id)
        known = None if self._queue.has_unwritten(key) or not self._epoch else self._heads.settled(key)
        return None if known is None else known.summary

    async def children(self, agent: str, session_id: str) -> list[SessionSummary]:
        return await self.children_of([SessionKey(agent, session_id)])

    async def children_of(self, keys: Sequence[SessionKey]) -> list[SessionSummary]:
        async with self._all_settled():
            return [head.summary for head in await self._list_children([key.findable() for key in keys])]

    async def delete(self, session_id: str, *, agent: str | None = None) -> None:
        key = await self._key_of(session_id, agent)
        if key is None:
            return
        async with self._erasing():
            await self._erase(key, self._epoch)
            self._forget_erased([key])

    @asynccontextmanager
    async def _erasing(self) -> AsyncGenerator[None, None]:
        """A block in which sessions are erased, which nothing cuts; if it fails, they may be gone all the same."""
        async with self._all_settled():
            try:
                with trio.CancelScope(shield=True):
                    yield
            except JournalFailed:
                self._doubt_all()
                raise

    def _doubt_all(self) -> None:
        """Sessions may be gone, and nobody knows which."""
        self._heads.by_key.clear()
        self._queue.note_unsure()
        self._onlookers.pages.forget_counts()

    def _forget_erased(self, gone: Sequence[SessionKey]) -> None:
        """Sessions are gone: what was kept of them would begin them again, without their first step."""
        self._heads.erase(gone)
        for key in gone:
            self._queue.kept.pop(key, None)
        self._onlookers.pages.forget_counts()
        self._onlookers.feed.tell_erased(gone)

    async def to_erase(self, limit: int = 100) -> list[SessionKey]:
        async with self._all_settled():
            return await self._list_to_erase(limit)

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        async with self._erasing():
            gone = await self._erase_trees(roots, unchanged_since, self._epoch)
            self._forget_erased(gone)
            self.statistics.erased += len(gone)
        return gone

    async def page(
        self, wanted: SessionFilter = ALL, *, after: Cursor | None = None, limit: int = 100
    ) -> list[SessionSummary]:
        after = None if after is None else after.findable()
        with suppress(JournalFull):
            await self._flush(EVERYONE)
        return [head.summary for head in await self._onlookers.pages.select(wanted, after, limit)]

    async def counts(self, agent: str | None = None) -> dict[State, int]:
        with suppress(JournalFull):
            await self._flush(EVERYONE)
        return await self._onlookers.pages.count(agent)

    # --- the queue ------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def _enqueue(self, queued: QueuedStep) -> None:
        """Let a step that nobody waits for be written soon."""
        if queued.epoch != self._epoch or not self._epoch:
            self._check_step(queued.step, queued.epoch)
        self._queue.put(queued)
        self._arrived.set()

    def _check_step(self, step: JournalStep, epoch: int) -> None:
        """Refuse a step of an epoch that is over."""
        self._check_session(step.key, epoch)

    def _check_session(self, key: SessionKey, epoch: int) -> None:
        """Refuse what is to be written of a session in an epoch that is over."""
        self._check_epoch(epoch)

    def _check_epoch(self, epoch: int) -> None:
        if not self._epoch:
            raise UsageError("the journal is written without `acquire()`, or after its block was left")
        if epoch != self._epoch:
            raise Fenced(
                f"epoch {epoch} of the journal is over, epoch {self._epoch} has begun: nothing was written"
            )

    @trio.lowlevel.enable_ki_protection
    async def _wait_written(
        self, step: JournalStep, epoch: int, patience: float | None = None, *, is_kept: bool = False
    ) -> None:
        waiting = make_queued(step, epoch, is_kept=is_kept)
        if epoch != self._epoch or not epoch:
            self._check_step(step, epoch)
        self._queue.put(waiting)
        if patience is not None:
            waiting.patience, waiting.until = patience, trio.current_time() + patience
            self._arrived.set()
        if (begun := self._ask_writer(waiting)) is not None:
            await self._lead(begun)
            if waiting.error is not None:
                raise waiting.error
            if waiting.is_over:
                return
        await waiting.wait()

    async def _lead(self, begun: _Begun) -> None:
        """Wait for the storage in the place of the task that writes, and tell the others; the rest is that one's."""
        try:
            await self._see_through(begun.work)
        finally:
            begun.is_left = True
            if self._begun is begun and not self._conclude_well(begun):
                self._call()

    def _conclude_well(self, begun: _Begun) -> bool:
        """End a transaction that succeeded, and have the storage begin with the next; False where something was to be waited for."""
        if not isinstance(begun.work.result, outcome.Value):
            return False
        self._begun = None
        try:
            self._note_written(begun.transaction)
            self._queue.finish(begun.group)
        finally:
            self._leave_group(begun.group)
        return not self._is_awaited or self._begin_next()

    async def _flush(self, key: SessionKey) -> None:
        """Wait for what was queued until now, of this session with its errors."""
        await self._wait_written(JournalStep(key, 0, b""), self._epoch)

    @trio.lowlevel.enable_ki_protection
    async def _rouse(self, scope: trio.CancelScope) -> None:
        """Look after steps that nobody waits for, and those who wait for long; a deadline for each would cost more."""
        with scope:
            while True:
                await self._arrived.wait()
                await trio.sleep(FLUSH_DELAY_SECONDS)
                self._arrived = trio.Event()
                self._look(trio.current_time())

    def _look(self, now: float) -> None:
        self._give_up(now)
        queue = self._queue
        if queue.kept and self._epoch and now >= self._retry_at:
            self._retry_at = now + RETRY
            self._try_kept_again()
        if queue.steps:
            self._ask_writer()
        if queue.kept or queue.writing or queue.steps:
            self._arrived.set()

    def _try_kept_again(self) -> None:
        for key in self._queue.kept:
            self._queue.put(make_queued(JournalStep(key, 0, b""), self._epoch))

    def _give_up(self, now: float) -> None:
        """Let nobody wait for longer than they want; the storage goes on with their steps."""
        begun = self._begun
        if begun is not None and not begun.is_left and begun.leader is not None and begun.leader.until <= now:
            begun.leader.error = JournalSlow(begun.leader.patience)
            self._dismiss(begun.work)
        self._queue.give_up(now)

    @trio.lowlevel.enable_ki_protection
    async def _write_groups(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                while True:
                    if self._begun is not None or not self._is_awaited or self._begin_next():
                        await self._rest()
                    else:
                        await self._write_next()
        finally:
            self._epoch = 0  # nobody writes any more, so nobody may wait for it
            self._break_off(self._queue.unsettled())

    async def _rest(self) -> None:
        """Wait until there is something to write, and end what the storage was given meanwhile."""
        self._is_resting = True
        try:
            await self._wait_called()
        finally:
            self._is_resting = False
        begun = self._begun
        if begun is None or (begun.leader is not None and not begun.is_left):
            return
        if begun.leader is not None:
            await self._see_through(begun.work)
        if begun.work.result is not None:
            self._begun = None
            await self._conclude(begun.group, begun)

    def _ask_writer(self, leader: QueuedStep | None = None) -> _Begun | None:
        """Have what is queued written; returns what the storage begins with as soon as the leader waits for it."""
        self._is_awaited = True
        if not self._is_resting or self._begun is not None:
            return None
        if not self._begin_next(leader) or self._writer is not None:
            self._call()
        return self._begun if leader is not None else None

    @trio.lowlevel.enable_ki_protection
    def _begin_next(self, leader: QueuedStep | None = None) -> bool:
        """Have the storage begin with what is queued; False where something has to be waited for before."""
        queue, known = self._queue, self._heads.by_key
        if not self._may_start or not self._storage.value or self._heads.doubts or queue.kept:
            return False
        new = queue.sessions_beginning(known)
        if new is None:
            return False
        self._storage.acquire_nowait()
        group = queue.take_group()
        if not queue.steps:
            self._is_awaited = False
        try:
            by_session = queue.by_session(group)
            if by_session:
                transaction = self._place(
                    by_session, {key: known[key] for key in by_session if key not in new}
                )
                heads = list(transaction.heads.values())
                work = self._prepare_writing(transaction.rows, heads, new, is_led=leader is not None)
                self._begun = _Begun(group, transaction, work, leader)
            else:
                queue.finish(group)
        finally:
            if self._begun is None:
                self._leave_group(group)
        return True

    async def _write_next(self) -> None:
        await self._lock_storage()
        group = self._queue.take_group()
        if not self._queue.steps:
            self._is_awaited = False
        await self._conclude(group)

    async def _lock_storage(self) -> None:
        try:
            self._storage.acquire_nowait()  # no pause: what waits for the disk waits long enough
        except trio.WouldBlock:
            await self._storage.acquire()

    async def _conclude(self, group: list[QueuedStep], begun: _Begun | None = None) -> None:
        """Have a group written, if the storage has not begun with it, and tell who waits for its steps."""
        try:
            await self._write_group(group, begun)
        finally:
            self._leave_group(group)

    def _leave_group(self, group: list[QueuedStep]) -> None:
        self._storage.release()
        self._break_off(group)
        self._queue.writing = ()

    def _break_off(self, steps: Iterable[QueuedStep]) -> None:
        """Fail the steps still queued when the writer stops on an unexpected error, so that no caller hangs."""
        error = sys.exc_info()[1]
        rest = [waiting for waiting in steps if not waiting.is_over]
        if rest:
            self._fail(rest, JournalFailed(f"the journal broke off while it was written: {error!r}"))

    async def _write_group(self, group: list[QueuedStep], begun: _Begun | None = None) -> None:
        try:
            if begun is None or not await self._is_over(begun):
                await self._try_group(group)
        except JournalDamaged as damage:
            await self._write_alone(group, damage)
        except (JournalError, Fenced) as error:
            self._fail(group, error)
        else:
            self._queue.finish(group)

    async def _is_over(self, begun: _Begun) -> bool:
        """Return True if a group that the storage had begun with is written; raises its error."""
        try:
            await self._see_written(begun.transaction, begun.work.result)
        except HeadFound:
            return False
        return True

    async def _write_alone(self, group: list[QueuedStep], damage: JournalDamaged) -> None:
        """Find the sessions that a group failed for; all others are written."""
        by_session: dict[SessionKey, list[QueuedStep]] = {}
        for waiting in group:
            by_session.setdefault(waiting.step.key, []).append(waiting)
        if len(by_session) == 1:
            self._fail(group, damage)
            return
        for steps in by_session.values():
            await self._write_group(steps)

    async def _try_group(self, group: list[QueuedStep]) -> None:
        by_session, before = await self._admit(group)
        if not by_session:
            return
        await self._read_parents(by_session, before)
        transaction = self._place(by_session, before)
        try:
            await self._write(transaction.rows, list(transaction.heads.values()), self._epoch)
        except (JournalError, Fenced) as error:
            written: outcome.Outcome[None] = outcome.Error(error)
        else:
            written = outcome.Value(None)
        await self._see_written(transaction, written)

    async def _admit(self, group: list[QueuedStep]) -> tuple[Steps, Mapping[SessionKey, Head]]:
        """The steps of a group that are to be written, and the heads before them; new sessions of ids that others have are refused."""
        if self._queue.unsure:
            self._queue.drop_gone(await self._find_there(sorted(self._queue.unsure)))
        by_session = self._queue.by_session(group)
        if self._heads.doubts:
            await self._settle_doubts(by_session)
        before = await self._known_heads(list(by_session))
        if len(before) < len(by_session):
            by_session = self._queue.refuse_orphans(group, by_session, before)
        return self._queue.refuse_seconds(group, by_session, before), before

    async def _find_there(self, keys: Sequence[SessionKey]) -> set[SessionKey]:
        """Those of some sessions that are there; a damaged one is its own affair."""
        try:
            return {*await self._read_heads(keys)}
        except JournalDamaged:
            if len(keys) == 1:
                return {*keys}
        return {there for key in keys for there in await self._find_there([key])}

    async def _read_parents(
        self, by_session: Mapping[SessionKey, Sequence[JournalStep]], before: Mapping[SessionKey, Head]
    ) -> None:
        """Know the heads of the sessions below which others begin."""
        above = {find_parent(join_steps(steps)) for key, steps in by_session.items() if key not in before}
        unknown = [each for each in above if each is not None and each not in by_session]
        if unknown:
            self._heads.keep(await self._known_heads(unknown))

    def _place(
        self, by_session: Mapping[SessionKey, Sequence[JournalStep]], before: Mapping[SessionKey, Head]
    ) -> _Transaction:
        """The rows and heads that these steps become behind what is there."""
        now, rows, given = time.time(), [], []
        heads: dict[SessionKey, Head] = {}
        for key, steps in by_session.items():
            step = join_steps(steps)
            head = before.get(key) or self._heads.begin(step, heads, epoch=self._epoch, now=now)
            row, heads[key] = place_step(step, head, now=now, at=now, identity=self.identity, keys=self._keys)
            rows.append(row)
            given.append(step.given)
        return _Transaction(heads, before, rows, given, now)

    async def _see_written(self, transaction: _Transaction, written: "outcome.Outcome[None] | None") -> None:
        """Know that a transaction is there, or raise its error."""
        heads = transaction.heads
        try:
            if written is not None:
                written.unwrap()
        except (JournalError, Fenced) as error:
            self._heads.forget(heads)
            if not isinstance(error, JournalFailed) or not await self._is_written(heads, transaction.before):
                raise
        self._note_written(transaction)

    def _note_written(self, transaction: _Transaction) -> None:
        statistics = self.statistics
        statistics.commits += 1
        statistics.steps += len(transaction.rows)
        statistics.failure = ""
        for row in transaction.rows:
            statistics.bytes += len(row.body)
        if statistics.on_commit is not None:
            statistics.on_commit(time.time() - transaction.at)
        self._heads.keep(transaction.heads)
        self._onlookers.pages.note(transaction.heads, transaction.before)
        if self._onlookers.feed.is_read:
            feed = self._onlookers.feed
            feed.tell(transaction.rows, transaction.heads, transaction.given, self.identity)

    async def _is_written(self, heads: Mapping[SessionKey, Head], before: Mapping[SessionKey, Head]) -> bool:
        """Return True if a transaction that failed at its very end is there nevertheless; False if in doubt."""
        try:
            return await self._read_heads(sorted(heads)) == heads
        except (JournalError, Fenced):
            self._heads.doubt(heads, before)
            return False

    async def _settle_doubts(self, keys: Iterable[SessionKey]) -> None:
        """Make sure that failed steps of which nobody knows are not there, as they may be tried again."""
        doubts = self._heads.doubts
        for key in [each for each in keys if each in doubts]:
            self._onlookers.pages.forget()
            await self._take_back(key, doubts[key], self._epoch)
            self._heads.settle(key)

    async def _known_heads(self, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        by_key = self._heads.by_key
        known = {key: by_key[key] for key in keys if key in by_key}
        missing = [key for key in keys if key not in known]
        return known | await self._read_heads(sorted(missing)) if missing else known

    def _fail(self, group: Iterable[QueuedStep], error: JournalError | Fenced) -> None:
        if isinstance(error, JournalFull | JournalFailed | Fenced):
            self.statistics.failure = type(error).__name__
            self.statistics.failed_at = trio.current_time()
        if self._queue.fail(group, error):
            self._arrived.set()
