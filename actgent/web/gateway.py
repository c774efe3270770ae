"""`open_gateway`: serves the agents of a runtime over HTTP inside a block. It needs the extra `web`."""

import importlib.util
import ssl
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from actgent.actors.event_loop_check import check_loop
from actgent.errors import ConfigurationError
from actgent.runtime.runtime import Runtime
from actgent.support.unknown_name_hints import async_block

from .access_tokens import AccessToken
from .gateway_interface import Datasets, ExternalProtocol, Gateway
from .gateway_limits import GatewayLimits
from .webhooks.webhook import Webhook

ADDRESS = "127.0.0.1:8300"
EXTRA = ("hypercorn", "starlette")
NO_WEBHOOKS = (
    "webhooks are not supported in a cluster, because their cursors belong to one process: leave out notify= and --notify, and "
    "follow sessions with a client or GET /v1/events"
)


@async_block()
async def open_gateway(
    runtime: Runtime,
    *,
    bind: str | None = ADDRESS,
    tokens: Path | str | Iterable[AccessToken] | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    limits: GatewayLimits | None = None,
    tls: ssl.SSLContext | None = None,
    dashboard: bool = True,
    notify: Iterable[Webhook] = (),
    protocols: Iterable[ExternalProtocol] = (),
    datasets: Datasets | None = None,
) -> AsyncGenerator[Gateway, None]:
    """Open an `async with` block in which a gateway serves the agents of a runtime over HTTP.

    The runtime needs a journal, for example `memory:`. When the block exits, new requests are rejected, streams end with `bye`,
    and running requests have `limits.grace` seconds to finish. Turns continue, because they belong to the runtime.

    Args:
        runtime: Runtime with the agents.
        bind: Address to listen on, `HOST:PORT`; port 0 selects a free port. None does not listen: mount `gateway.app`.
        tokens: Path of a token file (`actgent token new`), or token entries. None creates the admin token `gateway.key`, which is
            allowed only on loopback.
        hosts: Additional allowed values of the `Host` header, such as `agents.example.com`, with or without a port.
        origins: Web sites whose pages may send requests, as values of the `Origin` header, such as `https://app.example.com`.
        limits: Limits of requests, streams and messages; None uses the defaults of `GatewayLimits`.
        tls: TLS context; None serves plain HTTP.
        dashboard: True to serve the dashboard at `/`. It needs a token like any other client.
        notify: Webhooks that receive notifications of replies, approvals, failures and ends of sessions, each at least once.
        protocols: HTTP protocols to serve in addition to the gateway's API, such as `actgent.interop.PROTOCOLS`. In a cluster,
            pass the same protocols at all nodes, because the node that owns a session answers its requests.
        datasets: Evaluation datasets that admins can read and extend, `actgent.evaluation.DatasetFolder(path)`; None for none.

    Raises:
        ConfigurationError: The runtime has no journal, tokens are missing for an address other than loopback, the address
            cannot be bound, or webhooks are configured in a cluster.
    """
    check_loop("open_gateway()")
    if not isinstance(runtime, Runtime):
        raise ConfigurationError(
            f"runtime must be a Runtime, not {runtime!r:.200}: open it with "
            "`async with open_runtime(journal='memory:') as runtime`, and await runtime.start(agent)"
        )
    notify = tuple(notify)
    if notify and runtime.journal is not None and runtime.journal.is_shared:
        raise ConfigurationError(NO_WEBHOOKS)
    protocols = _check_protocols(protocols)
    if datasets is not None and not isinstance(datasets, Datasets):
        raise ConfigurationError(f"datasets= must be a DatasetFolder(path) or None, not {datasets!r:.200}")
    check_extra()
    from .gateway_setup import opened_gateway  # noqa: PLC0415 - of the extra

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
        protocols=protocols,
        datasets=datasets,
    ) as gateway:
        yield gateway


def _check_protocols(protocols: object) -> tuple[ExternalProtocol, ...]:
    """Return the argument `protocols=` as a tuple. Raise `ConfigurationError` if it is not a list of protocol objects."""
    if isinstance(protocols, str) or not isinstance(protocols, Iterable):
        raise ConfigurationError(
            f"protocols= must be a list of protocols, such as [OpenAIProtocol()], not {protocols!r:.200}"
        )
    checked = tuple(protocols)
    for each in checked:
        if isinstance(each, type):
            raise ConfigurationError(
                f"protocols= must contain protocol objects, not the class {each.__name__}: write {each.__name__}()"
            )
        if not hasattr(each, "endpoints"):
            raise ConfigurationError(
                f"protocols= must contain protocols of actgent.interop, such as OpenAIProtocol(), not {each!r:.200}"
            )
    return checked


def check_extra() -> None:
    """Check that the libraries of the package extra `actgent[web]` are installed.

    Raises:
        ConfigurationError: Hypercorn or Starlette is not installed.
    """
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        raise ConfigurationError(f"a gateway needs {' and '.join(missing)}: pip install 'actgent[web]'")
