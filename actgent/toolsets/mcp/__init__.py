"""Tools of Model Context Protocol (MCP) servers."""

from .server_config_file import AllowedEnvironment, make_server, mcp_servers, read_server_entries
from .server_toolset import MCPServer
from .tool_lock_file import LOCK, ToolLock, prompt_digest, tool_digest

__all__ = [
    "LOCK",
    "AllowedEnvironment",
    "MCPServer",
    "ToolLock",
    "make_server",
    "mcp_servers",
    "prompt_digest",
    "read_server_entries",
    "tool_digest",
]
