"""One SELECT of a model, asked of PostgreSQL: read-only, ended at a deadline of this process, and bounded while it is fetched.

The role that `sql_tool` is given decides what a statement may read. In addition, this module
- runs the statement alone in a READ ONLY transaction of a connection that is closed afterwards,
- refuses built-in functions that change something outside of that transaction: settings, locks, large objects, files,
- cancels the statement at a deadline of its own, which no setting of the server moves,
- has the server cut long values, and reads row by row, so that a value of 200 MB never reaches this process.

Sources: https://www.postgresql.org/docs/current/sql-syntax-lexical.html (tokens),
https://www.postgresql.org/docs/current/libpq-single-row-mode.html, https://www.postgresql.org/docs/current/xfunc-volatility.html.
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
from actgent.errors.printable import shown
from actgent.support.logs import logger_of
from actgent.support.postgres_address import split_schema

_log = logger_of(__name__)
_QUOTED, _SLASHED = re.compile(r"([\\ ])"), r"\\\1"
"""Characters that libpq reads with a backslash before them in `options`."""
_ROW_CHARACTERS = 2_000_000
"""Characters of one row that the server sends at most."""
_CANCEL_SECONDS = 2.0
"""Time that a request to cancel may take before the connection is closed without it."""
_MAX_TEMPORARY = "100MB"
"""Temporary files of one statement on the server; only roles that may set `temp_file_limit` have this bound."""
_CHECKS_CONNECTIONS = 140_000
"""Version of the server from which a running statement notices that its connection was closed."""
_BYTEA, _BOOL, _INTEGERS, _FLOATS = 17, 16, frozenset({20, 21, 23, 26}), frozenset({700, 701})
"""Type OIDs of PostgreSQL, from its pg_type.dat."""
_HARMLESS = frozenset(
    "clock_timestamp gen_random_uuid pg_database_size pg_indexes_size pg_is_in_recovery pg_relation_size pg_sleep "
    "pg_sleep_for pg_sleep_until pg_table_size pg_tablespace_size pg_total_relation_size random random_normal setseed "
    "timeofday uuidv4 uuidv7".split()
)
"""Volatile functions that change nothing outside of their statement."""
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
    """Bounds of a statement and its result."""

    rows: int
    characters: int
    """Characters of one value."""
    seconds: float
    """Time of the connection and the statement together."""


@contextmanager
def open_postgres_query(
    address: str, sql: str, parameters: Mapping[str, Any], *, bounds: QueryBounds
) -> Iterator[tuple[list[str], Iterator[Sequence[Any]]]]:
    """Run one SELECT; the block gets its column names and an iterator over its rows.

    A value that is too long has one character more than the bound, and `bytea` is its size in words. The end of the block
    cancels the statement and closes the connection.

    Args:
        address: `postgres://USER@HOST/DATABASE`.
        sql: The statement, with `%(name)s` for parameters.
        parameters: Values by name.
        bounds: Bounds of the statement and its result.

    Raises:
        ToolError: The statement is not one SELECT, calls a function that is refused, took too long, or failed.
    """
    deadline = time.monotonic() + bounds.seconds
    try:
        connection = _connect(address, bounds.seconds)
        statement = _Statement(connection, deadline)
        try:
            _bound_server(connection)
            connection.execute("begin read only")
            # An empty mapping would make psycopg read each % as a placeholder.
            text = psycopg.ClientCursor(connection).mogrify(sql, parameters or None).rstrip("; \t\r\n")
            columns = statement.describe(text)
            _refuse_functions(connection, text)
            yield [each.name for each in columns], statement.rows(_bounded(text, columns, bounds))
        finally:
            statement.close()
    except (_DeadlineReached, psycopg.errors.QueryCanceled):
        raise ToolError(f"the statement took longer than {bounds.seconds:g} s") from None
    except psycopg.errors.SyntaxError as error:
        raise ToolError(f"Only one SELECT statement is allowed: {error}") from None
    except (psycopg.Error, ValueError) as error:
        raise ToolError(f"the database refused the statement: {error}") from None


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
            "a model asks PostgreSQL as the superuser %s, whose functions read files and end servers: "
            "give sql_tool a role that may only read what it needs",
            shown(connection.info.user),
        )
    return connection


def _bound_server(connection: "psycopg.Connection[Any]") -> None:
    """Bound temporary files if the role may, and have the server end a statement soon after its connection is closed."""
    with suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute("select set_config('temp_file_limit', %s, false)", [_MAX_TEMPORARY])
    if connection.info.server_version >= _CHECKS_CONNECTIONS:
        connection.execute("select set_config('client_connection_check_interval', '1s', false)")


# --- functions ---------------------------------------------------------------------------------


def _refuse_functions(connection: "psycopg.Connection[Any]", sql: str) -> None:
    """Refuse a statement that calls volatile functions of PostgreSQL or of an extension, such as `set_config` or `dblink`.

    Functions that the database's owner wrote are left to the rights of the role.

    Raises:
        ToolError: The statement calls such a function.
    """
    names = sorted(called_names(sql) - _HARMLESS)
    if not names:
        return
    found = connection.execute(
        _FIND_VOLATILE, {"names": names, "extensions": _HARMLESS_EXTENSIONS}
    ).fetchone()
    if found is not None:
        raise ToolError(
            f"the function {found[0]} is not allowed: a statement may only read, and not change settings, locks or files"
        )


def called_names(sql: str) -> frozenset[str]:
    """Return the names that stand before a parenthesis in a statement, which holds all functions that it calls by name.

    Raises:
        ToolError: A name is written with Unicode escapes (`U&"..."`).
    """
    found, last, place = set[str](), "", 0
    while place < len(sql):
        token = _TOKEN.match(sql, place)
        assert token is not None  # noqa: S101 - the last alternative matches any character
        place = token.end()
        kind = token.lastgroup
        if kind == "comment":
            place = _after_comment(sql, place)
        elif kind == "dollar":
            end = sql.find(token[0], place)
            place, last = (len(sql) if end < 0 else end + len(token[0])), ""
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
            last = ""  # a string
    return frozenset(found)


def _after_comment(sql: str, place: int) -> int:
    """Return the place after a comment that began before `place`; comments of PostgreSQL nest."""
    depth = 1
    while depth:
        mark = _COMMENT_MARK.search(sql, place)
        if mark is None:
            return len(sql)
        depth += 1 if mark[0] == "/*" else -1
        place = mark.end()
    return place


# --- the statement -----------------------------------------------------------------------------


class _DeadlineReached(Exception):
    pass


@attrs.frozen
class _Column:
    name: str
    type_oid: int
    size: int
    """Bytes of a value of the type; negative if they vary."""


def _bounded(sql: str, columns: Sequence[_Column], bounds: QueryBounds) -> str:
    """Return a SELECT of the same rows, in which the server cuts long values."""
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
    # The line end closes a comment at the end of the statement.
    return f"select {', '.join(values)} from ({sql}\n) as t({names}) limit {bounds.rows + 1}"  # noqa: S608 - `sql` is what the model may ask


@attrs.define(eq=False)
class _Statement:
    """Statements on a connection that end at a deadline."""

    _connection: "psycopg.Connection[Any]"
    _deadline: float
    """Value of `time.monotonic()`."""
    _columns: list[_Column] = attrs.field(factory=list)

    def describe(self, sql: str) -> Sequence[_Column]:
        """Have the server parse a statement without running it; return its columns.

        The statement is whole by itself: text that closes the parenthesis of `_bounded` is a syntax error here.

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
            _Column((described.fname(at) or b"").decode(), described.ftype(at), described.fsize(at))
            for at in range(described.nfields)
        ]
        if not self._columns:
            raise ToolError("Only one SELECT statement with at least one column is allowed")
        return self._columns

    def rows(self, sql: str) -> Iterator[Sequence[Any]]:
        """Run a statement; yield each row as it arrives."""
        connection = self._connection.pgconn
        connection.send_query_params(sql.encode(), None)
        connection.set_single_row_mode()
        while (result := self._result()) is not None:
            if result.ntuples:
                yield [
                    _value(result.get_value(0, at), column.type_oid)
                    for at, column in enumerate(self._columns)
                ]

    def close(self) -> None:
        """Cancel the statement if it runs, and close the connection, by which the server rolls back."""
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
        """Wait for the next result until the deadline; None after the last.

        Raises:
            psycopg.Error: The server reports an error.
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
    """Return a value of PostgreSQL's text format as a Python value; types that JSON does not have are text."""
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
