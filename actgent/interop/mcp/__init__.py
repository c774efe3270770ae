"""Agents as tools of an MCP server, for hosts and agents of other products."""

import importlib
from typing import Any

# Type checkers read the same names in `__init__.pyi`. `MCPProtocol` is loaded without the SDK, which takes half a second.
_MODULES = {"MCPProtocol": ".http", "make_mcp_server": ".server", "serve_mcp": ".stdio"}

__all__ = ["MCPProtocol", "make_mcp_server", "serve_mcp"]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module, __name__), name)
    return value
