"""`Webhook`: receiver, events, signing secrets and retries of webhook notifications."""

import hashlib
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import unquote, urlsplit

import attrs
import trio

from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.limits_and_schedules.id_and_number_validation import check_seconds
from actgent.support.unknown_name_hints import lists_arguments
from actgent.toolsets.http.internal_address_blocking import Guard

from .signatures import SecretsFile, SigningKeys

_ENTRY = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\[\]]+)(?::(?P<port>\d{1,5}))?(?P<path>/.*)?")
_PORTS = {"http": 80, "https": 443}
MAX_PORT = 65_535


@attrs.frozen
class AllowedReceiver:
    """One entry of `Webhook.allow`: a non-public receiver to which notifications may be sent."""

    host: str
    """Host name, IP address or network of the receiver, in the syntax of `Guard`."""
    port: int | None = None
    """Allowed port; None allows every port."""
    path: str = ""
    """Allowed prefix of the URL path; empty allows every path."""

    @classmethod
    def parse(cls, entry: object) -> "AllowedReceiver":
        """Parse an entry: `HOST`, `HOST:PORT`, `HOST/PATH`, `HOST:PORT/PATH`, or a network such as `10.0.0.0/8`.

        An IPv6 address with a port is in brackets.

        Raises:
            ConfigurationError: The entry has none of these forms.
        """
        text = entry if isinstance(entry, str) else ""
        if _is_plain(text):
            return cls(text)
        found = _ENTRY.fullmatch(text)
        port = None if found is None or found["port"] is None else int(found["port"])
        host = "" if found is None else found["host"].strip("[]")
        if found is None or not _is_plain(host) or (port is not None and not 0 < port <= MAX_PORT):
            raise ConfigurationError(
                "an entry in allow= of a webhook must be HOST, HOST:PORT, HOST:PORT/PATH, an address such as "
                "127.0.0.1:8080 or [::1]:8080, or "
                f"a network such as 10.0.0.0/8, not {entry!r:.200}"
            )
        return cls(host, port, (found["path"] or "").rstrip("/"))

    def matches(self, port: int, path: str) -> bool:
        """Return True if the entry allows this port and this URL path. The host is not compared."""
        is_below = not self.path or path == self.path or path.startswith(f"{self.path}/")
        return self.port in (None, port) and is_below


def _is_plain(host: str) -> bool:
    """Return True if `Guard` accepts the text as a host name, IP address or network."""
    try:
        Guard([host])
    except ConfigurationError:
        return False
    return True


def _parse_all(entries: Iterable[object]) -> tuple[AllowedReceiver, ...]:
    return tuple(map(AllowedReceiver.parse, entries))


@attrs.frozen
class AllowedReceivers:
    """The entries of `Webhook.allow`, parsed.

    Raises:
        ConfigurationError: An entry has the wrong syntax.
    """

    entries: tuple[AllowedReceiver, ...] = attrs.field(converter=_parse_all)

    def guard(self, url: str) -> Guard:
        """Return the guard for connections to a URL. It permits the hosts of the entries that allow the URL's port and path.

        Equal sets of entries give equal guards. A connection is reused only under one guard, so a request for a path that no
        entry allows never uses the connection of another path.
        """
        parts = urlsplit(url)
        decoded = unquote(parts.path)
        # Servers may normalize such a path to another one.
        is_ambiguous = "\\" in decoded or not {".", ".."}.isdisjoint(decoded.split("/")) or "//" in decoded
        path = "" if is_ambiguous else decoded
        port = parts.port or _PORTS[parts.scheme]
        return _guard(tuple(each.host for each in self.entries if each.matches(port, path)))


@lru_cache(maxsize=256)
def _guard(hosts: Iterable[str]) -> Guard:
    return Guard(hosts)


WebhookEvent = Literal["reply", "approval", "failed", "closed"]
EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)
MAX_URL_CHARS = 2000
RESOLVE_TIMEOUT_SECONDS = 5.0
"""Timeout in seconds for resolving the host name of a URL that a client sets."""


def check_url(url: str) -> str:
    """Validate the URL of a webhook receiver and return the URL.

    Raises:
        ConfigurationError: The URL is not an absolute HTTP URL, is too long, or contains credentials.
    """
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigurationError(
            f"url= of a webhook must be a URL such as https://app.example.com/hook, not {url!r:.200}"
        )
    if "@" in urlsplit(url).netloc:
        raise ConfigurationError(
            "the URL of a webhook must not contain a user name or password: requests are authenticated by their signature"
        )
    return url


def check_events(events: Iterable[str]) -> tuple[str, ...]:
    """Validate the event names of a webhook and return the names without duplicates.

    Raises:
        ConfigurationError: An event name is unknown, or the list is empty.
    """
    names = tuple(dict.fromkeys([events] if isinstance(events, str) else events))
    for name in names:
        if name not in EVENTS:
            raise ConfigurationError(
                f"unknown webhook event {name!r}: {did_you_mean_or_list(str(name), EVENTS)}"
            )
    if not names:
        raise ConfigurationError(f"events= of a webhook must have at least one of {', '.join(EVENTS)}")
    return names


def _url(url: str | None) -> str | None:
    return None if url is None else check_url(url)


def _secrets(secrets: Path | str | Iterable[str]) -> Callable[[], SigningKeys]:
    if isinstance(secrets, Path):
        return SecretsFile(secrets).keys
    keys = SigningKeys.of([secrets] if isinstance(secrets, str) else secrets)
    return lambda: keys


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _seconds(_: object, field: "attrs.Attribute[float]", value: float) -> None:
    check_seconds(field.name, value)


@lists_arguments
@attrs.frozen(eq=False)
class Webhook:
    """Webhook that notifies a URL of replies, approvals, failures and ends of sessions: `open_gateway(notify=[Webhook(...)])`.

    Each notification is a `POST` with a JSON body, signed according to Standard Webhooks. It is retried with the same
    `webhook-id` until the receiver responds with status 2xx, also after a crash. The notifications of a session are sent
    one after the other. Redirects are not followed.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    url: str | None = attrs.field(converter=_url)
    """URL of the receiver; None sends to the URL that a client has set for each session with `notify`."""
    keys: Callable[[], SigningKeys] = attrs.field(
        converter=_secrets, alias="secrets", kw_only=True, repr=False
    )
    """Signing secrets (`whsec_...`), the newest first, or the path of a file with one secret per line, which is read again
    when it changes. Requests are signed with each secret. `new_webhook_secret()` creates a secret."""
    events: tuple[str, ...] = attrs.field(default=EVENTS, converter=check_events, kw_only=True)
    """Names of the events to send: `reply`, `approval`, `failed`, `closed`."""
    allow: tuple[str, ...] = attrs.field(default=(), converter=_texts, kw_only=True)
    """Non-public receivers to allow: `HOST`, `HOST:PORT`, `HOST:PORT/PATH`, or a network such as `10.0.0.0/8`. An entry
    without a port allows every port, and one without a path every path. With `url=None`, give a port and a path, because
    each client that may create sessions can use the entry."""
    timeout: float = attrs.field(default=15.0, validator=_seconds, kw_only=True)
    """Timeout in seconds of one delivery attempt, including the response."""
    pause: float = attrs.field(default=1.0, validator=_seconds, kw_only=True)
    """Seconds between the first and second delivery attempt. Each further pause doubles, up to an hour, with jitter."""
    retry_timeout: float = attrs.field(default=86_400.0, validator=_seconds, kw_only=True)
    """Seconds after the first failed attempt during which a notification is retried. Then it is listed as failed."""
    receivers: AllowedReceivers = attrs.field(init=False, repr=False)

    @receivers.default
    def _receivers(self) -> AllowedReceivers:
        return AllowedReceivers(self.allow)

    async def check_reachable(self, url: str) -> None:
        """Check that notifications may be sent to a URL. A host name that cannot be resolved now is accepted.

        Raises:
            AddressBlocked: An IP address of the host is not public, and `allow` does not permit it for this port and path.
        """
        parts = urlsplit(url)
        with trio.move_on_after(RESOLVE_TIMEOUT_SECONDS), suppress(OSError):
            await self.receivers.guard(url).addresses(parts.hostname or "", parts.port or 0)

    @property
    def id(self) -> str:
        """Id of the webhook, a hash of its URL. The journal has the webhook's delivery cursors under this id."""
        return hashlib.blake2b(
            (self.url or "").encode(), digest_size=8, person=b"actgent.webhook"
        ).hexdigest()

    @property
    def shown_url(self) -> str | None:
        """URL of the receiver without its query, which may contain a secret; None if `url` is None."""
        return None if self.url is None else urlsplit(self.url)._replace(query="", fragment="").geturl()


def check_webhooks(webhooks: Iterable[Webhook]) -> None:
    """Check that each item of a list is a `Webhook`, and that no two webhooks have the same URL.

    Otherwise a receiver would get each notification twice.

    Raises:
        ConfigurationError: Two webhooks have the same URL, or an item is not a `Webhook`.
    """
    known: set[str] = set()
    for webhook in webhooks:
        if not isinstance(webhook, Webhook):
            raise ConfigurationError(
                f"notify= must be a list of webhooks, such as [Webhook(url, secrets=...)], not {webhook!r:.200}"
            )
        if webhook.id in known:
            url = "the URLs of sessions" if webhook.url is None else webhook.shown_url
            raise ConfigurationError(
                f"two webhooks have the same URL ({url}): merge their events into one webhook"
            )
        known.add(webhook.id)
