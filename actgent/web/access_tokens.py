"""Access tokens of the gateway: each has an owner, scopes and an expiry; only digests are stored.

A token is `act_` followed by 256 random bits. The token file is TOML and contains the SHA-256 of each token, so the file
cannot be used to send requests:

    [[token]]
    name = "ci"
    owner = "ada"
    scopes = ["chat"]
    digest = "sha256:..."
    expires = 2027-01-31T12:00:00Z

Tokens are looked up by digest and compared in constant time, so response times reveal nothing about a token.
"""

import hashlib
import hmac
import math
import secrets
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import attrs
import trio

from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.limits_and_schedules.id_and_number_validation import check_id
from actgent.support.files_shared_by_processes import write_whole
from actgent.support.safe_logging import logger_of

Scope = Literal["read", "chat", "approve", "journal", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
IMPERSONATE = "impersonate:"
"""Prefix of the scope with which a token acts for another owner; `impersonate:*` allows any owner."""
PREFIX = "act_"
RELOAD_INTERVAL_SECONDS = 1.0
"""Minimum time in seconds between two checks of the token file while requests arrive."""
POLL_INTERVAL_SECONDS = 5.0
"""Time in seconds between two checks of the token file while no request arrives."""
_IMPLIED: dict[str, tuple[str, ...]] = {"chat": ("read",), "approve": ("read",), "admin": SCOPES}
_log = logger_of(__name__)


def token_digest(token: str) -> str:
    """Return the SHA-256 digest of a token, as `sha256:` and hexadecimal digits. It is stored instead of the token."""
    return f"sha256:{hashlib.sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    given = frozenset(scopes)
    for scope in given:
        if scope not in SCOPES and not (scope.startswith(IMPERSONATE) and len(scope) > len(IMPERSONATE)):
            raise ConfigurationError(
                f"unknown scope {scope!r}: {did_you_mean_or_list(str(scope), (*SCOPES, 'impersonate:*'))}"
            )
    if not given:
        raise ConfigurationError(f"a token needs at least one scope: {', '.join(SCOPES)}")
    return given


def _check_name(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    check_id(field.name, "" if value is None else value)


def _check_expiry(_: object, __: object, value: float | None) -> None:
    given: object = value
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if value is not None and not (is_number and math.isfinite(value)):
        raise ConfigurationError(f"expires= must be a Unix time in seconds or None, not {value!r:.200}")


@attrs.frozen(kw_only=True)
class AccessToken:
    """Stored entry of an access token: name, owner, scopes, expiry and digest, but not the token itself.

    Raises:
        ConfigurationError: A field has an invalid value.
    """

    name: str = attrs.field(validator=_check_name)
    """Name of the token in lists and logs."""
    owner: str = attrs.field(validator=_check_name)
    """Owner whose sessions the token may access, and who is the sender of its messages."""
    scopes: frozenset[str] = attrs.field(converter=_check_scopes)
    """Names of the operations that the token allows, such as `read` or `chat`."""
    digest: str = attrs.field(repr=False)
    """SHA-256 digest of the token, as `token_digest` returns it."""
    expires: float | None = attrs.field(default=None, validator=_check_expiry)
    """Expiry as Unix time in seconds; None if the token never expires."""

    def allows(self, scope: Scope) -> bool:
        """Return True if the token has this scope, or another scope that includes this scope."""
        return scope in self.scopes or _is_implied(scope, self.scopes)

    def can_impersonate(self, owner: str) -> bool:
        """Return True if the token may act for `owner`: for its own owner, and for owners of an `impersonate:` scope."""
        return owner == self.owner or not self.scopes.isdisjoint({f"{IMPERSONATE}*", f"{IMPERSONATE}{owner}"})

    def is_expired(self, now: float) -> bool:
        """Return True if the token has expired at `now`, a Unix time in seconds."""
        return self.expires is not None and now >= self.expires


@lru_cache(maxsize=256)
def _is_implied(scope: Scope, scopes: frozenset[str]) -> bool:
    return any(scope in _IMPLIED.get(each, ()) for each in scopes)


@attrs.frozen(kw_only=True)
class Caller:
    """Authenticated sender of a request: an access token, and the owner on whose behalf the request is sent."""

    token: AccessToken
    owner: str
    """Owner on whose behalf the request is sent: the token's owner, or an impersonated owner."""

    @property
    def is_admin(self) -> bool:
        """True if the caller may access the sessions of all owners. An admin that impersonates an owner may not."""
        return self.token.allows("admin") and self.owner == self.token.owner

    def allows(self, scope: Scope) -> bool:
        """Return True if the caller's token has a scope."""
        return self.token.allows(scope) and (scope != "admin" or self.is_admin)


def new_token(
    name: str, *, owner: str, scopes: Iterable[str], expires: float | None = None
) -> tuple[str, AccessToken]:
    """Create an access token, and its entry for a token file or gateway.

    Args:
        name: Name of the token in lists and logs.
        owner: Owner whose sessions the token can access.
        scopes: Allowed operations: `read`, `chat`, `approve`, `journal`, `metrics` or `admin`.
        expires: Expiry as Unix time in seconds; None for a token without expiry.

    Returns:
        The token, which actgent does not store, and the entry with its digest, which a gateway stores.
    """
    token = f"{PREFIX}{secrets.token_urlsafe(32)}"
    return token, AccessToken(
        name=name, owner=owner, scopes=scopes, digest=token_digest(token), expires=expires
    )


class TokenStore:
    """Access tokens of a gateway, from arguments or a token file. A changed token file is read again.

    Raises:
        ConfigurationError: The file cannot be read, or contains an invalid token.
    """

    def __init__(self, tokens: Iterable[AccessToken] = (), *, file: Path | None = None) -> None:
        self._given = {token.digest: token for token in tokens}
        self._file = file
        self._known = dict(self._given)
        self._stamp: tuple[int, int, int] | None = None
        self._checked_at = -RELOAD_INTERVAL_SECONDS
        self._streams: dict[str, set[trio.CancelScope]] = {}
        """Cancel scopes of the open streams of each token, by digest."""
        self._reload_if_changed()

    def add(self, token: AccessToken) -> None:
        """Add a token to the valid tokens until the gateway closes. The token file is not changed."""
        self._given[token.digest] = token
        self._known[token.digest] = token

    def find(self, token: str, *, now: float) -> AccessToken | None:
        """Return the entry of a token; None if the token is unknown or has expired.

        Args:
            token: Access token from the request.
            now: Unix time in seconds.
        """
        if trio.current_time() - self._checked_at >= RELOAD_INTERVAL_SECONDS:
            self._try_reload()
        digest = token_digest(token)
        found = self._known.get(digest)
        if found is None or not hmac.compare_digest(found.digest, digest) or found.is_expired(now):
            return None
        return found

    @contextmanager
    def cancel_on_revocation(self, token: AccessToken, *, now: float) -> Iterator[None]:
        """Open a `with` block that is cancelled when the token is revoked or expires. `now` is the current Unix time in seconds."""
        seconds = math.inf if token.expires is None else max(0.0, token.expires - now)
        with trio.CancelScope(deadline=trio.current_time() + seconds) as scope:
            scopes = self._streams.setdefault(token.digest, set())
            scopes.add(scope)
            if token.digest not in self._known:  # revoked since the request was authenticated
                scope.cancel()
            try:
                yield
            finally:
                scopes.discard(scope)
                if not scopes:
                    self._streams.pop(token.digest, None)

    async def watch(self) -> None:
        """Check the token file every `POLL_INTERVAL_SECONDS` and close the streams of revoked tokens, until cancelled."""
        while self._file is not None:
            await trio.sleep(POLL_INTERVAL_SECONDS)
            self._try_reload()

    def _reload_if_changed(self) -> None:
        """Read the token file if it has changed, and cancel the streams of revoked tokens.

        Raises:
            ConfigurationError: The file cannot be read or contains an invalid token. The previous tokens stay valid.
        """
        if self._file is None:
            return
        try:
            seen = self._file.stat()
        except OSError as error:
            raise ConfigurationError(f"token file {self._file} cannot be read: {error.strerror}") from error
        stamp = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
        if stamp != self._stamp:
            self._known = {token.digest: token for token in read_tokens(self._file)} | self._given
            self._stamp = stamp
            for digest in self._streams.keys() - self._known.keys():
                for scope in self._streams[digest]:
                    scope.cancel()

    def _try_reload(self) -> None:
        self._checked_at = trio.current_time()
        try:
            self._reload_if_changed()
        except ConfigurationError as error:
            _log.error("the token file was not reloaded, and the previous tokens stay valid: %s", error)


# --- login of browsers -----------------------------------------------------------------

LOGIN_KEY_PREFIX = "once_"
"""Prefix of one-time login keys."""
LOGIN_SECONDS = 12 * 3600.0
"""Lifetime in seconds of the token that a browser gets for a login key."""


class Logins:
    """One-time login keys of a gateway. A browser exchanges the key from the terminal for an access token.

    Only digests of the keys are stored, in memory, so a key is valid only in the process that created it.

    Args:
        tokens: Store to which the new access tokens are added.
    """

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens
        self._digests: list[str] = []

    def new_key(self) -> str:
        """Create and return a one-time key for the login link of the dashboard.

        A browser exchanges the key for an admin token.
        """
        key = f"{LOGIN_KEY_PREFIX}{secrets.token_urlsafe(32)}"
        self._digests.append(token_digest(key))
        return key

    def exchange(self, key: str, *, now: float) -> tuple[str, AccessToken] | None:
        """Exchange a one-time key for a new admin token.

        Return the token and its entry in the token store; None if the key is unknown or was used before.

        Args:
            key: One-time login key from the request.
            now: Unix time in seconds.
        """
        given = token_digest(key)
        known = [each for each in self._digests if hmac.compare_digest(each, given)]
        if not known:
            return None
        self._digests.remove(known[0])
        secret, token = new_token("dashboard", owner="admin", scopes=("admin",), expires=now + LOGIN_SECONDS)
        self._tokens.add(token)
        return secret, token


# --- the file ----------------------------------------------------------------------------


def read_tokens(file: Path) -> list[AccessToken]:
    """Read the entries of a token file, in their order.

    Raises:
        ConfigurationError: The file cannot be read, or a token is invalid; the message names the token.
    """
    try:
        rows = tomllib.loads(file.read_text(encoding="utf-8")).get("token", [])
    except OSError as error:
        raise ConfigurationError(f"token file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError(
            f"{file}: each token must be a TOML table that begins with the line [[token]]"
        )
    return [_token_of(row, number, file) for number, row in enumerate(rows, 1)]


def _token_of(row: dict[str, Any], number: int, file: Path) -> AccessToken:
    known = {"name", "owner", "scopes", "digest", "expires"}
    if unknown := sorted(row.keys() - known):
        raise ConfigurationError(
            f"{file}: token {number} has an unknown key {unknown[0]!r}: {did_you_mean_or_list(unknown[0], known)}"
        )
    if missing := sorted(known - row.keys() - {"expires"}):
        raise ConfigurationError(f"{file}: token {number} must have the key {missing[0]}")
    digest, expires, scopes = row["digest"], row.get("expires"), row["scopes"]
    if (
        not isinstance(digest, str)
        or not digest.startswith("sha256:")
        or len(digest) != len(token_digest(""))
    ):
        raise ConfigurationError(
            f"{file}: token {number}: digest must be sha256: followed by 64 hexadecimal digits, as `actgent token new` prints it"
        )
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo is not None):
        raise ConfigurationError(
            f"{file}: token {number}: expires must be a date and time with time zone, not {expires!r}"
        )
    if not isinstance(scopes, list):
        raise ConfigurationError(
            f'{file}: token {number}: scopes must be a list of scope names, such as ["chat"]'
        )
    try:
        return AccessToken(
            name=row["name"],
            owner=row["owner"],
            scopes=map(str, scopes),
            digest=digest,
            expires=None if expires is None else expires.timestamp(),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: token {number}: {error}") from error


def write_tokens(file: Path, tokens: Iterable[AccessToken]) -> None:
    """Write a token file atomically. A new file is readable only by its owner; an existing file keeps its permissions.

    Raises:
        ConfigurationError: The file cannot be written. The previous file is unchanged.
    """
    try:
        write_whole(file, "\n".join(map(_row_of, tokens)), mode=0o600, keeps_rights=True)
    except OSError as error:
        raise ConfigurationError(f"token file {file} cannot be written: {error.strerror}") from error


def _row_of(token: AccessToken) -> str:
    scopes = ", ".join(_quote_toml(scope) for scope in sorted(token.scopes))
    lines = [
        "[[token]]",
        f"name = {_quote_toml(token.name)}",
        f"owner = {_quote_toml(token.owner)}",
        f"scopes = [{scopes}]",
        f"digest = {_quote_toml(token.digest)}",
    ]
    if token.expires is not None:
        date = datetime.fromtimestamp(int(token.expires), UTC)
        lines.append(f"expires = {date.isoformat().replace('+00:00', 'Z')}")
    return "\n".join(lines) + "\n"


def _quote_toml(text: str) -> str:
    """Return a name as a TOML basic string. Names are printable, so only backslash and quote are escaped."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def days_from_now(days: float) -> float:
    """Return the Unix time in seconds `days` days after the current time."""
    return time.time() + days * 86_400
