"""Options of `actgent serve`, `acp` and `mcp serve`, and of the commands for clusters."""

import os
from collections.abc import Iterator
from typing import Annotated, Any

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from actgent.cli.command_options import Argument, Count, Flag, Repeated
from actgent.errors import ConfigurationError

from .server_log import LogFormat, LogLevel

Seconds = Annotated[float, Parameter(validator=Number(gte=0))]
Rate = Annotated[float | None, Parameter(validator=Number(gt=0))]
JOURNAL_VARIABLE = "ACTGENT_JOURNAL"
"""Environment variable with the journal URL."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ClusterOptions:
    """Command-line options that select a cluster."""

    journal: str | None = None
    """Journal of the cluster: postgres://HOST/DATABASE. Default: the variable ACTGENT_JOURNAL, which process lists do not show.
    """
    cluster: str = "default"
    """Name of the cluster."""

    def journal_url(self) -> str:
        """Return the URL of the cluster's journal from the option or the environment variable.

        Raises:
            ConfigurationError: Neither the option nor the variable is set.
        """
        found = self.journal or os.environ.get(JOURNAL_VARIABLE)
        if not found:
            raise ConfigurationError(
                f"the journal of the cluster is not set: use --journal or the variable {JOURNAL_VARIABLE}"
            )
        return found


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class OperationOptions:
    """Options for operators of a server: log, startup, shutdown, and limits per token."""

    offline: Flag = False
    """Answer from a script instead of the models of agent folders. Needs no API key."""
    log_format: LogFormat = "text"
    """Log format on standard error: text, or json with one object per line."""
    log_level: LogLevel = "info"
    """Lowest logged level. info logs each request; debug also logs probes and metrics requests."""
    grace: Seconds = 25.0
    """Time in seconds that running turns get to finish after the first signal. Other turns resume at the next start."""
    wait_for_journal: Seconds = 60.0
    """Time in seconds to wait for an unreachable PostgreSQL server at startup; 0 fails immediately."""
    index: Flag = False
    """Keep a search index and statistics next to the journal, for the pages Search and Trends. Not in a cluster."""
    datasets: str | None = None
    """Folder with evaluation datasets, which admins read over HTTP. They can add sessions as cases."""
    telemetry: Flag = False
    """Export OpenTelemetry traces and metrics, configured by the OTEL_* variables. Needs the extra otlp."""
    streams: Count | None = None
    """Maximum number of open streams per token. Default: 1000."""
    rate: Rate = None
    """Maximum number of requests per second per token. Default: 20."""
    burst: Count | None = None
    """Maximum number of requests that one token may send at once after a pause. Default: 100."""

    def limits(self) -> dict[str, Any]:
        """Return the gateway limits that the options set, by name in `GatewayLimits`. Options without a value are left out."""
        limits = {name: getattr(self, name) for name in ("streams", "rate", "burst")}
        return {name: value for name, value in limits.items() if value is not None}


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class NotifyOptions:
    """Options of `actgent serve` for webhooks."""

    notify: Repeated = ()
    """Webhook URL that is notified of replies, approvals, failures and closed sessions; may be given several times."""
    notify_sessions: Flag = False
    """Also send to webhook URLs that clients set for their sessions."""
    notify_events: Repeated = ()
    """Send only these events: reply, approval, failed, closed; may be given several times."""
    notify_allow: Repeated = ()
    """Private HOST[:PORT][/PATH] or network to which --notify URLs may lead; may be given several times."""
    notify_sessions_allow: Repeated = ()
    """Private HOST[:PORT][/PATH] or network to which clients' webhook URLs may lead; may be given several times."""
    notify_secrets: str | None = None
    """File with the secrets that sign webhook requests, one per line, newest first; created if missing."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ServeOptions:
    """Options of `actgent serve`."""

    target: Argument = ""
    """Agent folder, folder of agent folders, or Python file."""
    journal: str | None = None
    """Journal file, or postgres://HOST/DATABASE. Default: the variable ACTGENT_JOURNAL for a cluster node; else sessions
    are lost when the process ends.
    """
    bind: str = "127.0.0.1:8300"
    """Listening address as HOST:PORT. An address other than loopback requires --tokens."""
    tokens: str | None = None
    """Token file, as `actgent token new` writes it. Default: one new token, printed at the start."""
    origin: Repeated = ()
    """Website that may send cross-origin requests, e.g. https://app.example.com; may be given several times."""
    host: Repeated = ()
    """Additional allowed value of the `Host` header; may be given several times."""
    tls_cert: str | None = None
    """TLS certificate file, if no proxy terminates TLS."""
    tls_key: str | None = None
    """Private key file of the certificate."""
    notify: NotifyOptions = attrs.field(factory=NotifyOptions)
    """Webhook options."""
    operation: OperationOptions = attrs.field(factory=OperationOptions)
    """Options for log, startup, shutdown and rate limits."""
    cluster: str | None = None
    """Name of the cluster; all nodes with this name and journal share their sessions."""
    advertise: str | None = None
    """URL at which other nodes reach this node, http://HOST:PORT; the port must differ from --bind. Default: reachable
    only by nodes on this machine.
    """
    node: str | None = None
    """Prefix of the node's name. Default: the host name."""
    protocols: str | None = None
    """Interoperability protocols to serve, separated by commas: openai, ag-ui, vercel, a2a, mcp; or none. Default: all."""

    @property
    def cluster_options(self) -> ClusterOptions | None:
        """Journal and name of the cluster; None if the server is no cluster node."""
        return None if self.cluster is None else ClusterOptions(journal=self.journal, cluster=self.cluster)

    def to_arguments(self) -> list[str]:
        """Return the options as command-line words, for the child process of `--reload`."""
        return ["serve", self.target, *to_arguments(attrs.evolve(self, target=""))]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ACPOptions:
    """Options of `actgent acp`."""

    target: Argument = ""
    """Agent folder, Python file or `FILE.py:NAME`."""
    journal: str | None = None
    """Journal file, or postgres://HOST/DATABASE. Default: a file in the user's data folder for each agent and working
    directory.
    """
    offline: Flag = False
    """Answer from a script instead of a model."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class MCPServeOptions:
    """Options of `actgent mcp serve`."""

    target: Argument = ""
    """Agent folder, folder of agent folders, or Python file."""
    journal: str | None = None
    """Journal file, or postgres://HOST/DATABASE. Default: sessions are lost when the process ends."""
    tools: Flag = False
    """Serve the agents' tools in addition to the agents."""
    offline: Flag = False
    """Answer from a script instead of a model; only for folders."""


def to_arguments(options: Any) -> Iterator[str]:
    """Convert an object of options to command-line words. Options with their default value are left out.

    Args:
        options: An attrs object whose fields are options: booleans, texts, numbers, tuples of texts, or groups of options.
    """
    for field in attrs.fields(type(options)):
        name, value = f"--{field.name.replace('_', '-')}", getattr(options, field.name)
        if attrs.has(type(value)):
            yield from to_arguments(value)
        elif value is True:
            yield name
        elif value != field.default:
            for each in value if isinstance(value, tuple) else [value]:
                yield from (name, str(each))
