"""The `plan` protocol in three stages: plan, execute the todo list item by item, and answer with the results."""

from .plan_protocol import CONFIG, ROLES, STATE, Planning, plan_of
from .todo_list import Plan, Status, TodoDiff, TodoItem, change_text, shorten_to_line, status_mark, todo_text

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
    "plan_of",
    "shorten_to_line",
    "status_mark",
    "todo_text",
]
