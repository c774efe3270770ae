"""Agents on trio in a thread of their own, for asyncio, notebooks, threads and synchronous code."""

from .blocking import Portal, PortalAgent, PortalSession, PortalStream
from .cooperative import AsyncPortal, AsyncPortalAgent, AsyncPortalSession, AsyncPortalStream
from .opening import PortalBlock, open_portal

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
