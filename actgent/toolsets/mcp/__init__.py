"""Tools of Model Context Protocol (MCP) servers."""

from .server_config_file import AllowedEnvironment, listed_servers, make_server, mcp_servers
from .server_toolset import MCPServer
from .tool_lock_file import LOCK, ToolLock, prompt_digest, tool_digest

__all__ = [
    "LOCK",
    "AllowedEnvironment",
    "MCPServer",
    "ToolLock",
    "listed_servers",
    "make_server",
    "mcp_servers",
    "prompt_digest",
    "tool_digest",
]
