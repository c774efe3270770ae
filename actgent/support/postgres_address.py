"""Addresses of databases in PostgreSQL that name a schema: `postgres://HOST/DATABASE?schema=NAME`."""

import urllib.parse
from collections.abc import Mapping

import psycopg

from actgent.errors import ConfigurationError, meant
from actgent.errors.printable import quoted

_NO_ADDRESS = "is not of the form postgres://HOST/DATABASE"


def split_schema(url: str, *, default: str, owner: str) -> tuple[str, str]:
    """Return the address as libpq's, and the name of the schema, or `default`; `owner` is whose address it is, in errors.

    Raises:
        ConfigurationError: it is no address.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # read for its ValueError
        query = dict(
            urllib.parse.parse_qsl(parts.query.replace("+", "%2B"))
        )  # to libpq a + is one, and no space
        schema = query.pop("schema", default)
        libpqs = urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
        address = urllib.parse.urlunsplit(parts._replace(query=libpqs))
        psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.Error:  # whose text may quote the password
        raise ConfigurationError(f"the address of {owner} {_wrong_in(query)}") from None
    except ValueError:
        raise ConfigurationError(f"the address of {owner} {_NO_ADDRESS}") from None
    return address, schema


def _wrong_in(query: Mapping[str, str]) -> str:
    known = ["schema", *(each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults())]
    unknown = next((name for name in query if name not in known), None)
    if unknown is None:
        return _NO_ADDRESS
    hint = meant(unknown, known) or "schema= is ours, and all others are those of libpq"
    return f"has an unknown parameter {quoted(unknown)}: {hint}"
