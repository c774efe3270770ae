"""`sql_tool`: one SELECT of a model to SQLite or PostgreSQL, bounded in rows, bytes, time and temporary space."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from actgent.control.arguments import at_least_one, check_seconds
from actgent.errors import ConfigurationError
from actgent.errors.printable import counted
from actgent.tools.base import Effect, Tool
from actgent.tools.function import FunctionTool

MAX_ROWS = 1000
MAX_CHARACTERS = 200_000
"""Of all values of a result together."""
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

    SQLite is opened read-only, its authorizer lets a statement select and nothing else, and its temporary files hold
    100 MB at most.

    PostgreSQL runs the statement alone in a READ ONLY transaction and rolls it back. Functions that change settings,
    locks, large objects or files, or that run SQL from a text (`set_config`, `pg_advisory_lock`, `lo_*`, `query_to_xml`,
    `dblink`), are refused. This process cancels the statement at its own deadline, and the server cuts long values before
    it sends them. Give the tool a role that may read only what the model needs:

    - Functions of your own run with the rights of the role. Those of a superuser read files and end servers; a warning in
      the log names the role.
    - Temporary files have a bound of 100 MB only if the role may set `temp_file_limit`. Otherwise set the bound on the
      server: `ALTER ROLE name SET temp_file_limit = '100MB'`.
    - Memory and CPU time of the server have no other bound than `work_mem` and `timeout`.

    Args:
        database: `sqlite:///PATH` or `postgres://USER@HOST/DATABASE`; the latter needs the extra `postgres`.
        name: What the model calls it by.
        description: Which tables there are, for the model.
        max_rows: How many rows a result has at most.
        timeout: Seconds for the connection and the statement together.

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
    from .sql_sqlite import open_sqlite_query  # noqa: PLC0415 - where it is used

    with open_sqlite_query(path, sql, parameters, timeout=timeout) as (names, rows):
        return _told(names, rows, max_rows)


def _ask_postgres(
    address: str, sql: str, parameters: Mapping[str, Any], max_rows: int, timeout: float
) -> dict[str, Any]:
    from .sql_postgres import QueryBounds, open_postgres_query  # noqa: PLC0415 - psycopg is an extra

    bounds = QueryBounds(rows=max_rows, characters=MAX_CHARACTERS, seconds=timeout)
    with open_postgres_query(address, sql, parameters, bounds=bounds) as (names, rows):
        return _told(names, rows, max_rows)


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
