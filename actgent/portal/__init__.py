"""Agents on trio in a thread of their own, for asyncio, notebooks, threads and synchronous code."""

from .blocking import Portal, PortalAgent, PortalSession
from .cooperative import AsyncPortal, AsyncPortalAgent, AsyncPortalSession
from .opening import PortalBlock, open_portal
from .remote_blocking import PortalClient, PortalRemoteAgent, PortalRemoteSession
from .remote_cooperative import AsyncPortalClient, AsyncPortalRemoteAgent, AsyncPortalRemoteSession
from .streams import AsyncPortalStream, PortalStream

__all__ = [
    "AsyncPortal",
    "AsyncPortalAgent",
    "AsyncPortalClient",
    "AsyncPortalRemoteAgent",
    "AsyncPortalRemoteSession",
    "AsyncPortalSession",
    "AsyncPortalStream",
    "Portal",
    "PortalAgent",
    "PortalBlock",
    "PortalClient",
    "PortalRemoteAgent",
    "PortalRemoteSession",
    "PortalSession",
    "PortalStream",
    "open_portal",
]
