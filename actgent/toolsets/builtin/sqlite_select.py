"""Execution of a model's SELECT on SQLite: read-only by an authorizer, with limits on time, row size and temporary files.

SQLite has no limit for the temporary files of sorting and grouping. So the connection opens them through a virtual file
system that counts their size (https://www.sqlite.org/vfs.html).

SQLite cannot be interrupted inside of a function: searching a megabyte for half a megabyte takes minutes, whatever the
time limit. Therefore `_install_functions` replaces the functions whose time is the product of two lengths.
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

MAX_PATTERN_BYTES = 1000
"""Maximum length of a LIKE or GLOB pattern, which SQLite matches at each position of a text."""
MAX_TEMPORARY_BYTES = 100_000_000
"""Maximum size of the temporary files of one statement."""
_MAX_ROW_BYTES = 50_000_000
"""Maximum size of a row: SQLite builds the whole row before this process sees it."""
_MAX_ARGUMENTS = 50
"""Maximum number of function arguments; SQLite holds all their values at once."""
_PROGRESS_STEPS = 1000
"""Number of SQLite instructions between two checks of the time limit."""
_TEMPORARY = (
    apsw.SQLITE_OPEN_TEMP_DB
    | apsw.SQLITE_OPEN_TRANSIENT_DB
    | apsw.SQLITE_OPEN_TEMP_JOURNAL
    | apsw.SQLITE_OPEN_SUBJOURNAL
)
MAX_VALUE_BYTES = 1_000_000
"""Maximum size of a value that SQLite creates."""
Value = str | bytes | int | float | None
_numbers = itertools.count()


@contextmanager
def open_sqlite_query(
    path: str, sql: str, parameters: Mapping[str, Any], *, timeout: float
) -> Iterator[tuple[list[str], Iterator[Sequence[Any]]]]:
    """Context manager: run one SELECT, and give the block the column names and an iterator over the rows.

    Args:
        path: Path of the database file.
        sql: The SELECT statement, with `:name` for parameters.
        parameters: Values by parameter name.
        timeout: Time limit of the statement in seconds, including waiting for locks.

    Raises:
        ToolError: The statement is not one SELECT, exceeded its time or temporary space, or failed.
    """
    begun: list[str] = []

    def check_begin(cursor: apsw.Cursor, statement: str, _bindings: Any) -> bool:
        begun.append(statement)
        columns = len(_names(cursor))
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, min(MAX_VALUE_BYTES, _MAX_ROW_BYTES // max(1, columns)))
        return len(begun) == 1

    space = _TemporarySpace(f"actgent-sql-{next(_numbers)}")
    try:
        connection = _connect(path, space, timeout)
        try:
            connection.exec_trace = check_begin
            cursor = connection.execute(sql, parameters)
            yield _names(cursor), cursor
        finally:
            with suppress(
                apsw.Error
            ):  # closing raises errors of the virtual file system, which SQLite itself would ignore
                connection.close(force=True)
    except apsw.ExecTraceAbort:
        raise ToolError("only one statement per call is allowed") from None
    except apsw.InterruptError:
        raise ToolError(f"the statement took longer than {timeout:g} s") from None
    except apsw.FullError:
        raise ToolError(
            f"the statement needs more than {MAX_TEMPORARY_BYTES:,} bytes of temporary files: sort or group fewer rows"
        ) from None
    except (apsw.AuthError, apsw.ReadOnlyError) as error:
        raise ToolError(f"Only SELECT queries are allowed: {error}") from None
    except KeyError as error:
        raise ToolError(f"parameters must contain a value for {error}, which the statement uses") from None
    except (apsw.Error, ValueError) as error:
        raise ToolError(f"the database rejected the statement: {error}") from None
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
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        connection.limit(apsw.SQLITE_LIMIT_FUNCTION_ARG, _MAX_ARGUMENTS)
        connection.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN_BYTES)
        _install_functions(connection)
        connection.set_busy_timeout(int(timeout * 1000))
        connection.pragma("temp_store", "file")
        connection.pragma("query_only", 1)
        connection.authorizer = _authorizer()
        connection.set_progress_handler(lambda: time.monotonic() > over, _PROGRESS_STEPS)
    except BaseException:
        connection.close(force=True)
        raise
    return connection


def _names(cursor: apsw.Cursor) -> list[str]:
    """Return the column names of a statement; an empty list if it returns no rows."""
    try:
        return [each[0] for each in cursor.get_description()]
    except apsw.ExecutionCompleteError:
        return []


def _authorizer() -> Any:
    """Make an authorizer callback for SQLite, which allows a statement only to select, read and call safe functions."""
    allowed = {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_RECURSIVE}
    refused = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}

    def judge(action: int, _first: str, second: str, _database: str, _trigger: str) -> int:
        if action in allowed or (action == apsw.SQLITE_FUNCTION and second.lower() not in refused):
            return int(apsw.SQLITE_OK)
        return int(apsw.SQLITE_DENY)

    return judge


class _TemporarySpace(apsw.VFS):
    """SQLite virtual file system that limits all temporary files together to `MAX_TEMPORARY_BYTES`; other files are unchanged."""

    def __init__(self, name: str) -> None:
        self.vfs_name = name
        self.used_bytes = 0
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
            self._space.used_bytes += more
            if self._space.used_bytes > MAX_TEMPORARY_BYTES:
                raise apsw.FullError("temporary files")
        super().xWrite(data, offset)

    def xClose(self) -> None:  # noqa: N802 - apsw's name
        self._space.used_bytes -= self._size
        self._size = 0
        super().xClose()


# --- functions in linear time ---


def _install_functions(connection: Any) -> None:
    """Replace SQL functions that take quadratic time in SQLite by functions that take linear time.

    A query with a quadratic function could block its thread for minutes.
    """
    connection.create_scalar_function("instr", instr, 2, deterministic=True)
    connection.create_scalar_function("replace", replace, 3, deterministic=True)
    for name, function in (("trim", trim), ("ltrim", ltrim), ("rtrim", rtrim)):
        for arguments in (1, 2):
            connection.create_scalar_function(name, function, arguments, deterministic=True)


def instr(text: Value, substring: Value) -> int | None:
    """Return the position of `substring` in `text`, starting at 1; 0 if it does not occur.

    Return None if an argument is NULL, like SQLite.
    """
    if text is None or substring is None:
        return None
    if isinstance(text, bytes) and isinstance(substring, bytes):
        return text.find(substring) + 1
    return _text(text).find(_text(substring)) + 1


def replace(text: Value, old: Value, new: Value) -> Value:
    """Return `text` with all occurrences of `old` replaced by `new`.

    Raises:
        ValueError: The result would exceed `MAX_VALUE_BYTES`.
    """
    if text is None or old is None:
        return None
    whole, gone = _text(text), _text(old)
    if not gone:
        return whole if isinstance(text, bytes) else text
    if new is None:
        return None
    put = _text(new)
    if len(whole) + whole.count(gone) * (len(put) - len(gone)) > MAX_VALUE_BYTES:
        raise ValueError("string or blob too big")
    return whole.replace(gone, put)


def trim(text: Value, signs: Value = " ") -> str | None:
    """Return `text` without the characters in `signs` at both ends; None if an argument is NULL, like SQLite."""
    return rtrim(ltrim(text, signs), signs)


def ltrim(text: Value, signs: Value = " ") -> str | None:
    """Return `text` without the characters in `signs` at its start; None if an argument is NULL, like SQLite."""
    if text is None or signs is None:
        return None
    whole, gone = _text(text), frozenset(_text(signs))
    return whole[next((index for index, sign in enumerate(whole) if sign not in gone), len(whole)) :]


def rtrim(text: Value, signs: Value = " ") -> str | None:
    """Return `text` without the characters in `signs` at its end; None if an argument is NULL, like SQLite."""
    found = ltrim(None if text is None else _text(text)[::-1], signs)
    return None if found is None else found[::-1]


def _text(value: str | bytes | float) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
