"""Credentials for API requests, sent only to the API that they belong to.

Instead of the classes below, any function without arguments that returns `Credentials` can be used, sync or async, e.g. a
function that renews a token.
"""

import base64
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from urllib.parse import quote, quote_plus

import attrs

from actgent.errors import ConfigurationError
from actgent.support.unknown_name_hints import lists_arguments


@attrs.frozen
class Credentials:
    """Headers and query parameters that authenticate a request. Its `repr` shows only their names."""

    headers: Mapping[str, str] = attrs.field(factory=dict, repr=lambda values: str(sorted(values)))
    """Values of request headers by header name."""
    query: Mapping[str, str] = attrs.field(factory=dict, repr=lambda values: str(sorted(values)))
    """Values of query parameters by parameter name."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the secret texts to remove from errors and results, longest first, also URL-encoded and JSON-encoded."""
        values = {str(value) for value in (*self.headers.values(), *self.query.values())}
        parts = {part.strip() for value in values for part in (value, value.rpartition(" ")[2])}
        parts |= {password for value in values if (password := _password_in(value))}
        forms = set(parts)
        for part in parts:
            in_json = json.dumps(part)[1:-1]
            forms |= {
                quote(part, safe=""),
                quote(part),
                quote_plus(part),
                in_json,
                in_json.replace("/", "\\/"),
            }
        return tuple(sorted((form for form in forms if len(form) > 3), key=len, reverse=True))  # noqa: PLR2004 - shorter texts occur everywhere


def _password_in(value: str) -> str:
    """Return the password in the value of an `Authorization` header (RFC 7617); empty if the value contains no password."""
    kind, _, encode_body = value.partition(" ")
    if kind.lower() != "basic":
        return ""
    with suppress(ValueError):
        return base64.b64decode(encode_body, validate=True).decode().partition(":")[2]
    return ""


Auth = Callable[[], Credentials | Awaitable[Credentials]]
NO_CREDENTIALS = Credentials()


async def get_credentials(auth: Auth | None) -> Credentials:
    """Call the `auth=` function, and return the credentials for one request. If `auth` is None, return empty credentials."""
    if auth is None:
        return NO_CREDENTIALS
    given = auth()
    return await given if inspect.isawaitable(given) else given


@lists_arguments
@attrs.frozen
class Bearer:
    """Credentials: a token in the `Authorization` header (RFC 6750)."""

    token: str = attrs.field(repr=False)
    """Bearer token, sent unchanged."""

    def __call__(self) -> Credentials:
        return Credentials(headers={"Authorization": f"Bearer {self.token}"})


@lists_arguments
@attrs.frozen
class Basic:
    """Credentials: a user name and a password in the `Authorization` header (RFC 7617)."""

    user: str
    """User name at the API."""
    password: str = attrs.field(repr=False)
    """Password of the user at the API."""

    def __call__(self) -> Credentials:
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return Credentials(headers={"Authorization": f"Basic {pair}"})


@lists_arguments
@attrs.frozen
class APIKey:
    """Credentials: a key in a header, or in a query parameter if `query` is set."""

    key: str = attrs.field(repr=False)
    """API key, sent unchanged."""
    header: str = "X-API-Key"
    """Name of the header that carries the key, unless `query` is set."""
    query: str = ""
    """Name of the query parameter that carries the key; empty to use a header."""

    def __call__(self) -> Credentials:
        return (
            Credentials(query={self.query: self.key})
            if self.query
            else Credentials(headers={self.header: self.key})
        )


def check_auth(auth: object) -> None:
    """Check the value of an `auth=` argument.

    Raises:
        ConfigurationError: The value is neither None nor callable.
    """
    if auth is not None and not callable(auth):
        raise ConfigurationError(
            "auth= must be Bearer(token), Basic(user, password), APIKey(key) or a function that returns Credentials"
        )
