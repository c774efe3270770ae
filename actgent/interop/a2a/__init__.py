"""A2A 1.0: agents of other products talk to the agents of a gateway, over JSON-RPC or HTTP+JSON."""

from .endpoints import A2AProtocol

__all__ = ["A2AProtocol"]
