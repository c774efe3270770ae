"""Agents on trio in a thread of their own, for asyncio, notebooks, threads and synchronous code."""

from .blocking import Portal, PortalAgent, PortalSession
from .cooperative import AsyncPortal, AsyncPortalAgent, AsyncPortalSession
from .opening import PortalBlock, open_portal
from .streams import AsyncPortalStream, PortalStream

__all__ = [
    "AsyncPortal",
    "AsyncPortalAgent",
    "AsyncPortalSession",
    "AsyncPortalStream",
    "Portal",
    "PortalAgent",
    "PortalBlock",
    "PortalSession",
    "PortalStream",
    "open_portal",
]
