"""One SELECT of a model, asked of SQLite: read-only by the authorizer, bounded in time, bytes of a row, and temporary files.

SQLite has no bound for the files in which it sorts and collects. They are opened through a virtual file system of their
connection, which counts what they hold (https://www.sqlite.org/vfs.html).
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
from typing_extensions import Buffer

from actgent.errors import ToolError

from . import sql_functions

MAX_PATTERN = 1000
"""Bytes of a pattern of LIKE and GLOB in SQLite, which goes through it at each place of a text."""
MAX_TEMPORARY = 100_000_000
"""Bytes that the temporary files of one statement hold."""
_MAX_ROW = 50_000_000
"""Bytes of one row: SQLite makes a whole row before this process sees it."""
_MAX_ARGUMENTS = 50
"""Arguments of a function; SQLite holds the values of all of them at once."""
_STEPS = 1000
"""Instructions of SQLite between two looks at the clock."""
_TEMPORARY = (
    apsw.SQLITE_OPEN_TEMP_DB
    | apsw.SQLITE_OPEN_TRANSIENT_DB
    | apsw.SQLITE_OPEN_TEMP_JOURNAL
    | apsw.SQLITE_OPEN_SUBJOURNAL
)
_numbers = itertools.count()


@contextmanager
def open_sqlite_query(
    path: str, sql: str, parameters: Mapping[str, Any], *, timeout: float
) -> Iterator[tuple[list[str], Iterator[Sequence[Any]]]]:
    """Run one SELECT; the block gets its column names and an iterator over its rows.

    Args:
        path: The database file.
        sql: The statement, with `:name` for parameters.
        parameters: Values by name.
        timeout: Seconds of the statement, in which it also waits for locks.

    Raises:
        ToolError: The statement is not one SELECT, took too long or too much space, or failed.
    """
    begun: list[str] = []

    def check_begin(cursor: apsw.Cursor, statement: str, _bindings: Any) -> bool:
        begun.append(statement)
        columns = len(_names(cursor))
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, min(sql_functions.MAX_VALUE, _MAX_ROW // max(1, columns)))
        return len(begun) == 1

    space = _TemporarySpace(f"actgent-sql-{next(_numbers)}")
    try:
        connection = _connect(path, space, timeout)
        try:
            connection.exec_trace = check_begin
            cursor = connection.execute(sql, parameters)
            yield _names(cursor), cursor
        finally:
            with suppress(apsw.Error):  # a virtual file system raises what SQLite itself ignores at the end
                connection.close(force=True)
    except apsw.ExecTraceAbort:
        raise ToolError("one statement at a time is allowed") from None
    except apsw.InterruptError:
        raise ToolError(f"the statement took longer than {timeout:g} s") from None
    except apsw.FullError:
        raise ToolError(
            f"the statement needs more than {MAX_TEMPORARY:,} bytes of temporary files: sort or collect fewer rows"
        ) from None
    except (apsw.AuthError, apsw.ReadOnlyError) as error:
        raise ToolError(f"Only SELECT queries are allowed: {error}") from None
    except KeyError as error:
        raise ToolError(f"the parameter {error} is missing") from None
    except (apsw.Error, ValueError) as error:
        raise ToolError(f"the database refused it: {error}") from None
    finally:
        space.unregister()


def _connect(path: str, space: "_TemporarySpace", timeout: float) -> apsw.Connection:
    over = time.monotonic() + timeout
    connection = apsw.Connection(
        Path(path).absolute().as_uri() + "?mode=ro",
        flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        vfs=space.vfs_name,
    )
    try:
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, sql_functions.MAX_VALUE)
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        connection.limit(apsw.SQLITE_LIMIT_FUNCTION_ARG, _MAX_ARGUMENTS)
        connection.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN)
        sql_functions.install(connection)
        connection.set_busy_timeout(int(timeout * 1000))
        connection.pragma("temp_store", "file")
        connection.pragma("query_only", 1)
        connection.authorizer = _authorizer()
        connection.set_progress_handler(lambda: time.monotonic() > over, _STEPS)
    except BaseException:
        connection.close(force=True)
        raise
    return connection


def _names(cursor: apsw.Cursor) -> list[str]:
    """Return the column names of a statement; [] if it returns no rows."""
    try:
        return [each[0] for each in cursor.get_description()]
    except apsw.ExecutionCompleteError:
        return []


def _authorizer() -> Any:
    """Return an authorizer that lets a statement select, read and compute, and nothing else."""
    allowed = {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_RECURSIVE}
    refused = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}

    def judge(action: int, _first: str, second: str, _database: str, _trigger: str) -> int:
        if action in allowed or (action == apsw.SQLITE_FUNCTION and second.lower() not in refused):
            return int(apsw.SQLITE_OK)
        return int(apsw.SQLITE_DENY)

    return judge


class _TemporarySpace(apsw.VFS):
    """The file system of the platform, in which the temporary files together hold `MAX_TEMPORARY` bytes."""

    def __init__(self, name: str) -> None:
        self.vfs_name = name
        self.held = 0
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - apsw's name
        return _TemporaryFile(self, name, flags) if flags[0] & _TEMPORARY else super().xOpen(name, flags)


class _TemporaryFile(apsw.VFSFile):
    def __init__(self, space: _TemporarySpace, name: Any, flags: list[int]) -> None:
        self._space = space
        self._size = 0
        super().__init__("", name, flags)

    def xWrite(self, data: Buffer, offset: int) -> None:  # noqa: N802 - apsw's name
        if (more := offset + memoryview(data).nbytes - self._size) > 0:
            self._size += more
            self._space.held += more
            if self._space.held > MAX_TEMPORARY:
                raise apsw.FullError("temporary files")
        super().xWrite(data, offset)

    def xClose(self) -> None:  # noqa: N802 - apsw's name
        self._space.held -= self._size
        self._size = 0
        super().xClose()
