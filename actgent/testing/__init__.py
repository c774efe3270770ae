"""What users test their agents with: a provider on loopback with faults, checks for leaks and for valid transcripts."""

from .exchange import ProviderRequest
from .faults import (
    CutStream,
    EarlyEnd,
    ErrorEvent,
    ErrorStatus,
    Fault,
    Hangup,
    RawAnswer,
    Silence,
    Slow,
    refused_url,
)
from .leaks import assert_no_leaks
from .provider import Provider, ProviderFailed, ProviderStatistics, open_provider
from .transcripts import assert_valid_transcript, check_transcript

__all__ = [
    "CutStream",
    "EarlyEnd",
    "ErrorEvent",
    "ErrorStatus",
    "Fault",
    "Hangup",
    "Provider",
    "ProviderFailed",
    "ProviderRequest",
    "ProviderStatistics",
    "RawAnswer",
    "Silence",
    "Slow",
    "assert_no_leaks",
    "assert_valid_transcript",
    "check_transcript",
    "open_provider",
    "refused_url",
]
