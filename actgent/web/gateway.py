"""A gateway put together: its doors, its tokens, what its endpoints work with, and the server below it."""

import re
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from actgent.client.connecting import Client
from actgent.errors import ConfigurationError
from actgent.runtime.runtime import Runtime, open_runtime

from .app import Application, Doors, router_of
from .bounds import GatewayLimits, Meters, OpenMessages
from .dashboard import routes
from .inside import Inside
from .metrics import Metrics
from .reach import Reach, journal_of
from .routes.openapi import document_of
from .routes.table import ENDPOINTS
from .server.addresses import is_loopback, split_address
from .server.relay import Relay, Way
from .server.serving import open_listeners, served
from .streaming.tails import Tails
from .tokens import AccessToken, Logins, TokenStore, new_token
from .webhooks.outbox import open_outbox
from .webhooks.webhook import Webhook, check_webhooks

LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
_HOST = re.compile(r"(\w[\w.-]*|\[[\da-fA-F:.]+\])(:\d{1,5})?")
_ORIGIN = re.compile(rf"null|file://|[a-z][a-z0-9+.-]*://(?!.*[A-Z]){_HOST.pattern}")
"""As browsers send them: no path, no slash at the end and no `*`, or no page would ever be let in; files have no host."""


@attrs.frozen(kw_only=True, eq=False)
class OpenedGateway:
    """A gateway as it was opened."""

    app: Application
    key: str | None
    """The token that was made for it."""
    login: str | None
    """The one-time key of its dashboard."""
    url: str | None
    """Where it answers."""
    count: Callable[[], int] = int
    """Counts its connections."""


@asynccontextmanager
async def opened_gateway(
    source: Runtime | Client,
    *,
    bind: str | None,
    tokens: Path | str | Iterable[AccessToken] | None,
    hosts: Iterable[str],
    origins: Iterable[str],
    limits: GatewayLimits,
    tls: ssl.SSLContext | None,
    dashboard: bool,
    notify: Sequence[Webhook],
) -> AsyncGenerator[OpenedGateway, None]:
    """See `open_gateway`."""
    store, key = _tokens_of(tokens, bind)
    sites = _listed("origins", origins, _ORIGIN, "https://app.example.com")
    names = partial(_hosts_of, bind, more=_listed("hosts", hosts, _HOST, "agents.example.com"))
    names(port=None)  # what is wrong is told before anything is open
    check_webhooks(notify)
    logins = Logins(store)
    login = None if key is None else logins.new_key()
    async with (
        _open_source(source, notify) as (runtime, relay),
        open_inside(runtime, limits, store, logins, notify) as inside,
    ):
        build = partial(
            _application,
            inside,
            store,
            relay=relay,
            now=runtime.clock.now,
            origins=sites,
            dashboard=dashboard,
        )
        if bind is None:
            with _closed(inside):
                yield OpenedGateway(app=build(names(port=None)), key=key, login=login, url=None)
            return
        listeners = await open_listeners(bind)
        port = listeners[0].socket.getsockname()[1]
        app = build(names(port=port))
        url = f"{'http' if tls is None else 'https'}://{bind.rpartition(':')[0]}:{port}"
        async with served(app, listeners, limits, tls=tls) as server:
            with _closed(inside):
                yield OpenedGateway(app=app, key=key, login=login, url=url, count=lambda: server.connections)


@asynccontextmanager
async def open_inside(
    runtime: Runtime,
    limits: GatewayLimits,
    tokens: TokenStore,
    logins: Logins,
    notify: Sequence[Webhook],
    *,
    is_scraped: bool = True,
) -> AsyncGenerator[Inside, None]:
    """Open what works behind the doors, for the block; `is_scraped` is False where nobody asks for its metrics."""
    journal, raised = journal_of(runtime), None
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        outboxes = [await stack.enter_async_context(open_outbox(each, journal)) for each in notify]
        inside = Inside(
            reach=Reach(runtime, journal),
            limits=limits,
            meters=Meters(limits),
            messages=OpenMessages(limits.messages),
            tails=Tails(runtime, journal, nursery),
            logins=logins,
            comparing=trio.CapacityLimiter(limits.comparisons),
            document=partial(document_of, ENDPOINTS),
            metrics=Metrics(runtime, journal),
            outboxes=outboxes,
        )
        nursery.start_soon(tokens.watch)
        for outbox in outboxes:
            nursery.start_soon(outbox.run)
        try:
            with runtime.asking_elsewhere(), inside.metrics.counting(nursery, is_scraped=is_scraped):
                yield inside
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


def _application(
    inside: Inside,
    tokens: TokenStore,
    hosts: frozenset[str],
    *,
    origins: frozenset[str],
    now: Callable[[], float],
    dashboard: bool,
    relay: Relay | None,
) -> Application:
    return Application(
        inside=inside,
        tokens=tokens,
        doors=Doors(hosts=hosts, origins=origins),
        limits=inside.limits,
        now=now,
        meters=inside.meters,
        router=router_of(ENDPOINTS, routes() if dashboard else ()),
        relay=relay,
    )


@asynccontextmanager
async def _open_source(
    source: Runtime | Client, notify: Sequence[Webhook]
) -> AsyncGenerator[tuple[Runtime, Relay | None], None]:
    """The runtime that answers, empty where a client does all, and the way to sessions of other processes, if there are any.

    Raises:
        ConfigurationError: the runtime has no journal; or the client is none of a broker, or has nobody to notify.
    """
    if isinstance(source, Runtime):
        way = None if source.elsewhere is None else source.elsewhere.way
        yield source, None if way is None else Relay(way=way, owns=journal_of(source).owns)
        return
    transport = source.__actgent_link__().calls.transport
    if notify or not isinstance(transport, Way):
        raise ConfigurationError(
            "open_gateway(client) takes a client of a broker, connect('amqps://...'), and notify= is for runtimes"
        )
    async with open_runtime(journal="memory:") as empty:
        yield empty, Relay(way=transport, owns=lambda _: False, is_all=True)


@contextmanager
def _closed(inside: Inside) -> Iterator[None]:
    """Let streams end behind the block."""
    try:
        yield
    finally:
        inside.closing.set()
        inside.tails.close()


def _tokens_of(
    tokens: Path | str | Iterable[AccessToken] | None, bind: str | None
) -> tuple[TokenStore, str | None]:
    """Return what a gateway knows of tokens, and the one that was made for it.

    Raises:
        ConfigurationError: there is none, and others than this machine may ask.
    """
    if isinstance(tokens, Path | str):
        return TokenStore(file=Path(tokens)), None
    if tokens is not None:
        return TokenStore(tokens), None
    if bind is not None and not is_loopback(split_address(bind)[0]):
        raise ConfigurationError(
            f"a gateway at {bind} needs tokens, since others than this machine may ask: "
            "make a file of them with `actgent token new`, and name it by tokens= (--tokens)"
        )
    secret, token = new_token("gateway.key", owner="admin", scopes=("admin",))
    return TokenStore([token]), secret


def _listed(name: str, given: Iterable[object], form: re.Pattern[str], example: str) -> frozenset[str]:
    """What an argument lists, each of its form.

    Raises:
        ConfigurationError: one is of another, or the argument is a text, whose characters would be meant.
    """
    if isinstance(given, str):
        raise ConfigurationError(f"{name}= takes a list: {name}=[{given!r:.200}]")
    listed = set()
    for each in given:
        if not isinstance(each, str) or form.fullmatch(each) is None:
            raise ConfigurationError(
                f"{each!r:.200} in {name}= (--{name.removesuffix('s')}) is nothing that a browser sends: write it as {example}"
            )
        listed.add(each)
    return frozenset(listed)


def _hosts_of(bind: str | None, port: int | None, more: Iterable[str]) -> frozenset[str]:
    """The values of `Host` that are answered.

    Raises:
        ConfigurationError: nothing says them.
    """
    given = {host.lower() for host in more}
    if bind is None:
        return frozenset(given or LOOPBACK)
    host = split_address(bind)[0]
    if is_loopback(host):
        return frozenset(given | {f"{name}:{port}" for name in LOOPBACK})
    if host in ("0.0.0.0", "::"):  # noqa: S104 - that is the question
        if not given:
            raise ConfigurationError(
                f"say by which names a gateway at {bind} is asked: hosts=, or --host NAME"
            )
        return frozenset(given)
    return frozenset(given | {f"{f'[{host}]' if ':' in host else host}:{port}"})
