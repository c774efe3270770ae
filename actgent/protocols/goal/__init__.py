"""The `goal` protocol: work towards a goal in a loop, until an evaluation finds it achieved."""

from .decision_parsing import CustomAction
from .goal_progress import (
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
from .goal_protocol import Goal
from .prompt_texts import closing_text
from .task_plan import (
    RUN_TASKS,
    TASKS_SCHEMA,
    PlannedTask,
    read_tasks,
    tasks_change,
    tasks_for_model,
    tasks_in,
    tasks_reason,
)
from .task_references import References

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
    "closing_text",
    "detect_action_loop",
    "goal_view",
    "progress_at_end",
    "progress_in",
    "read_tasks",
    "results_of",
    "tasks_change",
    "tasks_for_model",
    "tasks_in",
    "tasks_reason",
    "turn_of",
]
