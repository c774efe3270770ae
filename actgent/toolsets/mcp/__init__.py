"""Tools of servers that speak the Model Context Protocol (MCP)."""

from .config import mcp_servers
from .server import MCPServer

__all__ = ["MCPServer", "mcp_servers"]
