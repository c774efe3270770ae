"""Scripted provider on loopback, with faults and rate limits."""

from .faults import (
    CutStream,
    EarlyEnd,
    ErrorEvent,
    ErrorStatus,
    Fault,
    Hangup,
    RawAnswer,
    Scripted,
    Silence,
    Slow,
    refused_url,
)
from .rate_limits import RateLimits
from .server import Chooser, Provider, ProviderFailed, ProviderStatistics, open_provider

__all__ = [
    "Chooser",
    "CutStream",
    "EarlyEnd",
    "ErrorEvent",
    "ErrorStatus",
    "Fault",
    "Hangup",
    "Provider",
    "ProviderFailed",
    "ProviderStatistics",
    "RateLimits",
    "RawAnswer",
    "Scripted",
    "Silence",
    "Slow",
    "open_provider",
    "refused_url",
]
