from .agent_server import make_mcp_server
from .catalog import MCPCatalog, MCPPrompt, MCPResource, mcp_prompt, mcp_resource
from .client_questions import MCPCaller, mcp_caller
from .http_endpoint import MCPProtocol
from .stdio import serve_mcp

__all__ = [
    "MCPCaller",
    "MCPCatalog",
    "MCPPrompt",
    "MCPProtocol",
    "MCPResource",
    "make_mcp_server",
    "mcp_caller",
    "mcp_prompt",
    "mcp_resource",
    "serve_mcp",
]
