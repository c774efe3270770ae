"""Construction of a gateway from its parts: tokens, host policy, endpoints, webhooks and HTTP server."""

import re
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import trio

from actgent.errors import ConfigurationError
from actgent.runtime.runtime import Runtime

from .access_control import AccessFilter, require_journal
from .access_tokens import AccessToken, Logins, TokenStore, new_token
from .asgi_app import Application, HostPolicy, preflight_of, router_of
from .dashboard import docs_route, routes
from .gateway_context import GatewayContext
from .gateway_interface import Datasets, ExternalProtocol, Gateway
from .gateway_limits import GatewayLimits, Meters, OpenMessages
from .prometheus_metrics import Metrics
from .routes.endpoint_table import ENDPOINTS
from .routes.endpoints import Endpoint
from .routes.openapi import document_of
from .server.hypercorn_server import open_listeners, served
from .server.listen_addresses import is_loopback, split_address
from .server.request_relay import Relay
from .streaming.event_broadcast import Broadcasts
from .webhooks.outbox import open_outbox
from .webhooks.webhook import Webhook, check_webhooks

LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
_HOST = re.compile(r"(\w[\w.-]*|\[[\da-fA-F:.]+\])(:\d{1,5})?")
_ORIGIN = re.compile(rf"null|file://|[a-z][a-z0-9+.-]*://(?!.*[A-Z]){_HOST.pattern}")
"""Valid values of an `Origin` header: no path, no final slash and no `*`. Browsers send `null` or `file://` for local files."""


@asynccontextmanager
async def opened_gateway(
    runtime: Runtime,
    *,
    bind: str | None,
    tokens: Path | str | Iterable[AccessToken] | None,
    hosts: Iterable[str],
    origins: Iterable[str],
    limits: GatewayLimits,
    tls: ssl.SSLContext | None,
    dashboard: bool,
    notify: Sequence[Webhook],
    protocols: Sequence[ExternalProtocol] = (),
    datasets: Datasets | None = None,
) -> AsyncGenerator[Gateway, None]:
    """Open an `async with` block with a running gateway. See `open_gateway` for the arguments."""
    store, key = _tokens_of(tokens, bind)
    sites = _validate_list("origins", origins, _ORIGIN, "https://app.example.com")
    names = partial(
        _hosts_of, bind, additional_hosts=_validate_list("hosts", hosts, _HOST, "agents.example.com")
    )
    names(port=None)  # raises before any resource is opened
    check_webhooks(notify)
    logins = Logins(store)
    login = None if key is None else logins.new_key()
    relay = None if runtime.remote_sessions is None else runtime.remote_sessions.relay
    added = [each for protocol in protocols for each in protocol.endpoints]
    relayed = nullcontext() if relay is None else relay.serving(added)
    async with open_gateway_context(runtime, limits, store, logins, notify, datasets=datasets) as context:
        for protocol in protocols:
            if protocol.background is not None:
                context.nursery.start_soon(protocol.background, context)
        build = partial(
            _application,
            context,
            store,
            relay=relay,
            now=runtime.clock.now,
            origins=sites,
            dashboard=dashboard,
            endpoints=[*ENDPOINTS, *added],
        )
        if bind is None:
            with relayed, _close_streams_at_exit(context):
                yield Gateway(build(names(port=None)), key=key, login=login, url=None)
            return
        listeners = await open_listeners(bind)
        port = listeners[0].socket.getsockname()[1]
        app = build(names(port=port))
        url = f"{'http' if tls is None else 'https'}://{bind.rpartition(':')[0]}:{port}"
        async with served(app, listeners, limits, tls=tls) as server:
            with relayed, _close_streams_at_exit(context):
                yield Gateway(app, key=key, login=login, url=url, count=lambda: server.connections)


@asynccontextmanager
async def open_gateway_context(
    runtime: Runtime,
    limits: GatewayLimits,
    tokens: TokenStore,
    logins: Logins,
    notify: Sequence[Webhook],
    *,
    is_scraped: bool = True,
    datasets: Datasets | None = None,
) -> AsyncGenerator[GatewayContext, None]:
    """Open an `async with` block with the context that the endpoints share, while its background tasks run.

    `is_scraped=False` disables the metrics of journal transactions and of the cluster.
    """
    journal, raised = require_journal(runtime), None
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        outboxes = [await stack.enter_async_context(open_outbox(each, journal)) for each in notify]
        context = GatewayContext(
            access=AccessFilter(runtime, journal),
            limits=limits,
            meters=Meters(limits),
            messages=OpenMessages(limits.messages),
            broadcasts=Broadcasts(runtime, journal, nursery),
            logins=logins,
            nursery=nursery,
            replay_limiter=trio.CapacityLimiter(limits.comparisons),
            document=partial(document_of, ENDPOINTS),
            metrics=Metrics(runtime, journal),
            outboxes=outboxes,
            datasets=datasets,
        )
        nursery.start_soon(tokens.watch)
        for outbox in outboxes:
            nursery.start_soon(outbox.run)
        try:
            with runtime.showing_approvals(), context.metrics.counting(nursery, is_scraped=is_scraped):
                yield context
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


def _application(
    context: GatewayContext,
    tokens: TokenStore,
    hosts: frozenset[str],
    *,
    origins: frozenset[str],
    now: Callable[[], float],
    dashboard: bool,
    relay: Relay | None,
    endpoints: Sequence[Endpoint],
) -> Application:
    return Application(
        context=context,
        tokens=tokens,
        host_policy=HostPolicy(hosts=hosts, origins=origins),
        limits=context.limits,
        now=now,
        meters=context.meters,
        router=router_of(endpoints, [docs_route(), *(routes() if dashboard else ())]),
        preflight=preflight_of(endpoints),
        relay=relay,
    )


@contextmanager
def _close_streams_at_exit(context: GatewayContext) -> Iterator[None]:
    """Close all event streams of the gateway when the `with` block exits."""
    try:
        yield
    finally:
        context.closing.set()
        context.broadcasts.close()


def _tokens_of(
    tokens: Path | str | Iterable[AccessToken] | None, bind: str | None
) -> tuple[TokenStore, str | None]:
    """Return the token store of a gateway and the admin token that was generated. The token is None if `tokens` are given.

    Raises:
        ConfigurationError: Tokens are missing and the address is not loopback.
    """
    if isinstance(tokens, Path | str):
        return TokenStore(file=Path(tokens)), None
    if tokens is not None:
        return TokenStore(tokens), None
    if bind is not None and not is_loopback(split_address(bind)[0]):
        raise ConfigurationError(
            f"a gateway at {bind} needs tokens, because other machines can connect: "
            "create a token file with `actgent token new`, and pass it as tokens= (--tokens)"
        )
    secret, token = new_token("gateway.key", owner="admin", scopes=("admin",))
    return TokenStore([token]), secret


def _validate_list(
    name: str, values: Iterable[object], pattern: re.Pattern[str], example: str
) -> frozenset[str]:
    """Return the values of the list argument `name`, each of which must match a pattern. `example` is for the error.

    Raises:
        ConfigurationError: A value does not match, or the argument is a string instead of a list.
    """
    if isinstance(values, str):
        raise ConfigurationError(f"{name}= must be a list: write {name}=[{values!r:.200}]")
    valid = set()
    for each in values:
        if not isinstance(each, str) or pattern.fullmatch(each) is None:
            raise ConfigurationError(
                f"{each!r:.200} in {name}= (--{name.removesuffix('s')}) is invalid: the expected form is {example}"
            )
        valid.add(each)
    return frozenset(valid)


def _hosts_of(bind: str | None, port: int | None, additional_hosts: Iterable[str]) -> frozenset[str]:
    """Return the allowed values of the `Host` header: those for the listen address, and `additional_hosts`.

    Raises:
        ConfigurationError: The gateway listens on all addresses and `hosts` is empty.
    """
    given = {host.lower() for host in additional_hosts}
    if bind is None:
        return frozenset(given or LOOPBACK)
    host = split_address(bind)[0]
    if is_loopback(host):
        return frozenset(given | {f"{name}:{port}" for name in LOOPBACK})
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compares the address, binds nothing
        if not given:
            raise ConfigurationError(
                f"a gateway at {bind} needs the host names that clients use: pass hosts= (--host NAME)"
            )
        return frozenset(given)
    return frozenset(given | {f"{f'[{host}]' if ':' in host else host}:{port}"})
