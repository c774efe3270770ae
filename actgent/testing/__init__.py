"""What users test their agents with: scripted models, a provider on loopback, checks for leaks and transcripts."""

from actgent.llm.scripted import ScriptedLLM

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
    "ScriptedLLM",
    "Silence",
    "Slow",
    "assert_no_leaks",
    "assert_valid_transcript",
    "check_transcript",
    "open_provider",
    "refused_url",
]
