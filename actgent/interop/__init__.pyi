from actgent.web.gateway_interface import ExternalProtocol

from .a2a import A2AProtocol
from .acp import ACPServer, serve_acp
from .ag_ui import AGUIProtocol
from .mcp import MCPProtocol
from .openai import OpenAIProtocol
from .vercel import VercelProtocol

__all__ = [
    "PROTOCOLS",
    "A2AProtocol",
    "ACPServer",
    "AGUIProtocol",
    "ExternalProtocol",
    "MCPProtocol",
    "OpenAIProtocol",
    "VercelProtocol",
    "serve_acp",
]

PROTOCOLS: tuple[ExternalProtocol, ...]
