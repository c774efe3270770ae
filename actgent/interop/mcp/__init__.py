"""MCP server that offers agents, tools, prompts and resources to hosts and agents of other products."""

import importlib
from typing import Any

# Type checkers read the same names in `__init__.pyi`. `MCPProtocol` is loaded without the SDK, which takes half a second.
_MODULES = {
    "MCPCaller": ".client_questions",
    "MCPCatalog": ".catalog",
    "MCPPrompt": ".catalog",
    "MCPProtocol": ".http_endpoint",
    "MCPResource": ".catalog",
    "make_mcp_server": ".agent_server",
    "mcp_caller": ".client_questions",
    "mcp_prompt": ".catalog",
    "mcp_resource": ".catalog",
    "serve_mcp": ".stdio",
}

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


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module, __name__), name)
    return value
