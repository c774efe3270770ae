"""The protocol that works towards a goal, and calls it achieved only after an evaluation."""

from .decisions import CustomAction
from .progress import Progress, Status, absorb, progress_in, results_of
from .protocol import Goal, words_of

__all__ = ["CustomAction", "Goal", "Progress", "Status", "absorb", "progress_in", "results_of", "words_of"]
