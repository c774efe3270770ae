"""Scripted provider on loopback, with faults and rate limits."""

from .provider_faults import (
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
from .provider_server import Chooser, Provider, ProviderFailed, ProviderStatistics, open_provider
from .rate_limits import RateLimits

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
