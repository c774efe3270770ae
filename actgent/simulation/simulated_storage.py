"""Simulated storage: a journal in memory that survives killed processes, and SQLite on a disk whose power can fail."""

import contextlib
import importlib
import math
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import apsw
import outcome
import trio

from actgent.errors import JournalFailed, JournalFull
from actgent.journal.group_commit.row_format import Head, Row
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Journal, Snapshot
from actgent.journal.record_types import Record
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.sqlite import SQLiteJournal, close_all_locks

from .simulated_world import SimulatedProcess, World

JournalKind = Literal["memory", "sqlite"]
SECTOR_BYTES = 512
"""A torn write ends at a multiple of this size."""
DELAYS_SECONDS = (0, 0, 0.0002, 0.002, 0.03)
READ_DELAYS_SECONDS = (0, 0, 0, 0.0002, 0.002)
SLOW_WRITE_SECONDS = (1, 20, 60)
SLOW_READ_SECONDS = (0.5, 5, 60)
OUTAGE_SECONDS = (0, 0, 0, 3, 15)
"""Times for which the disk stays broken after a failure."""
OUTAGE_CHANCE = 0.8
"""Probability that an operation fails while the disk is broken."""
OnWrite = Callable[[str], None]
"""Called with `before write` or `after write` at each write; may kill the simulated process, or cancel calls."""


class Storage:
    """The journal of one seed, which each simulated process opens again."""

    def __init__(self, world: World, kind: JournalKind, fault_chance: float) -> None:
        self.world = world
        self.kind = kind
        self.fault_chance = fault_chance
        """Probability that a write fails; 0 in the last simulated process."""
        self.slow_chance = 0.0
        """Probability that a write takes seconds or minutes; 0 in the last simulated process. Half of it for a read. Memory only."""
        self.has_failed = False
        """True if a write failed in this simulated process, or was lost at the end of the process."""
        self.failed_at = -math.inf
        """Time of the last failure in seconds."""
        self.on_write: OnWrite = lambda _: None
        self.on_change: Callable[[Mapping[SessionKey, Head]], None] = lambda _: None
        """Called with the summaries of all sessions after each change of the stored data. Memory only."""
        self._is_full = False
        """True if the current outage is a full disk, which still erases."""
        self._broken_until = -math.inf
        """Time in seconds at which the current outage ends."""
        self.power_cut_at = 0
        """Number of the disk write at which the power fails in this simulated process; 0 for never. SQLite only."""
        self._stored: _MemoryJournal | None = None
        self._folder: Path | None = None
        self._disk: _Disk | None = None
        self._open: SQLiteJournal | None = None

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Context manager: create the folder and disk of a SQLite journal, and remove both when the block exits."""
        if self.kind == "memory":
            yield
            return
        self._folder = Path(tempfile.mkdtemp(prefix="actgent-simulation-"))
        self._disk = _Disk(self)
        names = ("actgent.journal.sqlite.journal", "actgent.journal.sqlite.read_only_journal")
        try:
            with contextlib.ExitStack() as stack:
                for name in names:
                    module = importlib.import_module(name)
                    stack.enter_context(mock.patch.object(module, "StorageThread", self._make_thread))
                yield
        finally:
            self._disk.unregister()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _make_thread(self, name: str) -> "_StorageTask":
        return _StorageTask(self.world, name)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Journal]:
        """Async context manager: open the journal for the running simulated process, with the records of earlier processes."""
        journal: MemoryJournal | SQLiteJournal
        if self._folder is None:
            journal = self._stored = _MemoryJournal(self, self._stored)
        else:
            journal = self._open = _SQLiteJournal(self, self._folder / "journal.db")
        try:
            async with journal.running():
                yield journal
        finally:
            # The close of a journal has a time limit. A slow write then loses the records that wait for it, as a crash does.
            self.has_failed |= not journal._queue.is_empty

    def end_life(self, verdict: str) -> None:
        """Release the resources of the ended simulated process, such as file locks, as an operating system does.

        `verdict` is the way in which the process ended. After a power failure, unsynced writes are lost.
        """
        journal, self._open = self._open, None
        if journal is None or verdict == "ended":
            return
        for resource in (journal._db, journal._look_lock):
            with contextlib.suppress(Exception):
                if resource is not None:
                    resource.close()
        close_all_locks()
        if self._disk is not None:
            if self._disk.has_lost_power:
                self._disk.lose_writes()
            self._disk.restart()

    def find_series(self, agent: str, session_id: str) -> tuple[str, int]:
        """Return the internal storage name of a session in the journal (see `Head.series`), and the number of its records.

        It works only for a journal in memory. The name is empty if the session is not stored. A session that is deleted and
        created again gets another name.
        """
        head = None if self._stored is None else self._stored._stored_heads.get(SessionKey(agent, session_id))
        return ("", 0) if head is None else (head.series, head.records)

    @property
    def is_quiet(self) -> bool:
        """True if no read or write is running or queued, and no write has an unknown outcome. Always False for journals in files."""
        journal = self._stored
        if journal is None or journal.running_operations:
            return False
        return journal._queue.is_empty and not journal._heads.uncertain

    def find_head(self, key: SessionKey) -> Head | None:
        """Return the newest stored summary of a session; None if the session is not stored. Only for a journal in memory."""
        return None if self._stored is None else self._stored._stored_heads.get(key)

    def has_failed_batches(self, key: SessionKey) -> bool:
        """Return True if a write of a session failed and will be repeated. Only for a journal in memory."""
        return self._stored is not None and key in self._stored._queue.failed

    def find_unfinished(self, agent: str) -> list[Head]:
        """Return the rows of an agent's open sessions with unfinished and not suspended work. Only for a journal in memory."""
        heads = () if self._stored is None else self._stored._stored_heads.values()
        return [
            each
            for each in heads
            if each.agent == agent and each.pending and not each.suspended and not each.closed
        ]

    def read(self, key: SessionKey) -> Sequence[Record]:
        """Return the stored records of a session, without waiting. Only for a journal in memory."""
        return () if self._stored is None else self._stored._read(key).records

    def find_open(self, session_id: str) -> list[Head]:
        """Return the newest summaries of the open sessions with this id that have no open child session.

        Only for a journal in memory.
        """
        heads = {} if self._stored is None else self._stored._stored_heads
        parents = {(each.parent_agent, each.parent_id) for each in heads.values() if not each.closed}
        return [
            each
            for key, each in heads.items()
            if key.session_id == session_id and not each.closed and tuple(key) not in parents
        ]

    def find_orphans(self) -> Iterator[tuple[SessionKey, str]]:
        """Yield the key of each open session whose parent session is closed, and the id of the parent.

        It works only for a journal in memory.
        """
        heads = {} if self._stored is None else self._stored._stored_heads
        for key, head in heads.items():
            parent = heads.get(SessionKey(head.parent_agent or "", head.parent_id or ""))
            if parent is not None and parent.closed and not head.closed:
                yield key, parent.session_id

    def fault(self, operation: str = "journal") -> Exception | None:
        """Decide at random if an operation of the journal fails. Return the error to raise, or None if the operation succeeds.

        A failure begins an outage, in which most operations fail. `operation` is the name of the operation in the list of random choices.
        """
        choices, is_broken = self.world.choices, self.world.now < self._broken_until
        if is_broken and self._is_full and operation == "erasure":
            return None
        chance = OUTAGE_CHANCE if is_broken and self.fault_chance else self.fault_chance
        if not choices.happens(f"{operation} fails", chance):
            return None
        self.has_failed, self.failed_at = True, self.world.now
        if not is_broken:
            self._broken_until = self.world.now + choices.pick("outage", OUTAGE_SECONDS)
            self._is_full = choices.pick(f"{operation} error", (True, False))
        return JournalFull("the disk is full") if self._is_full else JournalFailed("the disk failed")


class _MemoryJournal(MemoryJournal):
    """Journal in memory whose writes take time and may fail. It begins with the rows that the previous process stored."""

    def __init__(self, storage: Storage, stored: "_MemoryJournal | None") -> None:
        super().__init__()
        self._storage_of_seed = storage
        self._life = storage.world.life
        self._reads_to_fail = 0
        """Number of the next reads of heads that fail, after a write whose confirmation was lost."""
        self.running_operations = 0
        """Number of reads, writes and erasures that are running."""
        if stored is not None:
            self._stored_epoch = stored._stored_epoch
            self._stored_heads = dict(stored._stored_heads)
            self._stored_rows = {series: list(rows) for series, rows in stored._stored_rows.items()}
            self._stored_snapshots = dict(stored._stored_snapshots)

    @contextlib.contextmanager
    def _operation(self) -> Iterator[None]:
        """Context manager: count an operation of the disk as running while its block runs."""
        self.running_operations += 1
        try:
            yield
        finally:
            self.running_operations -= 1

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        with self._operation():
            await self._write_slowly(rows, heads, epoch)

    async def _write_slowly(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        """Write after the delays of the disk, which may fail or be killed."""
        storage, world = self._storage_of_seed, self._storage_of_seed.world
        world.check_alive(self._life)
        await trio.sleep(world.choices.pick("journal delay", DELAYS_SECONDS))
        if world.choices.happens("slow write", storage.slow_chance):
            world.record("slow write", "a write to the journal hangs")
            await trio.sleep(world.choices.pick("slow write: seconds", SLOW_WRITE_SECONDS))
        world.check_alive(self._life)
        storage.on_write("before write")
        if not world.is_alive(self._life):
            await world.wait_for_death()
        error = storage.fault()
        is_lost = isinstance(error, JournalFailed) and world.choices.pick("write is stored", (True, False))
        if error is not None and not is_lost:
            world.record("journal", f"the journal fails: {error}")
            raise error
        await MemoryJournal._write(self, rows, heads, epoch)
        world.record("write", " ".join(f"{row.first}+{row.count}" for row in rows), is_shown=False)
        storage.on_change(self._stored_heads)
        storage.on_write("after write")
        if not world.is_alive(self._life):
            await world.wait_for_death()
        await trio.sleep(world.choices.pick("journal delay", DELAYS_SECONDS))
        if error is not None:
            world.record("journal", "the journal stores a write, but its confirmation is lost")
            self._reads_to_fail = world.choices.pick("reads that fail", (0, 1, 2))
            raise error

    async def _wait_read(self) -> None:
        """Wait as long as a read of the simulated disk takes."""
        storage, choices = self._storage_of_seed, self._storage_of_seed.world.choices
        seconds: float = choices.pick("read delay", READ_DELAYS_SECONDS)
        if choices.happens("slow read", storage.slow_chance / 2):
            seconds = choices.pick("slow read: seconds", SLOW_READ_SECONDS)
        with self._operation():
            await trio.sleep(seconds)

    async def _read_some(self, keys: Sequence[SessionKey]) -> Sequence[Any]:
        await self._wait_read()
        return await super()._read_some(keys)

    async def _read_tails(self, keys: Sequence[SessionKey]) -> Sequence[Any]:
        await self._wait_read()
        return await super()._read_tails(keys)

    async def _keep_snapshot(self, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        await self._wait_read()
        return await super()._keep_snapshot(key, snapshot, epoch)

    async def _read_heads(self, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        await self._wait_read()
        if self._reads_to_fail:
            self._reads_to_fail -= 1
            await trio.lowlevel.checkpoint()
            raise JournalFailed("the disk failed")
        return await super()._read_heads(keys)

    async def _erase(self, key: SessionKey, epoch: int) -> None:
        with self._operation():
            await self._erase_slowly(key, epoch)

    async def _erase_slowly(self, key: SessionKey, epoch: int) -> None:
        """Erase a session after the delays of the disk, which may fail."""
        storage, world = self._storage_of_seed, self._storage_of_seed.world
        world.check_alive(self._life)
        await trio.sleep(world.choices.pick("journal delay", DELAYS_SECONDS))
        world.check_alive(self._life)
        error = storage.fault("erasure")
        if error is None or world.choices.pick("erasure is stored", (True, False)):
            await MemoryJournal._erase(self, key, epoch)
            storage.on_change(self._stored_heads)
        if error is not None:
            world.record("journal", f"an erasure fails: {error}")
            raise JournalFailed("the disk failed")


class _SQLiteJournal(SQLiteJournal):
    """SQLite journal on the simulated disk."""

    def __init__(self, storage: Storage, path: Path) -> None:
        assert storage._disk is not None  # noqa: S101 - it was prepared
        super().__init__(path, vfs=storage._disk.name)
        self._storage_of_seed, self._disk = storage, storage._disk

    def _work(self, method: Callable[..., Any], *args: Any) -> Any:
        storage = self._storage_of_seed
        is_write = getattr(method, "__name__", "") in ("write", "_write")
        if is_write and (error := storage.fault()) is not None:
            storage.world.record("journal", f"the journal fails: {error}")
            self._disk.fail_next(error, storage.world.choices.number("disk write that fails", 0, 3))
        try:
            return super()._work(method, *args)
        finally:
            self._disk.fail_next(None)
            if is_write:
                storage.world.record("write", str(len(args[0])), is_shown=False)
                storage.on_write("after write")


class _Disk(apsw.VFS):
    """Simulated disk with the files of SQLite. A power failure may lose or tear writes since the last sync."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.name = f"actgent-simulation-{id(self):x}"
        self.has_lost_power = False
        self._unsynced: dict[Path, tuple[bytes, list[tuple[int, bytes]]]] = {}
        self._error: Exception | None = None
        self._writes_until_error = self._writes = 0
        super().__init__(self.name, base="unix-none")

    def restart(self) -> None:
        """Prepare the simulated disk for the next simulated process.

        Writes that the killed process did not sync are kept, because the page cache of the operating system survives it.
        """
        self._unsynced.clear()
        self.has_lost_power, self._writes = False, 0
        self.fail_next(None)

    def fail_next(self, error: Exception | None, after: int = 0) -> None:
        """Make a later write fail with `error`, after `after` further writes. None cancels a planned failure."""
        self._error, self._writes_until_error = error, after

    def xOpen(self, name: Any, flags: Any) -> "_DiskFile":  # noqa: N802 - apsw's name
        return _DiskFile(self, name, flags)

    def count_write(self) -> None:
        """Count a write or sync of the simulated disk.

        Raises:
            apsw.IOError: The simulated process is dead, the power fails at this write, or a planned disk error is due.
            apsw.FullError: A planned full disk is due.
        """
        world = self.storage.world
        if world.life.is_dead:
            raise apsw.IOError("the process is dead")
        self._writes += 1
        if self._writes == self.storage.power_cut_at:
            world.kill("as the power fails during a disk write")
            self.has_lost_power = True
            raise apsw.IOError("no power")
        if self._error is not None:
            self._writes_until_error -= 1
            if self._writes_until_error < 0:
                full = isinstance(self._error, JournalFull)
                raise apsw.FullError("disk full") if full else apsw.IOError("disk error")

    def note_write(self, path: Path, offset: int, data: bytes) -> None:
        """Record a write to the file `path` that is not synced yet, so that a power failure can lose it.

        Does nothing if the plan of this simulated process has no power failure.
        """
        if not self.storage.power_cut_at:
            return
        if path not in self._unsynced:
            self._unsynced[path] = (path.read_bytes() if path.exists() else b"", [])
        self._unsynced[path][1].append((offset, data))

    def note_sync(self, path: Path) -> None:
        """Discard the recorded writes of the file `path`, because they are synced."""
        self._unsynced.pop(path, None)

    def lose_writes(self) -> None:
        """Rewrite each file as after a power failure: each unsynced write is complete, lost, or torn at a sector."""
        choices = self.storage.world.choices
        for path, (before, writes) in self._unsynced.items():
            data = bytearray(before)
            for offset, written in writes:
                fate = choices.pick("unsynced write", ("complete", "complete", "lost", "torn"))
                kept = b"" if fate == "lost" else written
                if fate == "torn":
                    kept = kept[: choices.number("torn at", 0, len(kept)) // SECTOR_BYTES * SECTOR_BYTES]
                if kept:
                    data.extend(b"\0" * (offset + len(kept) - len(data)))
                    data[offset : offset + len(kept)] = kept
            path.write_bytes(data)
        self._unsynced.clear()


class _DiskFile(apsw.VFSFile):
    def __init__(self, disk: _Disk, name: Any, flags: Any) -> None:
        self._disk = disk
        self._path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary")
        super().__init__("unix-none", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.count_write()
        self._disk.note_write(self._path, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._disk.count_write()
        self._disk.note_sync(self._path)
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.count_write()
        self._disk.note_sync(self._path)


# --- the storage thread as a task ------------------------------------------------------------------


class _Signal:
    """Signal that wakes waiting tasks, in place of a pipe."""

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: list[trio.Event] = []

    def set(self) -> None:
        self.is_set = True
        for event in self._waiting:
            event.set()
        self._waiting.clear()

    async def wait(self) -> None:
        if self.is_set:
            await trio.lowlevel.checkpoint()
            return
        event = trio.Event()
        self._waiting.append(event)
        try:
            await event.wait()
        finally:
            if event in self._waiting:
                self._waiting.remove(event)


class _Job:
    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], done: _Signal) -> None:
        self.fn, self.args, self.done = fn, args, done
        self.is_begun = self.is_dismissed = False
        self.result: outcome.Outcome[Any] | None = None


class _StorageTask:
    """Replacement of `actgent.support.storage_thread.StorageThread`: the same order of jobs, but in a task.

    It runs the same code of the journal as in production, without real time.
    """

    is_clock_real = True

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._life: SimulatedProcess = world.life
        self._done, self._listener = _Signal(), _Signal()
        self._jobs: list[_Job] = []
        self._more, self._has_ended = trio.Event(), False
        trio.lowlevel.spawn_system_task(self._run_jobs, name=name)

    async def _run_jobs(self) -> None:
        while not self._has_ended:
            while self._jobs:
                delay = self._world.choices.pick("disk delay", (0.0001, 0.0001, 0.0002, 0.002, 0.03))
                await trio.sleep(delay)
                if self._jobs:
                    self._do(self._jobs.pop(0))
            self._more = trio.Event()
            await self._more.wait()

    def _do(self, job: _Job) -> None:
        self._world.check_alive(self._life)
        job.result = outcome.capture(job.fn, *job.args)
        job.done.set()

    def prepare(self, fn: Callable[..., Any], *args: Any) -> _Job:
        return _Job(fn, args, self._done)

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        job = self.prepare(fn, *args)
        await self.wait_for(job)
        assert job.result is not None  # noqa: S101 - it was awaited
        return job.result.unwrap()

    async def wait_for(self, job: _Job) -> None:
        while job.result is None and not job.is_dismissed:
            self._begin(job)
            await self._done.wait()
            self._empty(self._done)
        job.is_dismissed = False

    def dismiss(self, job: _Job) -> None:
        job.is_dismissed = True
        self._done.set()

    def _begin(self, job: _Job) -> None:
        if not job.is_begun:
            job.is_begun = True
            self._jobs.append(job)
            self._more.set()

    def run_now(self, fn: Callable[..., Any], *args: Any) -> Any:
        while self._jobs:
            self._do(self._jobs.pop(0))
        self._world.check_alive(self._life)
        return fn(*args)

    def start(self, fn: Callable[..., Any], *args: Any) -> _Job:
        job = _Job(fn, args, self._listener)
        self._begin(job)
        return job

    async def listen(self) -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            await self._listener.wait()
            self._empty(self._listener)

    def _empty(self, signal: _Signal) -> None:
        if self._has_ended:
            raise trio.ClosedResourceError
        signal.is_set = False

    def ring(self) -> None:
        self._listener.set()

    def end(self, fn: Callable[..., Any]) -> None:
        if self._world.is_alive(self._life):
            self.run_now(fn)
        self._has_ended = True
        self._more.set()
        self._done.set()
        self._listener.set()
