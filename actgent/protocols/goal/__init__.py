"""The protocol that works towards a goal, and calls it achieved only after an evaluation."""

from .decisions import CustomAction
from .progress import (
    WHOLE,
    Progress,
    Status,
    detect_action_loop,
    goal_view,
    progress_at_end,
    progress_in,
    results_of,
    turn_of,
)
from .protocol import Goal
from .references import References
from .tasks import (
    RUN_TASKS,
    TASKS_SCHEMA,
    PlannedTask,
    kept_tasks,
    read_tasks,
    tasks_in,
    tasks_reason,
    told_tasks,
)
from .wording import closing_words

__all__ = [
    "RUN_TASKS",
    "TASKS_SCHEMA",
    "WHOLE",
    "CustomAction",
    "Goal",
    "PlannedTask",
    "Progress",
    "References",
    "Status",
    "closing_words",
    "detect_action_loop",
    "goal_view",
    "kept_tasks",
    "progress_at_end",
    "progress_in",
    "read_tasks",
    "results_of",
    "tasks_in",
    "tasks_reason",
    "told_tasks",
    "turn_of",
]
