"""What users test their agents with: scripted models, a provider on loopback, recorded sessions, checks."""

from actgent.llm.scripted import ScriptedLLM

from .dialects import ProviderRequest
from .dying import DyingJournal
from .faulty import FaultyJournal
from .leaks import assert_no_leaks
from .provider import (
    CutStream,
    EarlyEnd,
    ErrorEvent,
    ErrorStatus,
    Fault,
    Hangup,
    Provider,
    ProviderFailed,
    ProviderStatistics,
    RateLimits,
    RawAnswer,
    Silence,
    Slow,
    open_provider,
    refused_url,
)
from .recorded import Difference, Recording, assert_replays, load_recording
from .transcripts import assert_valid_transcript, check_transcript

__all__ = [
    "CutStream",
    "Difference",
    "DyingJournal",
    "EarlyEnd",
    "ErrorEvent",
    "ErrorStatus",
    "Fault",
    "FaultyJournal",
    "Hangup",
    "Provider",
    "ProviderFailed",
    "ProviderRequest",
    "ProviderStatistics",
    "RateLimits",
    "RawAnswer",
    "Recording",
    "ScriptedLLM",
    "Silence",
    "Slow",
    "assert_no_leaks",
    "assert_replays",
    "assert_valid_transcript",
    "check_transcript",
    "load_recording",
    "open_provider",
    "refused_url",
]
