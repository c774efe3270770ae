from actgent.web.gateway_interface import OutsideProtocol

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
    "MCPProtocol",
    "OpenAIProtocol",
    "OutsideProtocol",
    "VercelProtocol",
    "serve_acp",
]

PROTOCOLS: tuple[OutsideProtocol, ...]
