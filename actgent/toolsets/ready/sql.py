"""Questions to a database that is only read: the database refuses the rest, whatever the text of a statement says."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from actgent.control.arguments import at_least_one, check_seconds
from actgent.errors import ConfigurationError, ToolError
from actgent.errors.printable import counted, shown
from actgent.support.logs import logger_of
from actgent.tools.base import Effect, Tool
from actgent.tools.function import FunctionTool

from . import sql_functions

MAX_ROWS = 1000
MAX_CHARACTERS = 200_000
"""Of all values of a result together."""
MAX_PATTERN = 1000
"""Bytes of a pattern of LIKE and GLOB in SQLite, which goes through it at each place of a text."""
_STEPS = 1000
"""Instructions of SQLite between two looks at the clock."""
_log = logger_of(__name__)
_QUOTED, _SLASHED = re.compile(r"([\\ ])"), r"\\\1"
"""What has a backslash before it in options of libpq."""
Row = Sequence[Any]


def sql_tool(
    database: str,
    name: str = "query",
    *,
    description: str = "Ask the database one SELECT statement.",
    max_rows: int = MAX_ROWS,
    timeout: float = 10.0,
) -> Tool:
    """Make a tool that asks a database: one statement a call, with parameters, which changes nothing.

    SQLite is opened read-only, and its authorizer lets a statement select and nothing else. PostgreSQL runs it as a cursor
    in a transaction that is READ ONLY, with a `statement_timeout`, and rolls that back; give it a role that may only read
    what it needs, since functions are run with the rights of the role: those of a superuser read files and end servers, and
    the log warns of one.

    Args:
        database: `sqlite:///PATH` or `postgres://USER@HOST/DATABASE`; the latter needs the extra `postgres`.
        name: What the model calls it by.
        description: Which tables there are, for the model.
        max_rows: How many rows a result has at most.
        timeout: Seconds for a statement; the database stops it then.

    Raises:
        ConfigurationError: the address is neither of these.
    """
    at_least_one("max_rows", max_rows)
    check_seconds("timeout", timeout)
    kind, _, rest = database.partition("://")
    if kind not in ("sqlite", "postgres", "postgresql") or not rest:
        raise ConfigurationError(
            f"a database is sqlite:///PATH or postgres://HOST/DATABASE, not {kind[:40]!r}"
        )

    def ask(sql: str, parameters: dict[str, str | float | bool | None] | None = None) -> dict[str, Any]:
        """Ask."""
        if kind == "sqlite":
            return _ask_sqlite(rest.removeprefix("/"), sql, parameters or {}, max_rows, timeout)
        return _ask_postgres(database, sql, parameters or {}, max_rows, timeout)

    sign = ":name" if kind == "sqlite" else "%(name)s"
    words = f"{description} Values go into `parameters`, and into the statement as {sign}."
    effect: Effect = "pure"
    tool = FunctionTool(name, words, ask, effect=effect, timeout=timeout + 5)
    tool.outside = True  # nobody knows who wrote what is in a database
    return tool


def _ask_sqlite(
    path: str, sql: str, parameters: Mapping[str, Any], max_rows: int, timeout: float
) -> dict[str, Any]:
    import apsw  # noqa: PLC0415 - where it is used

    over = time.monotonic() + timeout
    begun: list[str] = []

    def is_first(_cursor: apsw.Cursor, statement: str, _bindings: Any) -> bool:
        begun.append(statement)
        return len(begun) == 1

    try:
        connection = apsw.Connection(Path(path).absolute().as_uri() + "?mode=ro", flags=_flags(apsw))
        try:
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, sql_functions.MAX_VALUE)
            connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
            connection.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN)
            sql_functions.install(connection)
            connection.set_busy_timeout(int(timeout * 1000))
            connection.pragma("query_only", 1)
            connection.authorizer = _authorizer(apsw)
            connection.set_progress_handler(lambda: time.monotonic() > over, _STEPS)
            connection.exec_trace = is_first
            cursor = connection.execute(sql, parameters)
            names = [each[0] for each in cursor.get_description()] if _has_rows(cursor, apsw) else []
            return _told(names, cursor, max_rows)
        finally:
            connection.close(force=True)
    except apsw.ExecTraceAbort:
        raise ToolError("one statement at a time is allowed") from None
    except apsw.InterruptError:
        raise ToolError(f"the statement took longer than {timeout:g} s") from None
    except (apsw.AuthError, apsw.ReadOnlyError) as error:
        raise ToolError(f"Only SELECT queries are allowed: {error}") from None
    except KeyError as error:
        raise ToolError(f"the parameter {error} is missing") from None
    except (apsw.Error, ValueError) as error:
        raise ToolError(f"the database refused it: {error}") from None


def _flags(apsw: Any) -> int:
    return int(apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def _has_rows(cursor: Any, apsw: Any) -> bool:
    try:
        cursor.get_description()
    except apsw.ExecutionCompleteError:  # no row, and so no names
        return False
    return True


def _authorizer(apsw: Any) -> Any:
    """Let a statement select, read and compute, and nothing else."""
    allowed = {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_RECURSIVE}
    refused = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}

    def judge(action: int, _first: str, second: str, _database: str, _trigger: str) -> int:
        if action in allowed or (action == apsw.SQLITE_FUNCTION and second.lower() not in refused):
            return int(apsw.SQLITE_OK)
        return int(apsw.SQLITE_DENY)

    return judge


def _ask_postgres(
    address: str, sql: str, parameters: Mapping[str, Any], max_rows: int, timeout: float
) -> dict[str, Any]:
    import psycopg  # noqa: PLC0415 - an extra

    from actgent.support.postgres_address import split_schema  # noqa: PLC0415 - it imports psycopg

    options = f"-c default_transaction_read_only=on -c statement_timeout={int(timeout * 1000)}"
    address, schema = split_schema(address, default="", owner="the database")
    if schema:
        options += f' -c search_path="{_QUOTED.sub(_SLASHED, schema)}"'
    try:
        with psycopg.connect(address, options=options, connect_timeout=max(2, int(timeout))) as connection:
            connection.read_only = True
            _warn_of_superuser(connection.pgconn.parameter_status(b"is_superuser"), connection.info.user)
            try:
                with connection.cursor(name="asked") as cursor:
                    cursor.execute(sql, parameters or None)  # DECLARE: a cursor takes one SELECT only
                    names = [each.name for each in cursor.description or ()]
                    cursor.itersize = 50
                    return _told(names, cursor, max_rows)
            finally:
                connection.rollback()  # some functions write all the same, such as lo_create before PostgreSQL 16
    except psycopg.errors.QueryCanceled:
        raise ToolError(f"the statement took longer than {timeout:g} s") from None
    except psycopg.errors.SyntaxError as error:
        raise ToolError(f"Only one SELECT statement is allowed, and this is none: {error}") from None
    except psycopg.Error as error:
        raise ToolError(f"the database refused it: {error}") from None


def _warn_of_superuser(is_superuser: bytes | None, role: str) -> None:
    if is_superuser == b"on":
        _log.warning(
            "a model asks PostgreSQL as the superuser %s, whose functions read files and end servers: "
            "give sql_tool a role that may only read what it needs",
            shown(role),
        )


def _told(names: Sequence[str], rows: Iterable[Row], max_rows: int) -> dict[str, Any]:
    """The rows as far as they are told; whether there are more."""
    told: list[list[Any]] = []
    size = 0
    for row in rows:
        if len(told) >= max_rows or size > MAX_CHARACTERS:
            return {"columns": list(names), "rows": told, "more": True}
        told.append([_value(each) for each in row])
        size += sum(len(str(each)) for each in told[-1])
    return {"columns": list(names), "rows": told, "more": False}


def _value(value: Any) -> Any:
    """A value as JSON has it: of bytes the size, of a long text the beginning, of a number that is none its name."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (bytes, memoryview)):
        return f"[{counted(len(value), 'byte')}]"
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}[cut]"
