"""Group commit: what all journals share but the storage itself.

One task writes at a time: the first that has to wait for its step, while nobody else does, and
then the writer. Meanwhile steps of all sessions gather, and go together into the next transaction.
Steps that nobody waits for start no transaction of their own for `SOON` seconds.
"""

import abc
import logging
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
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
    UsageError,
)

from .base import Entry, Journal, SessionSummary
from .reading import Found, Readings
from .records import Record
from .steps import Head, Row, Step, encode_entry, join_steps, place_step

logger = logging.getLogger(__name__)

SOON = 0.05
"""Seconds that a step which nobody waits for may wait for company."""
GROUP_STEPS = 1000
GROUP_BYTES = 16_000_000
"""Bounds of one transaction; a single larger step is written all the same."""
KNOWN_HEADS = 10_000
"""Heads of sessions that are kept between writes; others are read again."""
ACQUIRE_PATIENCE = 0.5
"""Seconds in which a dying owner may still let go."""


@attrs.define(eq=False)
class _Waiting:
    """A step in the queue, and whoever waits for it."""

    step: Step
    epoch: int
    is_awaited: bool = False
    is_over: bool = False
    error: ActgentError | None = None
    done: trio.Event | None = None
    """Made where the waiter does not write it itself."""


@attrs.define(eq=False)
class JournalStatistics:
    """What a journal has written since its block was opened."""

    commits: int = 0
    steps: int = 0


class GroupedJournal(Journal):
    """A journal whose members only read and write: order, groups, epochs and errors are here."""

    identity: bytes = b""
    """Of the storage; part of each checksum. Known once it is acquired."""

    def __init__(self) -> None:
        self.statistics = JournalStatistics()
        self._epoch = 0
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._arrived = trio.Event()
        self._awaited = trio.Event()
        self._unwritten: Counter[str] = Counter()
        self._kept: dict[str, list[Step]] = {}
        self._heads: OrderedDict[str, Head] = OrderedDict()
        self._doubts: dict[str, Head | None] = {}
        """Sessions of which nobody knows whether their last step, which failed, is there, and their heads before it."""
        self._storage = trio.Lock()
        self._readings = Readings(self._storage, self._read_known)
        self._is_open = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self, None]:
        """The block in which the journal works; leaving it writes what is queued."""
        error: BaseException | None = None
        async with trio.open_nursery() as nursery:
            self._is_open = True
            # Shielded: whatever ends the block, what is queued is written first.
            rousing = trio.CancelScope(shield=True)
            nursery.start_soon(self._write_groups, name="journal writer")
            nursery.start_soon(self._rouse, rousing, name="journal clock")
            try:
                yield self
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
                error = raised
            with trio.CancelScope(shield=True):
                await self._leave()
            self._awaited.set()  # the writer ends
            rousing.cancel()
        if error is not None:
            raise error

    async def _leave(self) -> None:
        for session_id in ["", *self._kept]:
            await self._flush_at_last(session_id)
        self._is_open = False
        self._epoch = 0
        await self._release()

    async def _flush_at_last(self, session_id: str) -> None:
        if self._epoch:
            try:
                await self._flush(session_id)
            except ActgentError as error:
                logger.error("%s: what nobody waited for is not written: %s", session_id, error)  # noqa: TRY400 - no bug of ours

    # --- the storage, which members are ---------------------------------------------------

    @abc.abstractmethod
    async def _take(self) -> int:
        """Own the storage, set `identity` and return a new epoch, or raise `Fenced`."""

    @abc.abstractmethod
    async def _release(self) -> None:
        """Let the storage go."""

    @abc.abstractmethod
    async def _read_heads(self, session_ids: Sequence[str]) -> dict[str, Head]:
        """The heads of those sessions that are there; raises `JournalDamaged` for the first bad one."""

    @abc.abstractmethod
    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        """Write rows and heads in one durable transaction, or raise and write nothing."""

    @abc.abstractmethod
    async def _take_back(self, session_id: str, head: Head | None, epoch: int) -> None:
        """Have a session end at this head again, whatever stands behind it; without one there is none."""

    @abc.abstractmethod
    async def _read_some(self, session_ids: Sequence[str]) -> Sequence[Found]:
        """See `reading.ReadSome`; raises where the storage as a whole fails."""

    @abc.abstractmethod
    async def _list_unfinished(self, agent: str) -> list[str]: ...

    @abc.abstractmethod
    async def _list_due(self, agent: str) -> list[tuple[str, float]]: ...

    @abc.abstractmethod
    async def _list_suspended(self, agent: str, after: str, limit: int) -> list[str]: ...

    @abc.abstractmethod
    async def _list_heads(self, agent: str | None) -> list[Head]: ...

    @abc.abstractmethod
    async def _erase(self, session_id: str, epoch: int) -> None: ...

    # --- the journal ----------------------------------------------------------------------

    async def acquire(self) -> int:
        if not self._is_open:
            raise UsageError("the journal is used outside of its `async with open_journal(...)` block")
        async with self._storage:
            with trio.CancelScope(shield=True):
                self._epoch = await self._take_patiently()
                self._heads.clear()  # another owner may have written in between
                self._doubts.clear()
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
        if durable or self._is_behind(step.session_id):
            await self._wait_written(step, epoch)
        else:
            self._enqueue(_Waiting(step, epoch))
            await trio.lowlevel.checkpoint()

    def _is_behind(self, session_id: str) -> bool:
        """Whether a step has to wait, as the storage does not take what comes."""
        return (
            session_id in self._kept or len(self._queue) >= GROUP_STEPS or self._queued_bytes >= GROUP_BYTES
        )

    def write_soon(self, entry: Entry, *, epoch: int) -> None:
        self._enqueue(_Waiting(encode_entry(entry), epoch))

    async def load(self, session_id: str) -> tuple[Record, ...]:
        if self._has_unwritten(session_id):
            await self._flush(session_id)
        self._check_epoch(self._epoch)
        if session_id in self._doubts:
            async with self._storage:
                await self._settle_doubts([session_id])
        return (await self._readings.read(session_id)).records

    async def _read_known(self, session_ids: Sequence[str]) -> Sequence[Found]:
        """Read sessions whose next steps will be written soon, and keep their heads for that."""
        found = await self._read_some(session_ids)
        stored = [each.value for each in found if isinstance(each, outcome.Value)]
        self._keep_heads([each.head for each in stored if each.head is not None])
        return found

    async def unfinished(self, agent: str) -> list[str]:
        await self._flush("")
        async with self._storage:
            return await self._list_unfinished(agent)

    async def due(self, agent: str) -> list[tuple[str, float]]:
        await self._flush("")
        async with self._storage:
            return await self._list_due(agent)

    async def suspended(self, agent: str, *, after: str = "", limit: int = 100) -> list[str]:
        await self._flush("")
        async with self._storage:
            return await self._list_suspended(agent, after, limit)

    async def sessions(self, agent: str | None = None) -> list[SessionSummary]:
        await self._flush("")
        async with self._storage:
            return [head.summary for head in await self._list_heads(agent)]

    async def delete(self, session_id: str) -> None:
        self._kept.pop(session_id, None)
        if self._has_unwritten(session_id):
            await self._flush(session_id)
        self._check_epoch(self._epoch)
        async with self._storage:
            with trio.CancelScope(shield=True):
                self._heads.pop(session_id, None)
                self._doubts.pop(session_id, None)
                await self._erase(session_id, self._epoch)

    # --- the queue ------------------------------------------------------------------------

    def _enqueue(self, waiting: _Waiting) -> None:
        self._check_epoch(waiting.epoch)
        self._queue.append(waiting)
        self._queued_bytes += len(waiting.step.body)
        self._unwritten[waiting.step.session_id] += 1
        if not waiting.is_awaited:
            self._arrived.set()

    def _check_epoch(self, epoch: int) -> None:
        if not self._epoch:
            raise UsageError("the journal is written without `acquire()`, or after its block was left")
        if epoch != self._epoch:
            raise Fenced(
                f"epoch {epoch} of the journal is over, epoch {self._epoch} has begun: nothing was written"
            )

    async def _wait_written(self, step: Step, epoch: int) -> None:
        """Write a step: oneself where nobody writes, as waking the writer costs two task switches, or else by it."""
        waiting = _Waiting(step, epoch, is_awaited=True)
        self._enqueue(waiting)
        if not self._storage.locked():
            with trio.CancelScope(shield=True):
                await self._write_next()
            if (
                waiting.error is None
            ):  # or else it is told, also where it is cancelled: what failed has to be tried again
                await trio.lowlevel.checkpoint_if_cancelled()
        if not waiting.is_over:
            waiting.done = trio.Event()
            self._awaited.set()
            try:
                await waiting.done.wait()
            except trio.Cancelled:
                waiting.is_awaited = (
                    False  # nobody is there to try again: it is kept where it cannot be written
                )
                raise
        if waiting.error is not None:
            raise waiting.error

    async def _flush(self, session_id: str) -> None:
        """Wait for what was queued until now, of this session with its errors."""
        await self._wait_written(Step(session_id, "", 0, b""), self._epoch)

    def _has_unwritten(self, session_id: str) -> bool:
        return bool(self._unwritten[session_id]) or session_id in self._kept

    async def _rouse(self, scope: trio.CancelScope) -> None:
        """Wake the writer for steps that nobody waits for; apart from it, as a deadline a group would cost it more."""
        with scope:
            while True:
                await self._arrived.wait()
                await trio.sleep(SOON)
                self._arrived = trio.Event()
                if self._queue:
                    self._awaited.set()

    async def _write_groups(self) -> None:
        try:
            with trio.CancelScope(shield=True):
                while self._is_open:
                    await self._awaited.wait()
                    await self._write_next()
        finally:
            self._epoch = 0  # nobody writes any more, so nobody may wait for it
            self._break_off(self._queue)

    async def _write_next(self) -> None:
        await self._lock_storage()
        group = self._take_group()
        try:
            await self._write_group(group)
        finally:
            self._storage.release()
            self._break_off(group)

    async def _lock_storage(self) -> None:
        try:
            self._storage.acquire_nowait()  # no pause: what waits for the disk waits long enough
        except trio.WouldBlock:
            await self._storage.acquire()

    def _break_off(self, steps: Iterable[_Waiting]) -> None:
        """Let nobody wait for steps that were left by an error that is no journal's, a bug or a request to stop."""
        error = sys.exc_info()[1]
        rest = [waiting for waiting in steps if not waiting.is_over]
        if rest:
            self._fail(rest, JournalFailed(f"the journal broke off while it was written: {error!r}"))

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._queue and len(group) < GROUP_STEPS and size < GROUP_BYTES:
            group.append(self._queue.popleft())
            size += len(group[-1].step.body)
        self._queued_bytes -= size
        if not self._queue and self._awaited.is_set():
            self._awaited = trio.Event()
        return group

    async def _write_group(self, group: list[_Waiting]) -> None:
        try:
            await self._try_group(group)
        except JournalDamaged as damage:
            await self._write_alone(group, damage)
        except (JournalError, Fenced) as error:
            self._fail(group, error)
        else:
            self._finish(group)

    async def _write_alone(self, group: list[_Waiting], damage: JournalDamaged) -> None:
        """Find the sessions that a group failed for; all others are written."""
        by_session: dict[str, list[_Waiting]] = {}
        for waiting in group:
            by_session.setdefault(waiting.step.session_id, []).append(waiting)
        if len(by_session) == 1:
            self._fail(group, damage)
            return
        for steps in by_session.values():
            await self._write_group(steps)

    async def _try_group(self, group: list[_Waiting]) -> None:
        by_session = self._by_session(group)
        if not by_session:
            return
        if self._doubts:
            await self._settle_doubts(by_session)
        before = await self._known_heads(list(by_session))
        now, rows, heads = time.time(), [], {}
        for key, steps in by_session.items():
            row, heads[key] = place_step(join_steps(steps), before.get(key), now=now, identity=self.identity)
            rows.append(row)
        try:
            await self._write(rows, list(heads.values()), self._epoch)
        except (JournalError, Fenced) as error:
            self._forget(heads)
            if not isinstance(error, JournalFailed) or not await self._is_written(heads, before):
                raise
        self.statistics.commits += 1
        self.statistics.steps += len(rows)
        self._keep_heads(heads.values())

    def _by_session(self, group: list[_Waiting]) -> dict[str, list[Step]]:
        """The steps of a group, each session's behind those that could not be written before."""
        by_session: dict[str, list[Step]] = {}
        for waiting in group:
            key = waiting.step.session_id
            if key not in by_session:
                by_session[key] = [*self._kept[key]] if key in self._kept else []
            if waiting.step.count:
                by_session[key].append(waiting.step)
        return {key: steps for key, steps in by_session.items() if steps}

    async def _is_written(self, heads: Mapping[str, Head], before: Mapping[str, Head]) -> bool:
        """Whether a transaction that failed, perhaps at its very end, is there nevertheless; not where that is in doubt."""
        try:
            return await self._read_heads(sorted(heads)) == heads
        except (JournalError, Fenced):
            self._doubts.update({key: before.get(key) for key in heads})
            return False

    async def _settle_doubts(self, session_ids: Iterable[str]) -> None:
        """Make sure that failed steps of which nobody knows are not there, as they may be tried again."""
        for session_id in [each for each in session_ids if each in self._doubts]:
            await self._take_back(session_id, self._doubts[session_id], self._epoch)
            self._heads.pop(session_id, None)
            del self._doubts[session_id]

    def _forget(self, heads: Iterable[str]) -> None:
        for session_id in heads:
            self._heads.pop(session_id, None)

    async def _known_heads(self, session_ids: Sequence[str]) -> dict[str, Head]:
        known = {key: self._heads[key] for key in session_ids if key in self._heads}
        missing = [key for key in session_ids if key not in known]
        return known | await self._read_heads(sorted(missing)) if missing else known

    def _keep_heads(self, heads: Iterable[Head]) -> None:
        for head in heads:
            self._heads[head.session_id] = head
            self._heads.move_to_end(head.session_id)
        while len(self._heads) > KNOWN_HEADS:
            self._heads.popitem(last=False)

    def _finish(self, group: list[_Waiting]) -> None:
        for waiting in group:
            self._kept.pop(waiting.step.session_id, None)
            self._answer(waiting)

    def _fail(self, group: list[_Waiting], error: JournalError | Fenced) -> None:
        for waiting in group:
            waiting.error = _again(error)
            is_lost = not waiting.is_awaited and waiting.step.count
            if is_lost and isinstance(error, JournalFull | JournalFailed):
                self._kept.setdefault(waiting.step.session_id, []).append(waiting.step)
            self._answer(waiting)

    def _answer(self, waiting: _Waiting) -> None:
        key = waiting.step.session_id
        self._unwritten[key] -= 1
        if not self._unwritten[key]:
            del self._unwritten[key]
        waiting.is_over = True
        if waiting.done is not None:
            waiting.done.set()


def _again(error: JournalError | Fenced) -> ActgentError:
    """The same error for one more task, so that they do not share a traceback."""
    fresh = error if isinstance(error, JournalDamaged) else type(error)(*error.args)
    fresh.__cause__ = error.__cause__
    return fresh
