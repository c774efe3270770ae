"""Protocols by which clients of other products talk to agents: OpenAI, AG-UI, Vercel UI message stream, A2A, ACP, MCP.

Each name is loaded when it is first used: the protocols over HTTP need the extra `web`, MCP needs `mcp`, and ACP neither.

async with open_gateway(runtime, protocols=[OpenAIProtocol(), AGUIProtocol(), VercelProtocol()]):
    ...
"""

import importlib.util
from typing import Any

# Type checkers read the same names in `__init__.pyi`.
_MODULES = {
    "A2AProtocol": ".a2a",
    "ACPServer": ".acp",
    "AGUIProtocol": ".ag_ui",
    "MCPProtocol": ".mcp",
    "OpenAIProtocol": ".openai",
    "ExternalProtocol": "actgent.web.gateway_interface",
    "VercelProtocol": ".vercel",
    "serve_acp": ".acp",
}
_HTTP = ("OpenAIProtocol", "AGUIProtocol", "VercelProtocol", "A2AProtocol")

__all__ = sorted([*_MODULES, "PROTOCOLS"])  # noqa: PLE0605 - a list, as it should be


def __getattr__(name: str) -> Any:
    if name == "PROTOCOLS":
        has_mcp = importlib.util.find_spec("mcp") is not None
        names = (*_HTTP, "MCPProtocol") if has_mcp else _HTTP
        value: Any = tuple(__getattr__(each)() for each in names)
    elif (module := _MODULES.get(name)) is not None:
        value = getattr(importlib.import_module(module, __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
