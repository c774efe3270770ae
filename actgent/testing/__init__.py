"""Tools for testing agents: a scripted provider, recorded sessions, fault injection, and checks for leaks and transcripts."""

from actgent.llm.scripted_model import ScriptedLLM

from .journal_faults import CrashingJournal, FaultyJournal
from .leak_detection import assert_no_leaks
from .linearizability import ClientOperation, NotLinearizable, find_linearization, message_log
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
from .provider_apis import ProviderRequest
from .recorded_sessions import Difference, Recording, assert_replays, load_recording
from .session_history_consistency import ClientCall, find_contradictions, load_client_calls
from .transcript_validation import assert_valid_transcript, check_transcript
from .wrongly_trusted_tool_detection import find_leaks

__all__ = [
    "ClientCall",
    "ClientOperation",
    "CrashingJournal",
    "CutStream",
    "Difference",
    "EarlyEnd",
    "ErrorEvent",
    "ErrorStatus",
    "Fault",
    "FaultyJournal",
    "Hangup",
    "NotLinearizable",
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
    "find_contradictions",
    "find_leaks",
    "find_linearization",
    "load_client_calls",
    "load_recording",
    "message_log",
    "open_provider",
    "refused_url",
]
