"""Replay of recorded sessions with the present code: restart preview, comparison, forks, and inspection of model requests."""

from .recorded_decisions import AnswerReading, RecordedDecision, SessionDecisions, call_key, find_decisions
from .replay_diff import Difference
from .request_inspector import ShownRequest, show_next_request, show_request
from .restart_effects_preview import RestartPreview, preview_restart
from .session_replayer import Recording, compare_session, models_of
from .what_if_forks import ForkEnd, follow_fork

__all__ = [
    "AnswerReading",
    "Difference",
    "ForkEnd",
    "RecordedDecision",
    "Recording",
    "RestartPreview",
    "SessionDecisions",
    "ShownRequest",
    "call_key",
    "compare_session",
    "find_decisions",
    "follow_fork",
    "models_of",
    "preview_restart",
    "show_next_request",
    "show_request",
]
