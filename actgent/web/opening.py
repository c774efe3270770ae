"""`open_gateway`: a runtime's agents over HTTP, for the time of a block. The libraries below it are an extra."""

import importlib.util
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from actgent.actors.event_loop import check_loop
from actgent.client.connecting import Client
from actgent.errors import ConfigurationError
from actgent.runtime.runtime import Runtime
from actgent.support.hints import async_block

from .bounds import GatewayLimits
from .tokens import AccessToken
from .webhooks.webhook import Webhook

ADDRESS = "127.0.0.1:8300"
EXTRA = ("hypercorn", "starlette")
NO_WEBHOOKS = (
    "webhooks tell what one process has, and what they have told is that process's: in a cluster leave out notify= and --notify, and "
    "follow sessions by a client, or GET /v1/events"
)
ASGIApplication = Callable[[Any, Any, Any], Awaitable[None]]


class Gateway:
    """A gateway that is open."""

    def __init__(
        self,
        app: ASGIApplication,
        *,
        key: str | None,
        login: str | None,
        url: str | None,
        count: Callable[[], int],
    ) -> None:
        self.app = app
        """The ASGI application, to be mounted in another one that runs on trio."""
        self.key = key
        """A token with all rights that lives as long as the gateway; None where tokens were given."""
        self.url = url
        """Where it answers, without a slash at the end; None where it is only mounted."""
        self._login = login
        self._count = count

    def __repr__(self) -> str:
        return f"<Gateway at {self.url or 'no address of its own'}>"

    @property
    def link(self) -> str | None:
        """The dashboard's address, with a key that opens it once where there is one: browsers send that part to no server."""
        return self.url if self.url is None or self._login is None else f"{self.url}/#key={self._login}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return self._count()


@async_block()
async def open_gateway(
    runtime: Runtime | Client,
    *,
    bind: str | None = ADDRESS,
    tokens: Path | str | Iterable[AccessToken] | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    limits: GatewayLimits | None = None,
    tls: ssl.SSLContext | None = None,
    dashboard: bool = True,
    notify: Iterable[Webhook] = (),
) -> AsyncGenerator[Gateway, None]:
    """Answer HTTP requests for the agents of a runtime, to the end of the block; see docs/guides/gateway.md.

    The runtime needs a journal, if only `memory:`. At the end nothing new is taken, streams are told `bye`, and requests
    have `limits.grace` seconds; turns go on, as they are the runtime's.

    Args:
        runtime: Whose agents; or a client of a broker, for a process that hosts none: `open_gateway(client)`.
        bind: `HOST:PORT`; port 0 is one that is free. None: there is only `gateway.app`, to be mounted.
        tokens: The file of tokens (`actgent token new`), or tokens. None makes one, `gateway.key`, which only loopback takes.
        hosts: Further names by which it is asked, as in `Host`: `agents.example.com`, or with a port.
        origins: Sites whose pages may ask, as in `Origin`: `https://app.example.com`.
        limits: How much it takes.
        tls: Where it is to speak TLS itself.
        dashboard: Whether it shows people its page, which asks for a token like any other client.
        notify: Webhooks, which are told of replies, approvals, failures and ends of sessions, at least once each.

    Raises:
        ConfigurationError: the runtime has no journal, there are no tokens and others than this machine may ask, the
            address cannot be taken, or there are webhooks in a cluster.
    """
    check_loop("open_gateway()")
    if not isinstance(runtime, Runtime | Client):
        raise ConfigurationError(
            f"open_gateway(runtime) takes a Runtime, not {runtime!r:.200}: async with open_runtime(journal='memory:') as runtime, "
            "and await runtime.start(agent)"
        )
    notify = tuple(notify)
    if notify and (
        isinstance(runtime, Client) or (runtime.journal is not None and runtime.journal.is_shared)
    ):
        raise ConfigurationError(NO_WEBHOOKS)
    check_extra()
    from .gateway import opened_gateway  # noqa: PLC0415 - of the extra

    async with opened_gateway(
        runtime,
        bind=bind,
        tokens=tokens,
        hosts=hosts,
        origins=origins,
        limits=limits or GatewayLimits(),
        tls=tls,
        dashboard=dashboard,
        notify=notify,
    ) as opened:
        yield Gateway(opened.app, key=opened.key, login=opened.login, url=opened.url, count=opened.count)


def check_extra() -> None:
    """Refuse to begin without the libraries of the gateway.

    Raises:
        ConfigurationError: they are not installed.
    """
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        raise ConfigurationError(f"a gateway needs {' and '.join(missing)}: pip install 'actgent[web]'")
