"""The protocol in three stages: plan, execute a todo list item by item, and say what came of it."""

from .protocol import CONFIG, ROLES, STATE, Planning, plan_of
from .todo import Plan, Status, TodoDiff, TodoItem, change_text, clipped, status_mark, todo_text

__all__ = [
    "CONFIG",
    "ROLES",
    "STATE",
    "Plan",
    "Planning",
    "Status",
    "TodoDiff",
    "TodoItem",
    "change_text",
    "clipped",
    "plan_of",
    "status_mark",
    "todo_text",
]
