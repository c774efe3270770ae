"""How a tool proves who it is to an API: what goes into each request, to that API alone.

Any function of no arguments that returns a `Credentials` will do, async or not, e.g. one that renews a token.
"""

import base64
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from urllib.parse import quote, quote_plus

import attrs

from actgent.errors import ConfigurationError


@attrs.frozen
class Credentials:
    """What is added to a request. Its `repr` shows names only."""

    headers: Mapping[str, str] = attrs.field(factory=dict, repr=lambda values: str(sorted(values)))
    """Headers by name."""
    query: Mapping[str, str] = attrs.field(factory=dict, repr=lambda values: str(sorted(values)))
    """Parameters of the query by name."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that no error and no result may show, longest first: also as URLs and JSON have them."""
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
        return tuple(sorted((form for form in forms if len(form) > 3), key=len, reverse=True))  # noqa: PLR2004 - shorter ones stand everywhere


def _password_in(value: str) -> str:
    """Return the password in a value of the header `Authorization` (RFC 7617); empty if it holds none."""
    kind, _, encoded = value.partition(" ")
    if kind.lower() != "basic":
        return ""
    with suppress(ValueError):
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    return ""


Auth = Callable[[], Credentials | Awaitable[Credentials]]
NO_CREDENTIALS = Credentials()


async def credentials_of(auth: Auth | None) -> Credentials:
    """Ask for the credentials of a request."""
    if auth is None:
        return NO_CREDENTIALS
    given = auth()
    return await given if inspect.isawaitable(given) else given


@attrs.frozen
class Bearer:
    """A token in the header `Authorization` (RFC 6750)."""

    token: str = attrs.field(repr=False)
    """Sent as it is."""

    def __call__(self) -> Credentials:
        return Credentials(headers={"Authorization": f"Bearer {self.token}"})


@attrs.frozen
class Basic:
    """A name and a password in the header `Authorization` (RFC 7617)."""

    user: str
    """The name."""
    password: str = attrs.field(repr=False)
    """The password."""

    def __call__(self) -> Credentials:
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return Credentials(headers={"Authorization": f"Basic {pair}"})


@attrs.frozen
class APIKey:
    """A key in a header, or in the query where `query` names a parameter."""

    key: str = attrs.field(repr=False)
    """Sent as it is."""
    header: str = "X-API-Key"
    """The header that has the key, unless `query` is given."""
    query: str = ""
    """The parameter that has the key; empty: a header has it."""

    def __call__(self) -> Credentials:
        return (
            Credentials(query={self.query: self.key})
            if self.query
            else Credentials(headers={self.header: self.key})
        )


def check_auth(auth: object) -> None:
    """Refuse what cannot be asked for credentials.

    Raises:
        ConfigurationError: it is no function.
    """
    if auth is not None and not callable(auth):
        raise ConfigurationError(
            "auth= takes Bearer(token), Basic(user, password), APIKey(key) or a function that returns Credentials"
        )
