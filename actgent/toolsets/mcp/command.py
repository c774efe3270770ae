"""What is started as an MCP server."""

from collections.abc import Mapping, Sequence

import attrs

MAX_MESSAGE = 10_000_000
"""Bytes of the longest message; a server that sends a longer one is disconnected."""


@attrs.frozen(kw_only=True)
class ServerCommand:
    """A program, and how it is started."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = attrs.field(factory=dict, repr=lambda env: str(sorted(env)))
    """Beside the few variables that a program needs to start; all others of this process stay here."""
    cwd: str | None = None
    max_message: int = MAX_MESSAGE
