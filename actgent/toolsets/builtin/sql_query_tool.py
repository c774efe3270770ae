"""`sql_tool`: one SELECT per call to SQLite or PostgreSQL, with limits on rows, bytes, time and temporary space."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.limits_and_schedules.id_and_number_validation import at_least_one, check_seconds
from actgent.tools.function_tool import FunctionTool
from actgent.tools.tool_interface import Effect, Tool

MAX_ROWS = 1000
"""Default maximum number of rows in a result."""
MAX_CHARACTERS = 200_000
"""Maximum number of characters of all values in a result."""
Row = Sequence[Any]


def sql_tool(
    database: str,
    name: str = "query",
    *,
    description: str = "Ask the database one SELECT statement.",
    max_rows: int = MAX_ROWS,
    timeout: float = 10.0,
) -> Tool:
    """Make a tool that runs one read-only SQL statement per call, with parameters.

    SQLite is opened read-only, its authorizer allows only SELECT, and its temporary files are limited to 100 MB.

    PostgreSQL runs the statement in a READ ONLY transaction and rolls it back. Functions that change settings, locks, large
    objects or files, or that run SQL from text (`set_config`, `pg_advisory_lock`, `lo_*`, `query_to_xml`, `dblink`), are
    rejected. This process cancels the statement at its own deadline, and the server truncates long values. Give the tool a
    role that can read only the data that the model needs:

    - User-defined functions run with the rights of the role. Functions of a superuser read files and stop servers; the log
      warns of it.
    - Temporary files are limited to 100 MB only if the role may set `temp_file_limit`. Otherwise set the limit on the server:
      `ALTER ROLE name SET temp_file_limit = '100MB'`.
    - Memory and CPU time of the server are limited only by `work_mem` and `timeout`.

    Args:
        database: `sqlite:///PATH` or `postgres://USER@HOST/DATABASE`; the latter requires the extra `postgres`.
        name: Name by which the model calls the tool.
        description: Describes the tables to the model.
        max_rows: Maximum number of rows in a result.
        timeout: Time limit in seconds for connection and statement together.

    Raises:
        ConfigurationError: The database URL is invalid.
    """
    at_least_one("max_rows", max_rows)
    check_seconds("timeout", timeout)
    kind, _, rest = database.partition("://")
    if kind not in ("sqlite", "postgres", "postgresql") or not rest:
        raise ConfigurationError(
            f"database must be sqlite:///PATH or postgres://HOST/DATABASE, not {kind[:40]!r}"
        )

    def ask(sql: str, parameters: dict[str, str | float | bool | None] | None = None) -> dict[str, Any]:
        """Run one SQL statement with parameters, and return the columns and rows of its result."""
        if kind == "sqlite":
            return _ask_sqlite(rest.removeprefix("/"), sql, parameters or {}, max_rows, timeout)
        return _ask_postgres(database, sql, parameters or {}, max_rows, timeout)

    sign = ":name" if kind == "sqlite" else "%(name)s"
    words = f"{description} Values go into `parameters`, and into the statement as {sign}."
    effect: Effect = "pure"
    tool = FunctionTool(name, words, ask, effect=effect, timeout=timeout + 5)
    tool.outside = True  # contents of databases are untrusted
    tool.sinks = ("sql",)
    return tool


def _ask_sqlite(
    path: str, sql: str, parameters: Mapping[str, Any], max_rows: int, timeout: float
) -> dict[str, Any]:
    from .sqlite_select import open_sqlite_query  # noqa: PLC0415 - where it is used

    with open_sqlite_query(path, sql, parameters, timeout=timeout) as (names, rows):
        return _collect_rows(names, rows, max_rows)


def _ask_postgres(
    address: str, sql: str, parameters: Mapping[str, Any], max_rows: int, timeout: float
) -> dict[str, Any]:
    from .postgres_select import QueryBounds, open_postgres_query  # noqa: PLC0415 - psycopg is an extra

    bounds = QueryBounds(rows=max_rows, characters=MAX_CHARACTERS, seconds=timeout)
    with open_postgres_query(address, sql, parameters, bounds=bounds) as (names, rows):
        return _collect_rows(names, rows, max_rows)


def _collect_rows(names: Sequence[str], rows: Iterable[Row], max_rows: int) -> dict[str, Any]:
    """Convert the rows of a query to JSON data: the members `columns`, `rows` and `more`.

    `more` is True if rows were left out because of `max_rows` or of the maximum size.
    """
    shown: list[list[Any]] = []
    size = 0
    for row in rows:
        if len(shown) >= max_rows or size > MAX_CHARACTERS:
            return {"columns": list(names), "rows": shown, "more": True}
        shown.append([_value(each) for each in row])
        size += sum(len(str(each)) for each in shown[-1])
    return {"columns": list(names), "rows": shown, "more": False}


def _value(value: Any) -> Any:
    """Convert a column value to JSON data. Bytes become a text with their size, and types that JSON lacks become text.

    Long text is truncated.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (bytes, memoryview)):
        return f"[{counted(len(value), 'byte')}]"
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}[cut]"
