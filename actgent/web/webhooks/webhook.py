"""`Webhook`: to whom what is told, and how long it is tried."""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import attrs
import trio

from actgent.control.arguments import check_seconds
from actgent.errors import ConfigurationError, nearest

from .receivers import AllowedReceivers
from .signing import SecretsFile, SigningKeys

WebhookEvent = Literal["reply", "approval", "failed", "closed"]
EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)
MAX_URL = 2000
RESOLVE_SECONDS = 5.0
"""Seconds in which the name of a receiver has to resolve when a client sets it."""


def check_url(url: str) -> str:
    """The address of a receiver.

    Raises:
        ConfigurationError: it is none that can be sent to.
    """
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigurationError(
            f"a webhook goes to an address such as https://app.example.com/hook, not {url!r:.200}"
        )
    if "@" in urlsplit(url).netloc:
        raise ConfigurationError(
            "the address of a webhook has no name and password: its signature says who sends"
        )
    return url


def check_events(events: Iterable[str]) -> tuple[str, ...]:
    """The events that a webhook tells, each once.

    Raises:
        ConfigurationError: there is no such event, or none was given.
    """
    given = tuple(dict.fromkeys([events] if isinstance(events, str) else events))
    for event in given:
        if event not in EVENTS:
            raise ConfigurationError(f"webhooks tell no {event!r}: {nearest(str(event), EVENTS)}")
    if not given:
        raise ConfigurationError(f"a webhook tells at least one of {', '.join(EVENTS)}")
    return given


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


@attrs.frozen(eq=False)
class Webhook:
    """A receiver that is told of replies, approvals, failures and ends of sessions: `open_gateway(notify=[Webhook(...)])`.

    Each is a `POST` with a JSON body, signed as Standard Webhooks has it. It is repeated until the receiver answers 2xx,
    under the same `webhook-id`, also after a crash; in a session one comes after the other. Redirects are not followed.

    Raises:
        ConfigurationError: one of these is wrong.
    """

    url: str | None = attrs.field(converter=_url)
    """Where to; None is what each session's client said in `notify`."""
    keys: Callable[[], SigningKeys] = attrs.field(
        converter=_secrets, alias="secrets", kw_only=True, repr=False
    )
    """What it signs with: secrets (`whsec_...`), the newest first, each of which signs; or the path of a file with one a
    line, that is read again when it changes. `new_webhook_secret()` makes one."""
    events: tuple[str, ...] = attrs.field(default=EVENTS, converter=check_events, kw_only=True)
    """Which are told: of `reply`, `approval`, `failed`, `closed`."""
    allow: tuple[str, ...] = attrs.field(default=(), converter=_texts, kw_only=True)
    """Receivers besides the public ones: `HOST`, `HOST:PORT`, `HOST:PORT/PATH`, or a network such as `10.0.0.0/8`. An entry
    without a port opens every port, and one without a path every path. A webhook with `url=None` should name both: its
    entries are open to each client that may make sessions."""
    timeout: float = attrs.field(default=15.0, validator=_seconds, kw_only=True)
    """Seconds for one attempt, with its answer."""
    pause: float = attrs.field(default=1.0, validator=_seconds, kw_only=True)
    """Seconds until the second attempt; each further pause is twice as long, up to an hour, with jitter."""
    patience: float = attrs.field(default=86_400.0, validator=_seconds, kw_only=True)
    """Seconds behind the first attempt after which it is given up, and listed as failed."""
    receivers: AllowedReceivers = attrs.field(init=False, repr=False)

    @receivers.default
    def _receivers(self) -> AllowedReceivers:
        return AllowedReceivers(self.allow)

    async def check_reachable(self, url: str) -> None:
        """Refuse a URL that notifications could not be sent to, before it is kept. A name that does not resolve now passes.

        Raises:
            AddressRefused: An address of its host is not public, and `allow` does not open it for this port and path.
        """
        parts = urlsplit(url)
        with trio.move_on_after(RESOLVE_SECONDS), suppress(OSError):
            await self.receivers.guard(url).addresses(parts.hostname or "", parts.port or 0)

    @property
    def id(self) -> str:
        """Under which its place in the journal is kept: it follows from the address."""
        return hashlib.blake2b(
            (self.url or "").encode(), digest_size=8, person=b"actgent.webhook"
        ).hexdigest()

    def describe(self) -> dict[str, Any]:
        """What administrators are shown of it: the address without its query, which may hold a secret."""
        shown = None if self.url is None else urlsplit(self.url)._replace(query="", fragment="").geturl()
        return {"id": self.id, "url": shown, "events": list(self.events)}


def check_webhooks(webhooks: Iterable[Webhook]) -> None:
    """Refuse two webhooks of one address: the receiver would get everything twice.

    Raises:
        ConfigurationError: there are two.
    """
    known: set[str] = set()
    for webhook in webhooks:
        if not isinstance(webhook, Webhook):
            raise ConfigurationError(
                f"notify= takes Webhooks: [Webhook(url, secrets=...)], not {webhook!r:.200}"
            )
        if webhook.id in known:
            whose = "the addresses of sessions" if webhook.url is None else webhook.describe()["url"]
            raise ConfigurationError(f"there are two webhooks for {whose}: put their events into one")
        known.add(webhook.id)
