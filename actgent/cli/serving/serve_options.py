"""Option groups of `actgent serve`: webhooks, log, shutdown and rate limits."""

from collections.abc import Iterator
from typing import Annotated, Any

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from actgent.cli.command_options import Count, Flag, Repeated

from .server_log import LogFormat, LogLevel

Seconds = Annotated[float, Parameter(validator=Number(gte=0))]
Rate = Annotated[float | None, Parameter(validator=Number(gt=0))]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class OperationOptions:
    """Options for operators: log, startup, shutdown, and limits per token."""

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
    """Maximum requests per second per token. Default: 20."""
    burst: Count | None = None
    """Requests that one token may send at once above its rate. Default: 100."""

    def limits(self) -> dict[str, Any]:
        """Return the gateway limits that the options set, by their names in `GatewayLimits`.

        Options without a value are left out.
        """
        limits = {name: getattr(self, name) for name in ("streams", "rate", "burst")}
        return {name: value for name, value in limits.items() if value is not None}


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class NotifyOptions:
    """Options for webhooks."""

    notify: Repeated = ()
    """Webhook URL that receives replies, approvals, failures and closed sessions; may be given several times."""
    notify_sessions: Flag = False
    """Also send to webhook URLs that clients set for their sessions."""
    notify_events: Repeated = ()
    """Send only these events: reply, approval, failed, closed; may be given several times."""
    notify_allow: Repeated = ()
    """Private HOST[:PORT][/PATH] or network that --notify URLs may use; may be given several times."""
    notify_sessions_allow: Repeated = ()
    """Private HOST[:PORT][/PATH] or network that clients' webhook URLs may use; may be given several times."""
    notify_secrets: str | None = None
    """File with the secrets that sign webhook requests, one per line, newest first; created if missing."""


def to_arguments(options: Any) -> Iterator[str]:
    """Return the options that differ from their defaults as command-line words.

    Args:
        options: An attrs object whose fields are options: booleans, texts, numbers or tuples of texts.
    """
    for field in attrs.fields(type(options)):
        name, value = f"--{field.name.replace('_', '-')}", getattr(options, field.name)
        if value == field.default:
            continue
        if value is True:
            yield name
            continue
        for each in value if isinstance(value, tuple) else [value]:
            yield from (name, str(each))
