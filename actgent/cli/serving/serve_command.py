"""`actgent serve`: serve agents over HTTP until the first signal, then drain."""

import importlib.util
import logging
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import attrs
import trio

from actgent.cli.agent_folders import agents_at
from actgent.cli.journals.journal_commands import to_journal_url
from actgent.cli.signal_handling import Shutdown
from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import ConfigurationError
from actgent.journal.cluster_interface import check_cluster_extra
from actgent.runtime.runtime import Runtime, open_runtime
from actgent.support.tracing_interface import Tracing
from actgent.web.gateway import NO_WEBHOOKS, check_extra, open_gateway
from actgent.web.gateway_interface import Datasets, ExternalProtocol, Gateway
from actgent.web.gateway_limits import GatewayLimits
from actgent.web.webhooks.signatures import make_secrets_file
from actgent.web.webhooks.webhook import EVENTS, Webhook

from .serve_options import ClusterOptions, NotifyOptions, ServeOptions, to_arguments
from .server_log import LOGGER, logging_to_stderr

HAND_OVER_SECONDS = 10.0
"""Additional grace time in seconds in which a cluster node transfers unfinished turns to other nodes."""
REQUEST_GRACE_SECONDS = 5.0
"""Maximum time in seconds that open requests get to finish at shutdown."""


async def serve(options: ServeOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Serve agents over HTTP until the first signal, or until the cluster node is drained. Return the exit code.

    Raises:
        ConfigurationError: An option is invalid, or the extra `web` is missing.
    """
    check_extra()
    operation = options.operation
    with logging_to_stderr(operation.log_format, operation.log_level):
        return await _serve(options, terminal.with_log(logging.getLogger(LOGGER)), shutdown)


async def _serve(options: ServeOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    shutdown.notice, shutdown.grace = terminal.notice, options.operation.grace
    if options.cluster_options is not None:
        shutdown.grace += HAND_OVER_SECONDS
        if any(to_arguments(options.notify)):
            raise ConfigurationError(NO_WEBHOOKS)
    tls, protocols = _tls_context(options), _protocols_of(options)
    notify, created = make_webhooks(options.notify)
    if created:
        terminal.notice(
            f"created {options.notify.notify_secrets}: webhook receivers verify signatures with its secret"
        )
    with shutdown.interruptible():
        await _wait_for_journal(options, terminal)
    if shutdown.is_requested:
        return 0
    async with (
        _open_agents(options) as agents_served,
        open_gateway(
            agents_served.runtime,
            bind=options.bind,
            tokens=options.tokens,
            hosts=options.host,
            origins=options.origin,
            limits=_gateway_limits(options),
            tls=tls,
            notify=notify,
            protocols=protocols,
            datasets=_datasets_of(options),
        ) as gateway,
    ):
        is_json = options.operation.log_format == "json"
        _announce(agents_served, gateway, terminal, protocols, is_json=is_json)
        with shutdown.interruptible():
            await agents_served.drained.wait()
            terminal.notice("the node was drained")
        _notify_service_manager("STOPPING=1")
        if (
            member := agents_served.runtime.membership
        ) is not None:  # the gateway keeps serving until all partitions are handed over
            await member.leave(options.operation.grace)
    terminal.notice("stopped")
    return 0


async def _wait_for_journal(options: ServeOptions, terminal: Terminal) -> None:
    """Wait until the PostgreSQL server of the journal is reachable. Return at once for other journals.

    Raises:
        JournalFailed: The server is not reachable within `wait_for_journal` seconds, or rejects the user.
    """
    cluster = options.cluster_options
    journal = options.journal if cluster is None else cluster.journal_url()
    if journal is None or not journal.startswith(("postgres://", "postgresql://")):
        return
    if importlib.util.find_spec("psycopg") is None:
        return  # `open_runtime` raises the error about the missing extra
    from actgent.journal.postgres.server_startup_wait import wait_until_reachable  # noqa: PLC0415 - of the extra

    seconds = options.operation.wait_for_journal
    await wait_until_reachable(journal, seconds=seconds, report=terminal.notice)


@attrs.frozen(kw_only=True)
class _ServedAgents:
    """Runtime with the started agents that the gateway serves."""

    runtime: Runtime
    names: str
    """Names of the agents, as text for the startup message."""
    drained: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set when the cluster node has been drained."""


@asynccontextmanager
async def _open_agents(options: ServeOptions) -> AsyncGenerator[_ServedAgents, None]:
    """Start the agents in a runtime, as single server or as cluster node, and stop them when the block exits.

    Raises:
        ConfigurationError: Options exclude each other.
    """
    cluster = options.cluster_options
    if cluster is None and (options.node is not None or options.advertise is not None):
        raise ConfigurationError("--node and --advertise require --cluster")
    if cluster is not None:
        check_cluster_extra()
    agents = agents_at(options.target, offline=options.operation.offline)
    names = ", ".join(one_line(agent.name, 60) for agent in agents)
    async with _open_telemetry(options) as telemetry, _open_runtime(options, cluster, telemetry) as runtime:
        async with runtime.starting():
            for agent in agents:
                agent.grace = options.operation.grace
                await runtime.start(agent)
        member = runtime.membership
        yield _ServedAgents(
            runtime=runtime, names=names, drained=trio.Event() if member is None else member.left
        )


@asynccontextmanager
async def _open_telemetry(options: ServeOptions) -> AsyncGenerator[Tracing | None, None]:
    """Yield the telemetry of `--telemetry`; None without the option.

    Raises:
        ConfigurationError: The extra `otlp` is missing, or an `OTEL_*` variable has an invalid value.
    """
    if not options.operation.telemetry:
        yield None
        return
    try:
        from .telemetry_export import open_telemetry  # noqa: PLC0415 - needs the extra `otlp`
    except ModuleNotFoundError as missing:
        raise ConfigurationError(
            f"--telemetry needs the package {missing.name}: pip install 'actgent[otlp]'"
        ) from None
    async with open_telemetry() as telemetry:
        yield telemetry


def _open_runtime(
    options: ServeOptions, cluster: ClusterOptions | None, telemetry: Tracing | None
) -> AbstractAsyncContextManager[Runtime]:
    if cluster is not None:
        return open_runtime(
            journal=cluster.journal_url(),
            cluster=cluster.cluster,
            advertise=options.advertise,
            node=options.node,
            index=options.operation.index,
            telemetry=telemetry,
        )
    return open_runtime(
        journal=to_journal_url(options.journal or "memory:"),
        index=options.operation.index,
        telemetry=telemetry,
    )


def _protocols_of(options: ServeOptions) -> Sequence[ExternalProtocol]:
    """Return the interoperability protocols that the options select.

    Raises:
        ConfigurationError: `--protocols` names an unknown protocol.
    """
    from actgent.interop import PROTOCOLS  # noqa: PLC0415 - of the extra

    if options.protocols is None:
        return PROTOCOLS
    wanted = [name.strip() for name in options.protocols.split(",")]
    known = {each.name: each for each in PROTOCOLS}
    if wanted == ["none"]:
        return ()
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigurationError(
            f"--protocols has an unknown name {unknown[0]!r:.100}: use {', '.join(known)}, or none"
        )
    return [known[name] for name in wanted]


def _datasets_of(options: ServeOptions) -> Datasets | None:
    """Return the evaluation datasets in the folder of `--datasets`; None without the option.

    Raises:
        ConfigurationError: The folder does not exist.
    """
    if options.operation.datasets is None:
        return None
    from actgent.evaluation import DatasetFolder  # noqa: PLC0415 - few servers have datasets

    return DatasetFolder(options.operation.datasets)


def _announce(
    agents_served: _ServedAgents,
    gateway: Gateway,
    terminal: Terminal,
    protocols: Sequence[ExternalProtocol],
    *,
    is_json: bool,
) -> None:
    """Print the server's URL and token, and notify the service manager. With a JSON log the URL is a log record."""
    show = terminal.notice if is_json else terminal.line
    show(f"{agents_served.names} at {gateway.url}/v1; Ctrl-C stops the server")
    if gateway.key is not None:
        terminal.line(f"token (for this run only): {gateway.key}")
        terminal.line(f"dashboard: {gateway.link}")
    show(f"API documentation: {gateway.url}/docs")
    for protocol in protocols:
        show(f"{protocol.title}: {gateway.url}{protocol.address}")
    _notify_service_manager("READY=1")


def _notify_service_manager(state: str) -> None:
    """Send a state such as `READY=1` to systemd, if systemd started this process. Failures are ignored; see sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or os.name == "nt":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, suppress(OSError):
        channel.settimeout(0)
        channel.sendto(state.encode(), address.replace("@", "\0", 1))


def _gateway_limits(options: ServeOptions) -> GatewayLimits:
    return GatewayLimits(
        grace=min(REQUEST_GRACE_SECONDS, options.operation.grace), **options.operation.limits()
    )


def _tls_context(options: ServeOptions) -> ssl.SSLContext | None:
    cert, key = options.tls_cert, options.tls_key
    if cert is None or key is None:
        if cert is not None or key is not None:
            raise ConfigurationError("--tls-cert and --tls-key require each other")
        return None
    from actgent.web.server.hypercorn_server import tls_context  # noqa: PLC0415 - of the extra

    return tls_context(cert, key)


def make_webhooks(options: NotifyOptions) -> tuple[list[Webhook], bool]:
    """Return the webhooks that the options configure, and True if their file of secrets was created.

    Raises:
        ConfigurationError: Options exclude each other, or one is invalid.
    """
    urls: list[str | None] = [*options.notify, *([None] if options.notify_sessions else [])]
    if not urls:
        if any(to_arguments(options)):
            raise ConfigurationError("webhook options require --notify URL or --notify-sessions")
        return [], False
    if options.notify_allow and not options.notify:
        raise ConfigurationError(
            "--notify-allow requires --notify: use --notify-sessions-allow for webhook URLs of clients"
        )
    if options.notify_sessions_allow and not options.notify_sessions:
        raise ConfigurationError("--notify-sessions-allow requires --notify-sessions")
    if options.notify_secrets is None:
        raise ConfigurationError(
            "webhooks require --notify-secrets FILE with the signing secrets; the file is created if missing"
        )
    path = Path(options.notify_secrets)
    events = options.notify_events or EVENTS
    allowed = [options.notify_sessions_allow if url is None else options.notify_allow for url in urls]
    for url, allow in zip(
        urls, allowed, strict=True
    ):  # validate the options before the secrets file is created
        Webhook(url, secrets=["whsec_" + "A" * 32], events=events, allow=allow)
    created = make_secrets_file(path)
    webhooks = [
        Webhook(url, secrets=path, events=events, allow=allow)
        for url, allow in zip(urls, allowed, strict=True)
    ]
    return webhooks, created
