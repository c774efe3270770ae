"""Client for agents and sessions in another process, with the API of local ones, over HTTP or another transport."""

from .agent_server_client import Client, connect, open_client
from .remote_agent import RemoteAgent
from .remote_memory import RemoteLongTermMemory
from .remote_session import RemoteSession
from .remote_stream_reader import RemoteReader
from .session_operations import PastSession
from .transport_interface import ConnectionLost, Refused, RemoteRequest, StreamEvent, Transport

__all__ = [
    "Client",
    "ConnectionLost",
    "PastSession",
    "Refused",
    "RemoteAgent",
    "RemoteLongTermMemory",
    "RemoteReader",
    "RemoteRequest",
    "RemoteSession",
    "StreamEvent",
    "Transport",
    "connect",
    "open_client",
]
