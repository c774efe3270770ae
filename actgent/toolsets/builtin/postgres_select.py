"""Execution of a model's SELECT on PostgreSQL: read-only, with a deadline in this process and bounded results.

The role of the connection decides which data a statement may read. In addition, this module
- runs the statement in a READ ONLY transaction of a connection that is closed afterwards,
- rejects built-in functions with effects outside of that transaction: settings, locks, large objects, files,
- cancels the statement at a deadline that no server setting can move,
- makes the server truncate long values, and reads row by row, so that a value of 200 MB never reaches this process.

Sources: https://www.postgresql.org/docs/current/sql-syntax-lexical.html (tokens),
https://www.postgresql.org/docs/current/libpq-single-row-mode.html,
https://www.postgresql.org/docs/current/xfunc-volatility.html.
"""

import re
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import psycopg
from psycopg import pq

from actgent.errors import ToolError
from actgent.errors.text_escaping import shown
from actgent.support.postgres_address import split_schema
from actgent.support.safe_logging import logger_of

_log = logger_of(__name__)
_QUOTED, _SLASHED = re.compile(r"([\\ ])"), r"\\\1"
"""Characters that need a backslash in libpq's `options`, and their replacement."""
_ROW_CHARACTERS = 2_000_000
"""Maximum number of characters of a row that the server may send."""
_CANCEL_SECONDS = 2.0
"""Time limit of a cancel request; then the connection is closed without it."""
_MAX_TEMPORARY = "100MB"
"""Limit of a statement's temporary files on the server; effective only for roles that may set `temp_file_limit`."""
_CHECKS_CONNECTIONS = 140_000
"""Server version from which a running statement notices a closed connection."""
_BYTEA, _BOOL, _INTEGERS, _FLOATS = 17, 16, frozenset({20, 21, 23, 26}), frozenset({700, 701})
"""Type OIDs of PostgreSQL, from its pg_type.dat."""
_HARMLESS = frozenset(
    "clock_timestamp gen_random_uuid pg_database_size pg_indexes_size pg_is_in_recovery pg_relation_size pg_sleep "
    "pg_sleep_for pg_sleep_until pg_table_size pg_tablespace_size pg_total_relation_size random random_normal setseed "
    "timeofday uuidv4 uuidv7".split()
)
"""Names of volatile functions without an effect outside of their statement."""
_HARMLESS_EXTENSIONS = ["pgcrypto", "uuid-ossp"]
_FIND_VOLATILE = """
select p.proname from pg_catalog.pg_proc p
left join pg_catalog.pg_depend d
  on d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass and d.objid = p.oid and d.deptype = 'e'
left join pg_catalog.pg_extension e on e.oid = d.refobjid
where p.provolatile = 'v' and p.proname::pg_catalog.text = any(%(names)s)
  and (p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace or e.extname::pg_catalog.text <> all(%(extensions)s))
limit 1
"""
_TOKEN = re.compile(
    r"""
    (?P<comment>/\*)
    | --[^\r\n]*
    | \s+
    | (?P<escaped>[uU]&"(?:[^"]|"")*")
    | [eE]'(?:[^'\\]|''|\\.)*'
    | '(?:[^']|'')*'
    | (?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$)
    | "(?P<quoted>(?:[^"]|"")*)"
    | (?P<name>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")


@attrs.frozen(kw_only=True)
class QueryBounds:
    """Limits of a statement and its result."""

    rows: int
    """Maximum number of rows."""
    characters: int
    """Maximum number of characters of one value of a row; longer values are truncated."""
    seconds: float
    """Time limit in seconds for connection and statement together."""


@contextmanager
def open_postgres_query(
    address: str, sql: str, parameters: Mapping[str, Any], *, bounds: QueryBounds
) -> Iterator[tuple[list[str], Iterator[Sequence[Any]]]]:
    """Context manager: run one SELECT, and give the block the column names and an iterator over the rows.

    A truncated value has one character more than the limit, and `bytea` is shown as its size. After the block, the statement is cancelled and the connection closed.

    Args:
        address: URL of the database, `postgres://USER@HOST/DATABASE`.
        sql: The SELECT statement, with `%(name)s` for parameters.
        parameters: Values by parameter name.
        bounds: Limits of the statement and its result.

    Raises:
        ToolError: The statement is not one SELECT, calls a rejected function, exceeded its time, or failed.
    """
    deadline = time.monotonic() + bounds.seconds
    try:
        connection = _connect(address, bounds.seconds)
        statement = _Statement(connection, deadline)
        try:
            with suppress(psycopg.errors.InsufficientPrivilege):
                connection.execute("select set_config('temp_file_limit', %s, false)", [_MAX_TEMPORARY])
            if connection.info.server_version >= _CHECKS_CONNECTIONS:
                connection.execute("select set_config('client_connection_check_interval', '1s', false)")
            connection.execute("begin read only")
            # An empty mapping would make psycopg read each % as a placeholder.
            text = psycopg.ClientCursor(connection).mogrify(sql, parameters or None).rstrip("; \t\r\n")
            columns = statement.describe(text)
            _reject_functions(connection, text)
            yield [each.name for each in columns], statement.rows(_limit_values(text, columns, bounds))
        finally:
            statement.close()
    except (_DeadlineReached, psycopg.errors.QueryCanceled):
        raise ToolError(f"the statement took longer than {bounds.seconds:g} s") from None
    except psycopg.errors.SyntaxError as error:
        raise ToolError(f"Only one SELECT statement is allowed: {error}") from None
    except (psycopg.Error, ValueError) as error:
        raise ToolError(f"the database rejected the statement: {error}") from None


def _connect(address: str, timeout: float) -> "psycopg.Connection[Any]":
    address, schema = split_schema(address, default="", owner="the database")
    settings = {
        "default_transaction_read_only": "on",
        "statement_timeout": str(max(1, int(timeout * 1000))),
        "standard_conforming_strings": "on",
        "datestyle": "ISO",
    }
    if schema:
        settings["search_path"] = f'"{schema}"'
    options = " ".join(f"-c {name}={_QUOTED.sub(_SLASHED, value)}" for name, value in settings.items())
    connection = psycopg.connect(
        address,
        options=options,
        connect_timeout=max(2, int(timeout)),
        autocommit=True,
        client_encoding="utf8",
    )
    if connection.pgconn.parameter_status(b"is_superuser") == b"on":
        _log.warning(
            "sql_tool connects to PostgreSQL as the superuser %s, whose functions read files and stop servers: "
            "use a role that can read only the required data",
            shown(connection.info.user),
        )
    return connection


# --- functions ---------------------------------------------------------------------------------


def _reject_functions(connection: "psycopg.Connection[Any]", sql: str) -> None:
    """Reject a statement that calls volatile functions of PostgreSQL or an extension, such as `set_config` or `dblink`.

    User-defined functions are limited by the rights of the role.

    Raises:
        ToolError: The statement calls such a function.
    """
    names = sorted(find_called_names(sql) - _HARMLESS)
    if not names:
        return
    found = connection.execute(
        _FIND_VOLATILE, {"names": names, "extensions": _HARMLESS_EXTENSIONS}
    ).fetchone()
    if found is not None:
        raise ToolError(
            f"the function {found[0]} is not allowed: statements may only read, not change settings, locks or files"
        )


def find_called_names(sql: str) -> frozenset[str]:
    """Return all names before an opening parenthesis in an SQL statement. They include every function that it calls by name.

    Raises:
        ToolError: A name uses Unicode escapes (`U&"..."`).
    """
    found, last, index = set[str](), "", 0
    while index < len(sql):
        token = _TOKEN.match(sql, index)
        assert token is not None  # noqa: S101 - the last alternative matches any character
        index = token.end()
        kind = token.lastgroup
        if kind == "comment":
            index = _after_comment(sql, index)
        elif kind == "dollar":
            end = sql.find(token[0], index)
            index, last = (len(sql) if end < 0 else end + len(token[0])), ""
        elif kind == "escaped":
            raise ToolError(
                'names with Unicode escapes (U&"...") are not allowed: write the characters themselves'
            )
        elif kind == "quoted":
            last = token["quoted"].replace('""', '"')
        elif kind == "name":
            last = token["name"].lower()
        elif kind == "other":
            if token[0] == "(" and last:
                found.add(last)
            last = ""
        elif not token[0].isspace() and not token[0].startswith("--"):
            last = ""  # a string literal
    return frozenset(found)


def _after_comment(sql: str, index: int) -> int:
    """Return the index after the end of a `/*` comment whose text begins at `index`; the length of `sql` without an end.

    Comments of PostgreSQL nest.
    """
    depth = 1
    while depth:
        mark = _COMMENT_MARK.search(sql, index)
        if mark is None:
            return len(sql)
        depth += 1 if mark[0] == "/*" else -1
        index = mark.end()
    return index


# --- the statement -----------------------------------------------------------------------------


class _DeadlineReached(Exception):
    pass


@attrs.frozen
class _Column:
    """Name and type of a result column."""

    name: str
    type_oid: int
    size: int
    """Size of a value of this column in bytes; negative if the size varies."""


def _limit_values(sql: str, columns: Sequence[_Column], bounds: QueryBounds) -> str:
    """Wrap a SELECT statement, so that the server truncates long values and stops after `bounds.rows` + 1 rows."""
    most = min(bounds.characters + 1, _ROW_CHARACTERS // len(columns))
    values = []
    for number, column in enumerate(columns, 1):
        name = f"t.c{number}"
        if column.type_oid == _BYTEA:
            values.append(f"pg_catalog.octet_length({name})")
        elif column.size > 0:
            values.append(name)
        else:
            values.append(f"pg_catalog.left({name}::pg_catalog.text, {most})")
    names = ", ".join(f"c{number}" for number in range(1, len(columns) + 1))
    # The line end terminates a `--` comment at the end of the statement.
    return f"select {', '.join(values)} from ({sql}\n) as t({names}) limit {bounds.rows + 1}"  # noqa: S608 - running the model's SQL is the purpose


@attrs.define(eq=False)
class _Statement:
    """Runs statements on a connection until a deadline."""

    _connection: "psycopg.Connection[Any]"
    _deadline: float
    """Deadline as a value of `time.monotonic()`."""
    _columns: list[_Column] = attrs.field(factory=list)

    def describe(self, sql: str) -> Sequence[_Column]:
        """Make the server parse a statement without running it, and return the columns of its result.

        Text that closes the parenthesis of `_limit_values` is a syntax error here, because the statement is parsed
        alone.

        Raises:
            psycopg.Error: The text is not one valid statement.
            ToolError: The statement returns no columns.
        """
        connection = self._connection.pgconn
        connection.send_prepare(b"", sql.encode())
        self._all_results()
        connection.send_describe_prepared(b"")
        (described,) = self._all_results()
        self._columns = [
            _Column((described.fname(index) or b"").decode(), described.ftype(index), described.fsize(index))
            for index in range(described.nfields)
        ]
        if not self._columns:
            raise ToolError("Only one SELECT statement with at least one column is allowed")
        return self._columns

    def rows(self, sql: str) -> Iterator[Sequence[Any]]:
        """Run a SELECT statement, and yield each row when it is received. Call `describe` first, which reads the columns."""
        connection = self._connection.pgconn
        connection.send_query_params(sql.encode(), None)
        connection.set_single_row_mode()
        while (result := self._result()) is not None:
            if result.ntuples:
                yield [
                    _value(result.get_value(0, index), column.type_oid)
                    for index, column in enumerate(self._columns)
                ]

    def close(self) -> None:
        """Cancel the statement if it is still running, and close the connection. The server then rolls back the transaction."""
        if self._connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
            with suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=_CANCEL_SECONDS)
        self._connection.close()

    def _all_results(self) -> list[pq.abc.PGresult]:
        found = []
        while (result := self._result()) is not None:
            found.append(result)
        return found

    def _result(self) -> pq.abc.PGresult | None:
        """Wait for the next result of the server, at most until the deadline. Return None after the last result.

        Raises:
            psycopg.Error: The server reported an error.
            _DeadlineReached: The deadline passed.
        """
        connection = self._connection.pgconn
        connection.flush()
        while connection.is_busy():
            self._wait()
            connection.consume_input()
        result = connection.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
            state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
            kind: Any = psycopg.DatabaseError
            with suppress(KeyError):
                kind = psycopg.errors.lookup(state)
            raise kind(message or result.get_error_message().strip())
        return result

    def _wait(self) -> None:
        polling = select.poll()  # not select.select, which fails for descriptors from 1024 on
        polling.register(self._connection.pgconn.socket, select.POLLIN)
        left = self._deadline - time.monotonic()
        if left <= 0 or not polling.poll(left * 1000):
            raise _DeadlineReached


def _value(value: bytes | None, type_oid: int) -> Any:
    """Convert a column value from PostgreSQL's text format to a Python value that JSON has.

    NULL becomes None, `bytea` a text with its size, and other types without a JSON type stay text.
    """
    if value is None:
        return None
    text = value.decode(errors="replace")
    if type_oid == _BOOL:
        return text == "t"
    if type_oid in _INTEGERS:
        return int(text)
    if type_oid in _FLOATS:
        return float(text)
    return f"[{int(text):,} byte{'' if text == '1' else 's'}]" if type_oid == _BYTEA else text
