"""Tasks: a plan whose steps are tool calls, with ids, retries, and references to results of earlier tasks.

A task is `{"description", "tool", "args"}` with an optional `id` and `max_retries`. The session's state stores the tasks
of all plans of a goal, so that the next plan can refer to their results and knows which tasks failed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from actgent.errors import ParseError
from actgent.messages import ToolResult
from actgent.support.serializable import Serializable
from actgent.support.strict_json import loads

RUN_TASKS = "run_tasks"
"""Name of the tool that executes tasks."""
MAX_PLANS = 5
"""Maximum number of task plans for one goal."""
MAX_RETRIES = 3
"""Default number of retries of a failed task."""
MAX_TASKS = 50
"""Maximum number of tasks in one plan."""
MAX_RESULT_CHARS = 4_000
"""Maximum length of a task's result that the model reads; references resolve to the full result."""
STATE_KEY = "_tasks"
"""Key of the tasks in the session's state."""
_MAX_FAILURE_CHARS = 300

TaskStatus = Literal["pending", "completed", "failed"]

TASKS_FORM = (
    'plan, params {"tasks": [{"description": "<what to do>", "tool": "<name>", "args": {...}}, "..."], "strategy": "<why this '
    'way>"}: the tasks are carried out at once, in their order; args may refer to what came of earlier ones, as in '
    '"{{tasks.0.output.results.0.url}}" (tasks are counted from 0, over all plans)'
)
TASKS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "tasks": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_TASKS,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "minLength": 1, "maxLength": 64},
                    "description": {"type": "string", "minLength": 1},
                    "tool": {"type": "string"},
                    "args": {"type": "object"},
                    "max_retries": {"type": "integer", "minimum": 0, "maximum": 10},
                },
                "required": ["description"],
            },
        }
    },
    "required": ["tasks"],
    "additionalProperties": False,
}


@attrs.frozen(kw_only=True)
class PlannedTask(Serializable):
    """A task of a plan, with the state of its execution."""

    id: str
    """Id from the plan; by default `task_1`, `task_2` ..., counted over all plans of a goal."""
    description: str
    """Description of the work that the task does."""
    tool_name: str = ""
    """Name of the tool; empty if the model does the work in its next decisions."""
    tool_args: Mapping[str, Any] = attrs.field(factory=dict)
    """Arguments of the tool as written in the plan, with unresolved references."""
    cycle: int = 1
    """Number of the plan within the goal, from 1."""
    status: TaskStatus = "pending"
    """Status of the task; `pending` means not attempted, because the task has no tool or refers to a pending task."""
    attempts: int = 0
    """Number of calls of the task's tool so far."""
    max_retries: int = MAX_RETRIES
    """Maximum number of retries of the tool call."""
    failure_reason: str | None = None
    """Reason why the task failed or was not attempted; None if it was completed."""
    result: Any = None
    """Result of the tool call; None if the task is not completed."""

    @property
    def retry_count(self) -> int:
        """Number of retries of the tool call so far."""
        return max(0, self.attempts - 1)


# --- parsing ---------------------------------------------------------------------------


def tasks_reason(written: Any) -> str | None:
    """Return an error text if the tasks that a model wrote are not a valid list of tasks, else None."""
    if not isinstance(written, list) or not written or len(written) > MAX_TASKS:
        return f"tasks must be a list of 1 to {MAX_TASKS} tasks"
    for task in written:
        if (
            not isinstance(task, dict)
            or not isinstance(task.get("description"), str)
            or not task["description"].strip()
        ):
            return "each task must be an object with a description"
        if not isinstance(task.get("tool") or "", str) or not isinstance(task.get("args") or {}, dict):
            return (
                f"the task {task['description'][:80]!r} must have its tool as text, and its args as an object"
            )
    ids = [task["id"] for task in written if "id" in task]
    if any(not isinstance(each, str) or not each or ids.count(each) > 1 for each in ids):
        return "the id of a task must be a text, and no two tasks may have the same id"
    return None


def tasks_to_arguments(written: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert the tasks that a model wrote to arguments of `run_tasks`: known keys only."""
    known = ("id", "description", "tool", "args", "max_retries")
    return [{name: task[name] for name in known if task.get(name) is not None} for task in written]


def read_tasks(written: Sequence[Mapping[str, Any]], before: Sequence[PlannedTask]) -> list[PlannedTask]:
    """Convert the tasks that a model wrote to `PlannedTask` objects of a new plan.

    Tasks without an id are numbered after the tasks of earlier plans (`before`).
    """
    cycle = 1 + max((task.cycle for task in before), default=0)
    return [
        PlannedTask(
            id=task.get("id") or f"task_{number}",
            description=task["description"],
            tool_name=task.get("tool") or "",
            tool_args=task.get("args") or {},
            max_retries=task.get("max_retries", MAX_RETRIES),
            cycle=cycle,
        )
        for number, task in enumerate(written, len(before) + 1)
    ]


# --- state and texts ---------------------------------------------------------------------


def tasks_in(state: Mapping[str, Any], turn: str) -> list[PlannedTask]:
    """Return the tasks of all plans of a goal from a session's state; empty if the state has the tasks of another turn."""
    stored = state.get(STATE_KEY)
    return [PlannedTask(**task) for task in stored["tasks"]] if stored and stored["turn"] == turn else []


def tasks_change(turn: str, tasks: Sequence[PlannedTask]) -> tuple[str, Mapping[str, Any]]:
    """Return the state change `(key, value)` that stores the tasks of a goal. `turn` is the id of the goal's turn."""
    return STATE_KEY, {"turn": turn, "tasks": [attrs.asdict(task) for task in tasks]}


def tasks_for_model(tasks: Sequence[PlannedTask], first: int) -> Mapping[str, Any]:
    """Convert the tasks of a plan to JSON data for the model: those from the index `first` on."""
    return {"tasks": [_task_for_model(task, index) for index, task in enumerate(tasks, first)]}


def _task_for_model(task: PlannedTask, index: int) -> Mapping[str, Any]:
    data: dict[str, Any] = {
        "place": f"tasks.{index}",
        "id": task.id,
        "description": task.description,
        "tool": task.tool_name,
    }
    data |= {"status": task.status, "attempts": task.attempts}
    if task.failure_reason:
        data["failure_reason"] = task.failure_reason
    if task.status == "completed":
        data["output"] = _shorten(task.result)
    return data


def _shorten(value: Any) -> Any:
    text = json.dumps(value)
    return (
        value
        if len(text) <= MAX_RESULT_CHARS
        else f"{text[:MAX_RESULT_CHARS]}[cut: the first of {len(text)} characters]"
    )


def tasks_in_result(result: ToolResult) -> Sequence[Mapping[str, Any]]:
    """Parse the tasks in a result of the tool `run_tasks`; empty if the result cannot be parsed."""
    try:
        content = loads(result.content)
    except ParseError:
        return ()
    tasks = content.get("tasks") if isinstance(content, dict) else None
    return [each for each in tasks if isinstance(each, dict)] if isinstance(tasks, list) else ()


def failure_lines(tasks: Sequence[PlannedTask]) -> list[str]:
    """Return lines for the next plan about the tasks of the last plan that failed or were not attempted."""
    last = max((task.cycle for task in tasks), default=0)
    left = [task for task in tasks if task.cycle == last and task.status != "completed"]
    lines = [
        f"- {task.description}: {(task.failure_reason or task.status)[:_MAX_FAILURE_CHARS]}" for task in left
    ]
    return ["FAILED TASKS:", *lines] if lines else []
