"""Effects of changed agent code on recorded sessions: preview of a restart, replay, and inspection of model requests."""

from .replay_diff import Difference
from .replayer import Recording, compare_session
from .request_inspector import ShownRequest, show_next_request, show_request
from .restart_preview import RestartPreview, preview_restart

__all__ = [
    "Difference",
    "Recording",
    "RestartPreview",
    "ShownRequest",
    "compare_session",
    "preview_restart",
    "show_next_request",
    "show_request",
]
