"""`actgent serve`: agents over HTTP, to the first signal; then what runs ends, and streams are told so."""

import os
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import attrs
import trio

from actgent.cli.folders import agents_at
from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Terminal, one_line
from actgent.errors import ConfigurationError
from actgent.runtime.runtime import open_runtime
from actgent.web.bounds import GatewayLimits
from actgent.web.opening import ADDRESS, check_extra, open_gateway
from actgent.web.webhooks.signing import make_secrets_file
from actgent.web.webhooks.webhook import EVENTS, Webhook

from .notify import NotifyOptions

GRACE = 5.0
"""Seconds for requests at the end; agents have theirs."""


@attrs.frozen(kw_only=True)
class ServeOptions:
    """What `actgent serve` was told."""

    target: str
    journal: str = "memory:"
    bind: str = ADDRESS
    tokens: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    notify: NotifyOptions = attrs.field(factory=NotifyOptions)

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
        }
        options = [
            part for name, values in given.items() for value in values if value for part in (name, value)
        ]
        return ["serve", self.target, *options, *self.notify.as_arguments()]


async def serve(options: ServeOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Serve the agents of a target, to the first signal."""
    check_extra()
    tls = _tls_of(options)
    notify, is_new = webhooks_of(options.notify)
    if is_new:
        terminal.notice(
            f"made {options.notify.notify_secrets}: receivers check signatures with the secret in it"
        )
    agents = agents_at(options.target)
    place = options.journal
    journal = place if "://" in place or place == "memory:" else f"sqlite:///{place}"
    async with open_runtime(journal=journal) as runtime:
        async with runtime.starting():
            for agent in agents:
                await runtime.start(agent)
        async with open_gateway(
            runtime,
            bind=options.bind,
            tokens=options.tokens,
            hosts=options.hosts,
            origins=options.origins,
            limits=GatewayLimits(grace=GRACE),
            tls=tls,
            notify=notify,
        ) as gateway:
            names = ", ".join(one_line(agent.name, 60) for agent in agents)
            terminal.line(f"{names} at {gateway.url}/v1; Ctrl-C ends it")
            if gateway.key is not None:
                terminal.line(f"token (of this run alone): {gateway.key}")
                terminal.line(f"dashboard: {gateway.link}")
            _tell_manager("READY=1")
            with shutdown.waiting():
                await trio.Event().wait()
            _tell_manager("STOPPING=1")
    return 0


def _tell_manager(state: str) -> None:
    """Tell the service manager that started this process, if there is one; sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or os.name == "nt":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, suppress(OSError):
        channel.settimeout(0)
        channel.sendto(state.encode(), address.replace("@", "\0", 1))


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
        if any(options.as_arguments()):
            raise ConfigurationError("the options of webhooks go with --notify URL, or --notify-sessions")
        return [], False
    if options.notify_secrets is None:
        raise ConfigurationError(
            "--notify takes --notify-secrets FILE, with which requests are signed; it is made where there is none"
        )
    path = Path(options.notify_secrets)
    events = options.notify_events or EVENTS
    for url in urls:  # what is wrong is told before a file is made
        Webhook(url, secrets=["whsec_" + "A" * 32], events=events, allow=options.notify_allow)
    is_new = make_secrets_file(path)
    return [Webhook(url, secrets=path, events=events, allow=options.notify_allow) for url in urls], is_new
