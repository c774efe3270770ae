"""Addresses of databases in PostgreSQL that name a schema, `postgres://HOST/DATABASE?schema=NAME`, and failures to connect."""

import urllib.parse
from collections.abc import Mapping

import psycopg

from actgent.errors import ConfigurationError, meant
from actgent.errors.printable import quoted

_NO_ADDRESS = "is not of the form postgres://HOST/DATABASE"
_NO_PORT = "has a port that is not a number up to 65535. In a password, write / as %2F, @ as %40 and # as %23"
_REMEDIES = (
    ("refused", "Start the server, or correct host and port in the address"),
    ("resolve", "Correct the host in the address"),
    ("timeout", "Look whether host and port are right and can be reached from here"),
    ("no such file", "Start the server, or name a host in the address"),
    ("no password", "Put the password into the address, or set PGPASSWORD"),
    ("password", "Correct user and password in the address (percent-encoded)"),
    ("pg_hba", "Allow this host and user in the server's pg_hba.conf, or add ?sslmode=require"),
    ("ssl negotiation", "Correct the port: another program than PostgreSQL listens there"),
    ("ssl", "Correct sslmode= in the address, or switch SSL on in the server"),
    ("database", "Create the database (createdb), or name another one in the address"),
    ("role", "Create the role (createuser), or name another user in the address"),
    ("connection slots", "Raise max_connections of the server, or close other connections"),
    ("too many", "Raise max_connections of the server, or close other connections"),
)
"""What to do, by a fragment of libpq's text in lower case; the first that fits counts."""
_LOOK = "Look at host, port, database, user and password in the address"
"""What to do if the server writes its errors in another language than English."""


def split_schema(url: str, *, default: str, owner: str) -> tuple[str, str]:
    """Return the address as libpq's, and the name of the schema, or `default`; `owner` is whose address it is, in errors.

    Raises:
        ConfigurationError: it is no address.
    """
    if not url.partition("://")[2].strip("/"):
        raise ConfigurationError(f"the address of {owner} {_NO_ADDRESS}")
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        raise ConfigurationError(f"the address of {owner} {_NO_ADDRESS}") from None
    try:
        _ = parts.port
    except ValueError:  # its text may quote a part of the password
        raise ConfigurationError(f"the address of {owner} {_NO_PORT}") from None
    try:
        query = dict(
            urllib.parse.parse_qsl(parts.query.replace("+", "%2B"))
        )  # to libpq a + is one, and no space
        schema = query.pop("schema", default)
        libpqs = urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
        # urlunsplit drops the slashes before an empty host, which libpq needs for the server's socket.
        address = f"{parts.scheme}://{parts.netloc}{parts.path}" + (f"?{libpqs}" if libpqs else "")
        psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.Error:  # whose text may quote the password
        raise ConfigurationError(f"the address of {owner} {_wrong_in(query)}") from None
    except ValueError:
        raise ConfigurationError(f"the address of {owner} {_NO_ADDRESS}") from None
    return address, schema


def connection_failure(error: psycopg.Error) -> str | None:
    """Return one line for a connection that could not be made: server, database, user, reason, and what to do.

    Returns None for all other errors. The line never has the password.
    """
    text = " ".join(str(error).split())
    refused = error.pgconn
    if refused is None:
        if not text.startswith(("failed to resolve host", "connection timeout")):
            return None
        where = "PostgreSQL"
    else:
        host, port, database, user = (
            each.decode(errors="replace") for each in (refused.host, refused.port, refused.db, refused.user)
        )
        place = f"at {host}:{port}" if host else "at its local socket"
        where = f"PostgreSQL {place} (database {database!r}, user {user!r})"
    reason = (
        text.rpartition(" failed: ")[2].removeprefix("connection is bad: ").removeprefix("FATAL: ").strip()
    )
    reason = reason.partition(" Is the server running")[0]  # libpq's own advice
    low = reason.lower()
    remedy = next((remedy for fragment, remedy in _REMEDIES if fragment in low), _LOOK)
    return f"{where} cannot be used: {reason.rstrip('.?')}. {remedy}"


def _wrong_in(query: Mapping[str, str]) -> str:
    known = ["schema", *(each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults())]
    unknown = next((name for name in query if name not in known), None)
    if unknown is None:
        return _NO_ADDRESS
    hint = meant(unknown, known) or "schema= is ours, and all others are those of libpq"
    return f"has an unknown parameter {quoted(unknown)}: {hint}"
