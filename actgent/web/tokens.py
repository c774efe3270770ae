"""Who may call the gateway: tokens with owners, scopes and dates, of which only digests are kept.

A token is `act_` and 256 random bits. Its file is TOML, and holds for each the SHA-256 of it, so that a file that was
read by somebody else opens nothing:

    [[token]]
    name = "ci"
    owner = "ada"
    scopes = ["chat"]
    digest = "sha256:..."
    expires = 2027-01-31T12:00:00Z

Tokens are found by their digests, which tells nobody who measures times anything of a token, and compared in constant time.
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

from actgent.control.arguments import check_id
from actgent.errors import ConfigurationError, nearest
from actgent.support.files import write_whole
from actgent.support.logs import logger_of

Scope = Literal["read", "chat", "approve", "journal", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
IMPERSONATE = "impersonate:"
"""The beginning of the scope by which a token may act for an owner, or with `*` for any."""
PREFIX = "act_"
LOOKED_AT = 1.0
"""Seconds after which the file is looked at again."""
WATCHED = 5.0
"""Seconds after which it is looked at where nobody asks."""
_IMPLIED: dict[str, tuple[str, ...]] = {"chat": ("read",), "approve": ("read",), "admin": SCOPES}
_log = logger_of(__name__)


def token_digest(token: str) -> str:
    """Return what is kept of a token."""
    return f"sha256:{hashlib.sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _checked_scopes(scopes: Iterable[str]) -> frozenset[str]:
    given = frozenset(scopes)
    for scope in given:
        if scope not in SCOPES and not (scope.startswith(IMPERSONATE) and len(scope) > len(IMPERSONATE)):
            raise ConfigurationError(
                f"there is no scope {scope!r}: {nearest(str(scope), (*SCOPES, 'impersonate:*'))}"
            )
    if not given:
        raise ConfigurationError(f"a token has at least one scope of {', '.join(SCOPES)}")
    return given


def _named(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    check_id(field.name, "" if value is None else value)


def _expiry(_: object, __: object, value: float | None) -> None:
    given: object = value
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if value is not None and not (is_number and math.isfinite(value)):
        raise ConfigurationError(f"expires= is a Unix time in seconds, or None for never, not {value!r:.200}")


@attrs.frozen(kw_only=True)
class AccessToken:
    """What is known of a token.

    Raises:
        ConfigurationError: one of these is wrong.
    """

    name: str = attrs.field(validator=_named)
    """For people, in lists and logs."""
    owner: str = attrs.field(validator=_named)
    """Whose sessions it reaches, and for whom it speaks."""
    scopes: frozenset[str] = attrs.field(converter=_checked_scopes)
    digest: str = attrs.field(repr=False)
    expires: float | None = attrs.field(default=None, validator=_expiry)
    """Unix time in seconds; None is never."""

    def allows(self, scope: Scope) -> bool:
        """Return True if it may do what needs this scope."""
        return scope in self.scopes or _is_implied(scope, self.scopes)

    def may_act_for(self, owner: str) -> bool:
        """Return True if it may speak for this owner."""
        return owner == self.owner or not self.scopes.isdisjoint({f"{IMPERSONATE}*", f"{IMPERSONATE}{owner}"})

    def is_over(self, now: float) -> bool:
        """Return True if it has expired."""
        return self.expires is not None and now >= self.expires


@lru_cache(maxsize=256)
def _is_implied(scope: Scope, scopes: frozenset[str]) -> bool:
    return any(scope in _IMPLIED.get(each, ()) for each in scopes)


@attrs.frozen(kw_only=True)
class Caller:
    """Who asks."""

    token: AccessToken
    owner: str
    """For whom: the token's owner, or the one that it acts for."""

    @property
    def is_admin(self) -> bool:
        """True if it reaches everybody's sessions."""
        return self.token.allows("admin") and self.owner == self.token.owner

    def allows(self, scope: Scope) -> bool:
        """Return True if it may do what needs this scope."""
        return self.token.allows(scope) and (scope != "admin" or self.is_admin)


def new_token(
    name: str, *, owner: str, scopes: Iterable[str], expires: float | None = None
) -> tuple[str, AccessToken]:
    """Create a token and the entry of it for a token file or gateway.

    Args:
        name: Name of the token in lists and logs.
        owner: Owner whose sessions the token can access.
        scopes: Allowed operations: `read`, `chat`, `approve`, `journal`, `metrics` or `admin`.
        expires: Expiry as Unix time in seconds; None for a token without expiry.

    Returns:
        The token, which is stored nowhere, and the hash entry that a gateway stores.
    """
    token = f"{PREFIX}{secrets.token_urlsafe(32)}"
    return token, AccessToken(
        name=name, owner=owner, scopes=scopes, digest=token_digest(token), expires=expires
    )


class TokenStore:
    """The tokens of a gateway: those that are given to it, and those of a file, which is read again when it changes.

    Raises:
        ConfigurationError: the file cannot be read, or one of its tokens is wrong.
    """

    def __init__(self, tokens: Iterable[AccessToken] = (), *, file: Path | None = None) -> None:
        self._given = {token.digest: token for token in tokens}
        self._file = file
        self._known = dict(self._given)
        self._stamp: tuple[int, int, int] | None = None
        self._looked = -LOOKED_AT
        self._holding: dict[str, set[trio.CancelScope]] = {}
        """What goes on by each token, by its digest."""
        self._look()

    def add(self, token: AccessToken) -> None:
        """Know a further token, until the gateway ends."""
        self._given[token.digest] = token
        self._known[token.digest] = token

    def find(self, token: str, *, now: float) -> AccessToken | None:
        """Return what is known of a token; None where nothing is, or it has expired.

        Args:
            token: As the client says it.
            now: Unix time in seconds.
        """
        if trio.current_time() - self._looked >= LOOKED_AT:
            self._look_again()
        digest = token_digest(token)
        found = self._known.get(digest)
        if found is None or not hmac.compare_digest(found.digest, digest) or found.is_over(now):
            return None
        return found

    @contextmanager
    def holding(self, token: AccessToken, *, now: float) -> Iterator[None]:
        """Stop the block where its token is taken away, or expires; `now` is the Unix time in seconds."""
        seconds = math.inf if token.expires is None else max(0.0, token.expires - now)
        with trio.CancelScope(deadline=trio.current_time() + seconds) as scope:
            scopes = self._holding.setdefault(token.digest, set())
            scopes.add(scope)
            try:
                yield
            finally:
                scopes.discard(scope)
                if not scopes:
                    self._holding.pop(token.digest, None)

    async def watch(self) -> None:
        """Look at the file now and then, so that what goes on by tokens that were taken away ends; until it is cancelled."""
        while self._file is not None:
            await trio.sleep(WATCHED)
            self._look_again()

    def _look(self) -> None:
        """Read the file if it is another one than before.

        Raises:
            ConfigurationError: it cannot be read, or one of its tokens is wrong; those of before stay.
        """
        if self._file is None:
            return
        try:
            seen = self._file.stat()
        except OSError as error:
            raise ConfigurationError(
                f"the file of tokens cannot be read: {error.strerror}: {self._file}"
            ) from error
        stamp = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
        if stamp != self._stamp:
            self._known = {token.digest: token for token in read_tokens(self._file)} | self._given
            self._stamp = stamp
            for digest in self._holding.keys() - self._known.keys():
                for scope in self._holding[digest]:
                    scope.cancel()

    def _look_again(self) -> None:
        self._looked = trio.current_time()
        try:
            self._look()
        except ConfigurationError as error:
            _log.error("tokens stay as they were: %s", error)


# --- signing in of browsers ------------------------------------------------------------

ONCE = "once_"
"""How a key begins that counts once."""
LOGIN_SECONDS = 12 * 3600.0
"""Seconds for which the token of a browser counts."""


class Logins:
    """The one-time keys of a gateway: what a terminal shows is exchanged by a browser for a token of its own.

    Of a key its digest is kept, in memory alone: it counts in the process that showed it.

    Args:
        tokens: Where the tokens that are given for them are known.
    """

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens
        self._digests: list[str] = []

    def new_key(self) -> str:
        """A key that opens once, with all rights."""
        key = f"{ONCE}{secrets.token_urlsafe(32)}"
        self._digests.append(token_digest(key))
        return key

    def exchange(self, key: str, *, now: float) -> tuple[str, AccessToken] | None:
        """Return a token for a key, and what is kept of it; None where the key is none, or was used.

        Args:
            key: As the client says it.
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
    """The tokens of a file, in their order.

    Raises:
        ConfigurationError: it cannot be read, or one of them is wrong; the text names it.
    """
    try:
        rows = tomllib.loads(file.read_text(encoding="utf-8")).get("token", [])
    except OSError as error:
        raise ConfigurationError(f"the file of tokens cannot be read: {error.strerror}: {file}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is no TOML: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError(f"{file}: tokens stand in tables, each under [[token]]")
    return [_token_of(row, number, file) for number, row in enumerate(rows, 1)]


def _token_of(row: dict[str, Any], number: int, file: Path) -> AccessToken:
    known = {"name", "owner", "scopes", "digest", "expires"}
    if unknown := sorted(row.keys() - known):
        raise ConfigurationError(
            f"{file}: token {number} has an unknown key {unknown[0]!r}: {nearest(unknown[0], known)}"
        )
    if missing := sorted(known - row.keys() - {"expires"}):
        raise ConfigurationError(f"{file}: token {number} has no {missing[0]}")
    digest, expires, scopes = row["digest"], row.get("expires"), row["scopes"]
    if (
        not isinstance(digest, str)
        or not digest.startswith("sha256:")
        or len(digest) != len(token_digest(""))
    ):
        raise ConfigurationError(
            f"{file}: token {number}: digest is sha256: and 64 hexadecimal digits; see `actgent token new`"
        )
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo is not None):
        raise ConfigurationError(
            f"{file}: token {number}: expires is a date with its time zone, not {expires!r}"
        )
    if not isinstance(scopes, list):
        raise ConfigurationError(f"{file}: token {number}: scopes is a list")
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
    """Write a file of tokens in one step. A new file is readable by its owner alone; another one keeps its rights.

    Raises:
        ConfigurationError: The file cannot be written. It is as it was before.
    """
    try:
        write_whole(file, "\n".join(map(_row_of, tokens)), mode=0o600, keeps_rights=True)
    except OSError as error:
        raise ConfigurationError(f"the file of tokens cannot be written: {error.strerror}: {file}") from error


def _row_of(token: AccessToken) -> str:
    scopes = ", ".join(_quoted(scope) for scope in sorted(token.scopes))
    lines = [
        "[[token]]",
        f"name = {_quoted(token.name)}",
        f"owner = {_quoted(token.owner)}",
        f"scopes = [{scopes}]",
        f"digest = {_quoted(token.digest)}",
    ]
    if token.expires is not None:
        date = datetime.fromtimestamp(int(token.expires), UTC)
        lines.append(f"expires = {date.isoformat().replace('+00:00', 'Z')}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A basic string of TOML; names are printable, so only two characters mean something in it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def days_from_now(days: float) -> float:
    """The Unix time so many days from now."""
    return time.time() + days * 86_400
