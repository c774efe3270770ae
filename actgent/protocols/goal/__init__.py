"""The protocol that works towards a goal, and calls it achieved only after an evaluation."""

from .decisions import CustomAction
from .progress import Progress, Status, absorb, goal_view, progress_in, results_of
from .protocol import Goal
from .wording import closing_words

__all__ = [
    "CustomAction",
    "Goal",
    "Progress",
    "Status",
    "absorb",
    "closing_words",
    "goal_view",
    "progress_in",
    "results_of",
]
