"""PostgreSQL addresses with a schema, `postgres://HOST/DATABASE?schema=NAME`, and texts for connection failures."""

import urllib.parse
from collections.abc import Mapping

import psycopg

from actgent.errors import ConfigurationError, did_you_mean
from actgent.errors.text_escaping import quoted

_IS_NOT_AN_ADDRESS = "must have the form postgres://HOST/DATABASE"
_HAS_INVALID_PORT = (
    "has a port that is not a number up to 65535. In a password, write / as %2F, @ as %40 and # as %23"
)
_REMEDIES = (
    ("refused", "Start the server, or correct host and port in the address"),
    ("resolve", "Correct the host in the address"),
    ("timeout", "Check host and port, and that they can be reached from here"),
    ("no such file", "Start the server, or name a host in the address"),
    ("no password", "Put the password into the address, or set PGPASSWORD"),
    ("password", "Correct user and password in the address (percent-encoded)"),
    ("pg_hba", "Allow this host and user in the server's pg_hba.conf, or add ?sslmode=require"),
    ("ssl negotiation", "Correct the port: another program than PostgreSQL listens there"),
    ("ssl", "Correct sslmode= in the address, or switch SSL on in the server"),
    ("database", "Create the database (createdb), or name another one in the address"),
    ("role", "Create the role (createuser), or name another user in the address"),
    ("connection slots", "Raise max_connections of the server, or close other connections"),
    ("session is read-only", "Promote a server of the address, or name the primary in it"),
    ("hot standby", "Promote a server of the address, or name the primary in it"),
    ("too many", "Raise max_connections of the server, or close other connections"),
)
"""Pairs of a lower-case fragment of libpq's error text and a remedy. The first match is used."""
_GENERAL_REMEDY = "Check host, port, database, user and password in the address"
"""Remedy for unknown errors, e.g. of a server whose error language is not English."""


def split_schema(url: str, *, default: str, owner: str) -> tuple[str, str]:
    """Split a PostgreSQL address into the address for libpq and the schema; `default` if the address names no schema.

    Errors name the setting by `owner`, e.g. `the journal`, and never quote the address, which may contain a password.

    Raises:
        ConfigurationError: The address is invalid.
    """
    if not url.partition("://")[2].strip("/"):
        raise ConfigurationError(f"the address of {owner} {_IS_NOT_AN_ADDRESS}")
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        raise ConfigurationError(f"the address of {owner} {_IS_NOT_AN_ADDRESS}") from None
    try:
        for each in parts.netloc.rpartition("@")[2].split(
            ","
        ):  # libpq takes several servers: HOST:PORT,HOST:PORT
            _ = urllib.parse.urlsplit(f"//{each}").port
    except ValueError:  # its text may quote a part of the password
        raise ConfigurationError(f"the address of {owner} {_HAS_INVALID_PORT}") from None
    try:
        query = dict(
            urllib.parse.parse_qsl(parts.query.replace("+", "%2B"))
        )  # libpq reads + literally, not as a space
        schema = query.pop("schema", default)
        parameters = urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
        # urlunsplit drops the slashes before an empty host, which libpq needs for the server's socket.
        address = f"{parts.scheme}://{parts.netloc}{parts.path}" + (f"?{parameters}" if parameters else "")
        psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.Error:  # whose text may quote the password
        raise ConfigurationError(f"the address of {owner} {_parameter_error(query)}") from None
    except ValueError:
        raise ConfigurationError(f"the address of {owner} {_IS_NOT_AN_ADDRESS}") from None
    return address, schema


def connection_failure(error: psycopg.Error) -> str | None:
    """Describe a failed connection in one line: server, database, user, reason and remedy.

    Return None for all other errors. The line never contains the password.
    """
    text = " ".join(str(error).split())
    connection = error.pgconn
    if connection is None:
        if not text.startswith(("failed to resolve host", "connection timeout")):
            return None
        server = "PostgreSQL"
    else:
        host, port, database, user = (
            each.decode(errors="replace")
            for each in (connection.host, connection.port, connection.db, connection.user)
        )
        place = f"at {host}:{port}" if host else "at its local socket"
        server = f"PostgreSQL {place} (database {database!r}, user {user!r})"
    reason = (
        text.rpartition(" failed: ")[2].removeprefix("connection is bad: ").removeprefix("FATAL: ").strip()
    )
    reason = reason.partition(" Is the server running")[0]  # libpq's own advice
    low = reason.lower()
    remedy = next((remedy for fragment, remedy in _REMEDIES if fragment in low), _GENERAL_REMEDY)
    return f"{server} cannot be used: {reason.rstrip('.?')}. {remedy}"


def _parameter_error(query: Mapping[str, str]) -> str:
    known = ["schema", *(each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults())]
    unknown = next((name for name in query if name not in known), None)
    if unknown is None:
        return _IS_NOT_AN_ADDRESS
    hint = did_you_mean(unknown, known) or "use schema= or a parameter of libpq"
    return f"has an unknown parameter {quoted(unknown)}: {hint}"
