from .http import MCPProtocol
from .server import make_mcp_server
from .stdio import serve_mcp

__all__ = ["MCPProtocol", "make_mcp_server", "serve_mcp"]
