"""The journal in one SQLite file: what an agent on one machine needs to survive.

Write-ahead log with `synchronous=FULL`: each transaction is synced before it is confirmed, which
is what survives a power cut. The file belongs to one process: a lock beside it names the owner, and
SQLite's own lock keeps other programs out.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from actgent.errors import JournalDamaged, JournalError, JournalFailed

from .group import GroupedJournal
from .lock import Lock
from .reading import Found, read_each
from .sqlite_file import File, check_kind, examine, prepare, translated
from .steps import Head, Row

T = TypeVar("T")


class SQLiteJournal(GroupedJournal):
    """A journal in one file; the file, its log and the lock stand beside each other."""

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        super().__init__()
        self._path = path
        self._vfs = vfs
        self._lock: Lock | None = None
        self._db: apsw.AsyncConnection | None = None
        self._file: File | None = None

    async def _take(self) -> int:
        if self._file is None:
            if self._lock is None:
                with translated():
                    check_kind(self._path)
                self._lock = Lock(self._path)
            await self._open(self._lock)
        epoch, self.identity = await self._run(File.begin_epoch)
        return epoch

    async def _open(self, lock: Lock) -> None:
        with translated():
            facts = examine(self._path, lock.read_note())
            self._db = await apsw.Connection.as_async(str(self._path), vfs=self._vfs)
        try:
            self._file = await self._db.async_run(_call, partial(prepare, lock=lock), self._db, facts)
        except BaseException as error:
            if isinstance(error, JournalDamaged):
                error.add_note(_advice(self._path))
            await self._release()  # noqa: ASYNC102 - `acquire` shields all of this
            raise

    async def _release(self) -> None:
        if self._db is not None:
            if self._file is not None:
                with contextlib.suppress(JournalError):  # the log stays, and is read at the next start
                    await self._run(File.end)
            with contextlib.suppress(apsw.Error):  # a disk that fails even now
                await self._db.aclose()
            self._db = self._file = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def _read_heads(self, session_ids: Sequence[str]) -> dict[str, Head]:
        return await self._run(File.read_heads, session_ids)

    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        await self._run(File.write, rows, heads)

    async def _take_back(self, session_id: str, head: Head | None, epoch: int) -> None:
        await self._run(File.take_back, session_id, head)

    async def _read_some(self, session_ids: Sequence[str]) -> Sequence[Found]:
        return await self._run(_read_some, session_ids)

    async def _list_unfinished(self, agent: str) -> list[str]:
        return await self._run(File.list_unfinished, agent)

    async def _list_due(self, agent: str) -> list[tuple[str, float]]:
        return await self._run(File.list_due, agent)

    async def _list_suspended(self, agent: str, after: str, limit: int) -> list[str]:
        return await self._run(File.list_suspended, agent, after, limit)

    async def _list_heads(self, agent: str | None) -> list[Head]:
        return await self._run(File.list_heads, agent)

    async def _erase(self, session_id: str, epoch: int) -> None:
        await self._run(File.erase, session_id)

    async def _run(self, method: Callable[..., T], *args: Any) -> T:
        """Run a whole piece of work in SQLite's thread: each hop there costs more than a statement."""
        if self._db is None:
            raise JournalFailed(f"{self._path.name} is not open")
        result: T = await self._db.async_run(_call, method, self._file, *args)
        return result


def _advice(path: Path) -> str:
    return (
        f"`actgent journal check {path}` names all that is damaged, and `actgent journal salvage {path} NEW` "
        "carries what is good into a new file"
    )


def _read_some(file: File, session_ids: Sequence[str]) -> list[Found]:
    return read_each(session_ids, partial(_call, file.read))


def _call(fn: Callable[..., T], *args: Any) -> T:
    with translated():
        return fn(*args)
