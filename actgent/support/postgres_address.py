"""Addresses of databases in PostgreSQL that name a schema: `postgres://HOST/DATABASE?schema=NAME`."""

import urllib.parse

import psycopg

from actgent.errors import ConfigurationError


def split_schema(url: str, *, default: str, owner: str) -> tuple[str, str]:
    """Return the address as libpq's, and the name of the schema, or `default`; `owner` is whose address it is, in errors.

    Raises:
        ConfigurationError: it is no address.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # read for its ValueError
        query = dict(urllib.parse.parse_qsl(parts.query))
        schema = query.pop("schema", default)
        address = urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode(query)))
        psycopg.conninfo.conninfo_to_dict(address)
    except (ValueError, psycopg.Error):  # whose texts may quote the password
        raise ConfigurationError(
            f"the address of {owner} is not of the form postgres://HOST/DATABASE"
        ) from None
    return address, schema
