"""Agents and sessions in another process, by the words that they have in one's own: over HTTP, or over another transport."""

from .agent import RemoteAgent
from .channels import RemoteReader
from .connecting import Client, connect, open_client
from .insight import PastSession
from .session import RemoteSession
from .transport import ConnectionLost, Refused, RemoteRequest, StreamEvent, Transport

__all__ = [
    "Client",
    "ConnectionLost",
    "PastSession",
    "Refused",
    "RemoteAgent",
    "RemoteReader",
    "RemoteRequest",
    "RemoteSession",
    "StreamEvent",
    "Transport",
    "connect",
    "open_client",
]
