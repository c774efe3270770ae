"""ACP, the Agent Client Protocol: editors and other clients start an agent and talk to it over standard input and output."""

from .server import ACPServer, serve_acp

__all__ = ["ACPServer", "serve_acp"]
