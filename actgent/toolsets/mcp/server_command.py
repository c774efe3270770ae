"""Command line of an MCP server."""

from collections.abc import Mapping, Sequence

import attrs

MAX_MESSAGE_BYTES = 10_000_000
"""Maximum size of a message; a server that sends a longer one is disconnected."""


@attrs.frozen(kw_only=True)
class ServerCommand:
    """Program of an MCP server and how to start it."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = attrs.field(factory=dict, repr=lambda env: str(sorted(env)))
    """Environment variables in addition to the few that a program needs. Other variables of this process are not passed on."""
    cwd: str | None = None
    """Working directory; None for that of this process."""
    max_message: int = MAX_MESSAGE_BYTES
    """Maximum size of a message in bytes."""
