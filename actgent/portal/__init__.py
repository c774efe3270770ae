"""Portals: run agents on trio in a background thread, for asyncio, notebooks, threads and synchronous code."""

from .asyncio_client import AsyncPortalClient, AsyncPortalRemoteAgent, AsyncPortalRemoteSession
from .asyncio_portal import AsyncPortal, AsyncPortalAgent, AsyncPortalSession
from .portal_context_manager import PortalBlock, open_portal
from .portal_streams import AsyncPortalStream, PortalStream
from .sync_client import PortalClient, PortalRemoteAgent, PortalRemoteSession
from .sync_portal import Portal, PortalAgent, PortalSession

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
