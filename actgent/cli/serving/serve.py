"""`actgent serve`: agents over HTTP, to the first signal; then what runs ends, and streams are told so."""

import importlib.util
import logging
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import attrs
import trio

from actgent.cli.folders import agents_at
from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Terminal, one_line
from actgent.client.connecting import Client, connect
from actgent.errors import ConfigurationError
from actgent.journal.membership import check_cluster_extra
from actgent.runtime.runtime import Runtime, open_runtime
from actgent.web.bounds import GatewayLimits
from actgent.web.opening import ADDRESS, NO_WEBHOOKS, Gateway, check_extra, open_gateway
from actgent.web.webhooks.signing import make_secrets_file
from actgent.web.webhooks.webhook import EVENTS, Webhook

from .cluster_place import BROKER, NODE_GRACE, ClusterPlace
from .notify import NotifyOptions
from .operation_options import OperationOptions, arguments_of
from .server_log import LOGGER, logging_to_stderr

GRACE = 5.0
"""Seconds for requests at the end; agents have theirs."""


@attrs.frozen(kw_only=True)
class ServeOptions:
    """What `actgent serve` was told."""

    target: str | None
    """None: agents are hosted by the nodes of a cluster alone."""
    journal: str | None = None
    bind: str = ADDRESS
    tokens: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    notify: NotifyOptions = attrs.field(factory=NotifyOptions)
    operation: OperationOptions = attrs.field(factory=OperationOptions)
    broker: str | None = None
    pool: str | None = None
    name: str | None = None

    @property
    def place(self) -> ClusterPlace | None:
        """Where the cluster is whose sessions are served; None where the process has its own."""
        if self.target is not None and self.broker is None and self.pool is None:
            return None
        return ClusterPlace(journal=self.journal, broker=self.broker, pool=self.pool or "default")

    def command(self) -> list[str]:
        """The same as a command line has it."""
        given: dict[str, Iterable[str | None]] = {
            "--journal": [self.journal],
            "--bind": [self.bind],
            "--tokens": [self.tokens],
            "--origin": self.origins,
            "--host": self.hosts,
            "--tls-cert": [self.tls_cert],
            "--tls-key": [self.tls_key],
            "--broker": [self.broker],
            "--pool": [self.pool],
            "--name": [self.name],
        }
        options = [
            part for name, values in given.items() for value in values if value for part in (name, value)
        ]
        target = [] if self.target is None else [self.target]
        return ["serve", *target, *options, *arguments_of(self.notify), *arguments_of(self.operation)]


async def serve(options: ServeOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Serve the agents of a target, or those of a cluster's nodes, to the first signal or until the node is drained."""
    check_extra()
    operation = options.operation
    with logging_to_stderr(operation.log_format, operation.log_level):
        return await _serve(options, terminal.logging_to(logging.getLogger(LOGGER)), shutdown)


async def _serve(options: ServeOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    shutdown.notice, shutdown.grace = terminal.notice, options.operation.grace
    if options.place is not None and options.target is not None:
        shutdown.grace = NODE_GRACE
        if any(arguments_of(options.notify)):
            raise ConfigurationError(NO_WEBHOOKS)
    tls = _tls_of(options)
    notify, is_new = webhooks_of(options.notify)
    if is_new:
        terminal.notice(
            f"made {options.notify.notify_secrets}: receivers check signatures with the secret in it"
        )
    with shutdown.waiting():
        await _wait_for_journal(options, terminal)
    if shutdown.is_asked:
        return 0
    async with (
        _open_source(options) as source,
        open_gateway(
            source.served,
            bind=options.bind,
            tokens=options.tokens,
            hosts=options.hosts,
            origins=options.origins,
            limits=_limits_of(options),
            tls=tls,
            notify=notify,
        ) as gateway,
    ):
        _greet(source, gateway, terminal, is_json=options.operation.log_format == "json")
        with shutdown.waiting():
            await source.left.wait()
            terminal.notice("the node was drained")
        _tell_manager("STOPPING=1")
    terminal.notice("stopped")
    return 0


async def _wait_for_journal(options: ServeOptions, terminal: Terminal) -> None:
    """Wait until the database of a journal in PostgreSQL can be reached; raises as `wait_until_reachable`."""
    place = options.place
    journal = options.journal if place is None else None if options.target is None else place.journal_url()
    if journal is None or not journal.startswith(("postgres://", "postgresql://")):
        return
    if importlib.util.find_spec("psycopg") is None:
        return  # `open_runtime` names the missing extra
    from actgent.journal.postgres.reachable import wait_until_reachable  # noqa: PLC0415 - of the extra

    seconds = options.operation.wait_for_journal
    await wait_until_reachable(journal, seconds=seconds, report=terminal.notice)


@attrs.frozen(kw_only=True)
class _Source:
    """What is served."""

    served: Runtime | Client
    names: str
    """Of agents, for people."""
    left: trio.Event = attrs.field(factory=trio.Event)
    """Set when it serves nothing any more."""


def _names_cluster(options: ServeOptions) -> bool:
    return bool(options.broker or options.pool or os.environ.get(BROKER))


@asynccontextmanager
async def _open_source(options: ServeOptions) -> AsyncGenerator[_Source, None]:
    """What is to be served, for the block: the nodes of a cluster, one of them, or agents by themselves.

    Raises:
        ConfigurationError: the options do not go together, or name nothing.
    """
    place = options.place
    if options.target is None and not _names_cluster(options):
        raise ConfigurationError(
            f"say what is served: TARGET, the agents of a file or folder, or where the nodes of a cluster are: --broker, or the variable {BROKER}"
        )
    if place is None and options.name is not None:
        raise ConfigurationError("--name is that of a node: it goes with --broker, or with --pool")
    if place is not None:
        check_cluster_extra()
    if options.target is None:
        assert place is not None  # noqa: S101 - see `ServeOptions.place`
        _check_client(options)
        async with connect(place.broker_url(), name=options.name or "", pool=place.pool) as client:
            yield _Source(served=client, names=f"the agents of pool {place.pool}")
    else:
        async with _open_agents(options.target, options, place) as source:
            yield source


@asynccontextmanager
async def _open_agents(
    target: str, options: ServeOptions, place: ClusterPlace | None
) -> AsyncGenerator[_Source, None]:
    """Agents of this process, by themselves or as a node of a cluster."""
    agents = agents_at(target, offline=options.operation.offline)
    names = ", ".join(one_line(agent.name, 60) for agent in agents)
    async with _open_runtime(options, place) as runtime:
        async with runtime.starting():
            for agent in agents:
                agent.grace = options.operation.grace
                await runtime.start(agent)
        member = runtime.membership
        yield _Source(served=runtime, names=names, left=trio.Event() if member is None else member.left)


def _open_runtime(options: ServeOptions, place: ClusterPlace | None) -> AbstractAsyncContextManager[Runtime]:
    if place is not None:
        return open_runtime(
            journal=place.journal_url(), broker=place.broker_url(), pool=place.pool, node=options.name
        )
    where = options.journal or "memory:"
    return open_runtime(journal=where if "://" in where or where == "memory:" else f"sqlite:///{where}")


def _check_client(options: ServeOptions) -> None:
    """Refuse what needs agents or a journal in this process.

    Raises:
        ConfigurationError: something was given that does.
    """
    if options.journal is not None or any(arguments_of(options.notify)):
        raise ConfigurationError(
            "a gateway without agents has no journal, and notifies nobody: leave out --journal and --notify, or name the agents "
            "that it is to serve as a node"
        )


def _greet(source: _Source, gateway: Gateway, terminal: Terminal, *, is_json: bool) -> None:
    """Print the address, and notify the service manager. With a log in JSON the address is a log record."""
    show = terminal.notice if is_json else terminal.line
    show(f"{source.names} at {gateway.url}/v1; Ctrl-C ends it")
    if gateway.key is not None:
        terminal.line(f"token (of this run alone): {gateway.key}")
        terminal.line(f"dashboard: {gateway.link}")
    _tell_manager("READY=1")


def _tell_manager(state: str) -> None:
    """Tell the service manager that started this process, if there is one; sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or os.name == "nt":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, suppress(OSError):
        channel.settimeout(0)
        channel.sendto(state.encode(), address.replace("@", "\0", 1))


def _limits_of(options: ServeOptions) -> GatewayLimits:
    return GatewayLimits(grace=min(GRACE, options.operation.grace), **options.operation.limits())


def _tls_of(options: ServeOptions) -> ssl.SSLContext | None:
    cert, key = options.tls_cert, options.tls_key
    if cert is None or key is None:
        if cert is not None or key is not None:
            raise ConfigurationError("--tls-cert and --tls-key go together")
        return None
    from actgent.web.server.serving import tls_context  # noqa: PLC0415 - of the extra

    return tls_context(cert, key)


def webhooks_of(options: NotifyOptions) -> tuple[list[Webhook], bool]:
    """The webhooks that these options mean, and whether their file of secrets was made now.

    Raises:
        ConfigurationError: two of them do not go together, or one makes no sense.
    """
    urls: list[str | None] = [*options.notify, *([None] if options.notify_sessions else [])]
    if not urls:
        if any(arguments_of(options)):
            raise ConfigurationError("the options of webhooks go with --notify URL, or --notify-sessions")
        return [], False
    if options.notify_allow and not options.notify:
        raise ConfigurationError(
            "--notify-allow is for the addresses of --notify: open receivers of clients by --notify-sessions-allow"
        )
    if options.notify_sessions_allow and not options.notify_sessions:
        raise ConfigurationError("--notify-sessions-allow goes with --notify-sessions")
    if options.notify_secrets is None:
        raise ConfigurationError(
            "--notify takes --notify-secrets FILE, with which requests are signed; it is made where there is none"
        )
    path = Path(options.notify_secrets)
    events = options.notify_events or EVENTS
    allowed = [options.notify_sessions_allow if url is None else options.notify_allow for url in urls]
    for url, allow in zip(urls, allowed, strict=True):  # what is wrong is told before a file is made
        Webhook(url, secrets=["whsec_" + "A" * 32], events=events, allow=allow)
    is_new = make_secrets_file(path)
    made = [
        Webhook(url, secrets=path, events=events, allow=allow)
        for url, allow in zip(urls, allowed, strict=True)
    ]
    return made, is_new
