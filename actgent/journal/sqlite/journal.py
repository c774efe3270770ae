"""Journal in one SQLite file, for agents on one machine.

The write-ahead log uses `synchronous=FULL`: each transaction is synced before it is confirmed, so it survives a power
cut. The file belongs to one process. A lock file names the owner, and SQLite's own lock excludes other programs.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import outcome
import trio

from actgent.errors import Fenced, JournalDamaged, JournalError, JournalFailed
from actgent.journal.group_commit.base_journal_with_group_commit import ALL_SESSIONS, GroupedJournal
from actgent.journal.group_commit.read_batching import Found, read_each
from actgent.journal.group_commit.row_format import Head, Page, Row
from actgent.journal.group_commit.storage_interface import HeadFound
from actgent.journal.journal_interface import Backup, Snapshot
from actgent.journal.session_list_queries import Cursor, SessionFilter, SessionKey, State
from actgent.support.files_shared_by_processes import plain_name
from actgent.support.storage_thread import Job, StorageThread

from .atomic_file_writes import temporary_file_for
from .backup import PageCopy, mark_without_log, seal
from .damage_checks_on_open import check_kind, examine, prepare
from .disk_errors import translate_errors
from .lock_file import Lock, ReaderLock
from .replaced_file_checks import JournalFileIdentity
from .sql_statements import SqliteFile

T = TypeVar("T")


class SQLiteJournal(GroupedJournal):
    """A journal in one SQLite file. Its write-ahead log and its lock file are in the same folder."""

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        super().__init__()
        self._path = path
        self._vfs = vfs
        self._thread: StorageThread | None = None
        self._lock: Lock | None = None
        self._look_lock: ReaderLock | None = None
        self._db: apsw.Connection | None = None
        self._file: SqliteFile | None = None

    async def _acquire_storage(self) -> int:
        if self._thread is None:
            self._thread = StorageThread(f"journal {self._path.name}")
            self._may_start = self._thread.is_clock_real
        epoch, self.identity = await self._thread.run(_call, self._own)
        return epoch

    async def _release(self) -> None:
        if self._thread is not None:
            await self._thread.run(self._shut)
            self._release_now()

    def _release_now(self) -> None:
        if self._thread is not None:
            self._thread.end(self._shut)
            self._thread, self._may_start = None, False

    # --- in the storage thread, which has the lock, the connection and the file ---------------

    def _own(self) -> tuple[int, bytes]:
        if self._file is None:
            self._open()
        assert self._file is not None  # noqa: S101 - it is open
        return self._file.begin_epoch()

    def _open(self) -> None:
        if self._lock is None:
            check_kind(self._path)
            self._lock = Lock(self._path)
        try:
            facts = examine(self._path, self._lock.read_note())
            self._db = apsw.Connection(str(self._path), vfs=self._vfs)
            self._look_lock = ReaderLock(self._path)
            self._file = prepare(self._db, facts, lock=self._lock, reader_lock=self._look_lock)
            self._file.file_identity = JournalFileIdentity(self._path)
        except BaseException as error:
            if isinstance(error, JournalDamaged):
                error.add_note(advice(self._path))
            self._shut()
            raise

    def _shut(self) -> None:
        """Close the journal file and its lock files.

        A write-ahead log that cannot be merged into the file stays, and is read at the next start.
        """
        file, self._file = self._file, None
        db, self._db = self._db, None
        lock, self._lock = self._lock, None
        reader_lock, self._look_lock = self._look_lock, None
        with contextlib.suppress(JournalError, apsw.Error):
            if file is not None and not file.is_lost:  # otherwise SQLite would merge the log of another file
                _call(file.end)
        with contextlib.suppress(apsw.Error):  # the disk may fail here too
            if db is not None:
                db.close()
        for each in (reader_lock, lock):
            if each is not None:
                each.close()

    # --- reads and writes -----------------------------------------------------------------------

    async def _read_heads(self, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        return await self._run(SqliteFile.read_heads, keys)

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        await self._run(SqliteFile.write, rows, heads)

    def _prepare_writing(
        self, rows: Sequence[Row], heads: Sequence[Head], new: Sequence[SessionKey], *, is_led: bool
    ) -> Job:
        assert self._thread is not None  # noqa: S101 - it may start
        begin = self._thread.prepare if is_led else self._thread.start
        return begin(self._work, _write, rows, heads, new)

    async def _wait_led(self, work: Job) -> None:
        if self._thread is not None:
            try:  # noqa: SIM105 - suppress() is slower, and each commit comes here
                await self._thread.wait_for(work)
            except trio.ClosedResourceError:  # the journal is closing, which raises in the caller
                pass

    def _stop_waiting(self, work: Job) -> None:
        if self._thread is not None:
            self._thread.dismiss(work)

    async def _wait_called(self) -> None:
        thread = self._thread
        await (super()._wait_called() if thread is None else thread.listen())

    def _call(self) -> None:
        if self._writer is not None or self._thread is None:
            super()._call()
        else:
            self._thread.ring()

    async def _roll_back(self, key: SessionKey, head: Head | None, epoch: int) -> None:
        await self._run(SqliteFile.roll_back, key, head)

    async def _newest_body(self) -> bytes | None:
        return await self._run(SqliteFile.newest_body)

    async def _read_some(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return await self._run(read_whole, keys)

    async def _read_tails(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return await self._run(read_tails, keys)

    async def _read_page(self, key: SessionKey, after: int, limit: int) -> Page:
        return await self._run(SqliteFile.read_page, key, after, limit)

    def _read_page_blocking(self, key: SessionKey, after: int, limit: int) -> Page:
        if self._thread is None:
            raise JournalFailed(f"{self._path.name} is not open")
        return self._thread.run_now(self._work, SqliteFile.read_page, key, after, limit)

    async def _find_snapshot(self, key: SessionKey) -> Snapshot | None:
        return await self._run(SqliteFile.find_snapshot, key)

    async def _keep_snapshot(self, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        return await self._run(SqliteFile.keep_snapshot, key, snapshot, self._keys)

    async def _drop_snapshots(self, key: SessionKey, epoch: int) -> None:
        await self._run(SqliteFile.drop_snapshots, key)

    async def _list_unfinished(self, agent: str) -> list[str]:
        return await self._run(SqliteFile.list_unfinished, agent)

    async def _count_waiting(self) -> dict[str, int]:
        return await self._run(SqliteFile.count_waiting)

    async def _list_due(self, agent: str) -> list[tuple[str, float]]:
        return await self._run(SqliteFile.list_due, agent)

    async def _list_suspended(self, agent: str, after: str, limit: int) -> list[str]:
        return await self._run(SqliteFile.list_suspended, agent, after, limit)

    async def _list_heads(self, agent: str | None) -> list[Head]:
        return await self._run(SqliteFile.list_heads, agent)

    async def _list_agents(self, session_ids: Sequence[str]) -> Sequence[outcome.Outcome[list[str]]]:
        return [*map(outcome.Value, await self._run(SqliteFile.list_agents, session_ids))]

    async def _list_children(self, keys: Sequence[SessionKey]) -> list[Head]:
        return await self._run(SqliteFile.list_children, keys)

    async def list_changed(self, after: SessionKey, limit: int) -> list[SessionKey]:
        return await self._run(SqliteFile.list_changed, after, limit)

    async def update_list_order(self, keys: Sequence[SessionKey]) -> None:
        await self._run(SqliteFile.update_list_order, keys)

    async def select_page(
        self, session_filter: SessionFilter, after: Cursor | None, limit: int
    ) -> list[Head]:
        return await self._run(SqliteFile.select_page, session_filter, after, limit)

    async def count_states(self) -> dict[tuple[str, State], int]:
        return await self._run(SqliteFile.count_states)

    async def _list_to_erase(self, limit: int) -> list[SessionKey]:
        return await self._run(SqliteFile.list_to_erase, limit)

    async def _erase_trees(
        self, roots: Sequence[SessionKey], unchanged_since: float, epoch: int
    ) -> list[SessionKey]:
        return await self._run(SqliteFile.erase_trees, roots, unchanged_since)

    async def _erase(self, key: SessionKey, epoch: int) -> None:
        await self._run(SqliteFile.erase, key)

    def sibling_url(self, name: str) -> str | None:
        return f"sqlite:///{self._path.with_name(f'{self._path.stem}.{plain_name(name)}.data.db')}"

    async def backup(self, target: Path) -> Backup:
        await self._flush(ALL_SESSIONS)
        with temporary_file_for(target) as draft:
            await self._copy_pages(draft)
            return await trio.to_thread.run_sync(_finish_backup, draft, target)

    async def _copy_pages(self, draft: Path) -> None:
        async with self._storage:
            with trio.CancelScope(
                shield=True
            ):  # otherwise the copy would stay open and create its file again
                copy = await self._run(partial(_begin_copy, self._db, draft))
        try:
            is_done = False
            while not is_done:
                async with self._storage:
                    is_done = await self._run(partial(_copy_on, copy))
        finally:
            with trio.CancelScope(shield=True):
                async with self._storage:
                    await self._run(partial(_end_copy, copy))

    async def _run(self, method: Callable[..., T], *args: Any) -> T:
        """Run a method in the storage thread.

        Put several statements into one call: a switch to the thread costs more than a statement.
        """
        if self._thread is None:
            raise JournalFailed(f"{self._path.name} is not open")
        try:
            return await self._thread.run(self._work, method, *args)
        except trio.ClosedResourceError as error:
            raise JournalFailed(f"{self._path.name} was closed during the call") from error

    def _work(self, method: Callable[..., T], *args: Any) -> T:
        if self._file is None:
            raise JournalFailed(f"{self._path.name} is not open")
        if self._file.is_lost:
            _call(self._file.check_file)
        if self._file.file_identity is not None:
            self._file.file_identity.check_log()
        try:
            return _call(method, self._file, *args)
        except (
            Fenced
        ) as error:  # this process holds the lock, so the other program leaves soon and the batch is retried
            raise JournalFailed(str(error)) from error
        finally:
            self._file.restart_long_log()


def advice(path: Path) -> str:
    """Return the shell commands that check and recover a damaged journal file, as a note for an error."""
    return (
        f"`actgent journal check {path}` lists all damage, and `actgent journal recover {path} NEW` "
        "copies the undamaged records into a new file"
    )


def read_whole(file: SqliteFile, keys: Sequence[SessionKey]) -> list[Found]:
    """Read sessions with all their records, in the storage thread."""
    return read_each(keys, with_translated_errors(file.read))


def read_tails(file: SqliteFile, keys: Sequence[SessionKey]) -> list[Found]:
    """Read sessions from their newest snapshots, in the storage thread."""
    return read_each(keys, with_translated_errors(file.read_tail))


def with_translated_errors(fn: Callable[..., T]) -> Callable[..., T]:
    """Return a function that converts SQLite errors of `fn` to journal errors."""
    return partial(_call, fn)


def _write(file: SqliteFile, rows: Sequence[Row], heads: Sequence[Head], new: Sequence[SessionKey]) -> None:
    if new and file.read_heads(new):
        raise HeadFound
    file.write(rows, heads)


def _call(fn: Callable[..., T], *args: Any) -> T:
    with translate_errors():
        return fn(*args)


def _begin_copy(source: Any, draft: Path, _: SqliteFile) -> PageCopy:
    return PageCopy(source, draft)


def _copy_on(copy: PageCopy, _: SqliteFile) -> bool:
    return copy.step()


def _end_copy(copy: PageCopy, _: SqliteFile) -> None:
    copy.end()


def _finish_backup(draft: Path, target: Path) -> Backup:
    mark_without_log(draft)
    return seal(draft, target, (b"", 0))
