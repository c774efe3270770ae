"""Options of `actgent serve` for operators: its log, its start, its end and its limits."""

from collections.abc import Iterator
from typing import Annotated, Any

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from .server_log import LogFormat, LogLevel

Seconds = Annotated[float, Parameter(validator=Number(gte=0))]
Count = Annotated[int | None, Parameter(validator=Number(gte=1))]
Rate = Annotated[float | None, Parameter(validator=Number(gt=0))]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class OperationOptions:
    """How a server answers, logs, starts and ends, and how much one token may use."""

    offline: Annotated[bool, Parameter(negative=(), show_default=False)] = False
    """Have a script answer instead of the models of agents' folders; needs no key."""
    log_format: LogFormat = "text"
    """Form of the log on standard error: text, or json with one object a line."""
    log_level: LogLevel = "info"
    """Lowest level of the log. info has a line for each request, debug also for probes and metrics."""
    grace: Seconds = 25.0
    """Seconds after the first signal in which running turns may end. The other turns resume at the next start."""
    wait_for_journal: Seconds = 60.0
    """Seconds to wait at the start for a PostgreSQL server that cannot be reached; 0 fails at once."""
    streams: Count = None
    """Streams that one token may have open at a time; 1,000 if not given."""
    rate: Rate = None
    """Requests a second of one token; 20 if not given."""
    burst: Count = None
    """Requests that one token may send at once, above its rate; 100 if not given."""

    def limits(self) -> dict[str, Any]:
        """Return the limits that were given, by their names in `GatewayLimits`."""
        given = {name: getattr(self, name) for name in ("streams", "rate", "burst")}
        return {name: value for name, value in given.items() if value is not None}


def arguments_of(options: Any) -> Iterator[str]:
    """Return options that differ from their defaults, as arguments of a command line.

    Args:
        options: An attrs object whose fields are options: flags, texts, numbers or tuples of texts.
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
