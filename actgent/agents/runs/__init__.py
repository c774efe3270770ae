"""What is said to an agent by those who wait for what comes of it."""

from .answers import answer_to, resume
from .call_options import RunDefaults
from .elsewhere import (
    SessionView,
    agent_elsewhere,
    moved_of,
    outcome_elsewhere,
    run_elsewhere,
    stream_elsewhere,
    typed,
    view_session,
)
from .enhancing import Enhanced, enhance
from .question import Question
from .streams import STREAM_CAPACITY, read_along, read_suspended

__all__ = [
    "STREAM_CAPACITY",
    "Enhanced",
    "Question",
    "RunDefaults",
    "SessionView",
    "agent_elsewhere",
    "answer_to",
    "enhance",
    "moved_of",
    "outcome_elsewhere",
    "read_along",
    "read_suspended",
    "resume",
    "run_elsewhere",
    "stream_elsewhere",
    "typed",
    "view_session",
]
