"""Error of a call whose session the MCP server no longer knows.

The module imports nothing of the MCP SDK, because programs without the extra `mcp` import the declaration of servers.
"""

from actgent.errors import ToolError


class SessionExpired(ToolError):
    """The server no longer knows the session of a call, so the call did not run."""
