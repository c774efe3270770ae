"""Tasks: a plan whose steps are tool calls, with ids, retries, and references to results of earlier tasks.

A task is `{"description", "tool", "args"}` with an optional `id` and `max_retries`. The session's state stores the tasks
of all plans of a goal. So the next plan can refer to the results of earlier tasks, and shows which tasks failed.

A reference to a result of an earlier task is `{{tasks.0.output.results.0.url}}` or `{{task_1.output}}`. A reference that is the
whole text keeps the type of its value: a list stays a list. Within other text it becomes text. A reference without a target
stays unchanged.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from actgent.errors import ParseError
from actgent.messages import ToolResult
from actgent.support.dict_serialization import Serializable
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
        """Number of times that the tool call of this task was repeated so far."""
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


_REFERENCE = re.compile(
    r"\{\{\s*(?:tasks\.(?P<which>[\w-]+)|(?P<id>[A-Za-z_][\w-]*))\.output(?P<path>(?:\.[\w-]+|\[[0-9]+\])*)\s*\}\}"
)
_STEP = re.compile(r"[\w-]+")
_MAX_DIGITS = 9
"""Maximum number of digits of an index; Python refuses to parse more than 4,300."""
_MISSING = object()


@attrs.define
class References:
    """Replaces references in the arguments of a task by the results of earlier tasks."""

    tasks: Sequence[PlannedTask]
    """Tasks of the goal before the current one, in order."""
    unmet: list[PlannedTask] = attrs.field(factory=list)
    """Tasks that were referenced but are not completed."""

    def resolve(self, value: Any) -> Any:
        """Return a value with references such as `{{task_1.output}}` replaced by results of earlier tasks, at any depth.

        A text that is exactly one reference becomes the result itself. An unknown reference is unchanged.
        """
        if isinstance(value, dict):
            return {key: self.resolve(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        if not isinstance(value, str) or "{{" not in value:
            return value
        if alone := _REFERENCE.fullmatch(value.strip()):
            found = self._find(alone)
            return value if found is _MISSING else found
        return _REFERENCE.sub(self._substitute_in_text, value)

    def _substitute_in_text(self, match: re.Match[str]) -> str:
        found = self._find(match)
        if found is _MISSING:
            return match[0]
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    def _find(self, match: re.Match[str]) -> Any:
        task = self._task(match["which"] or match["id"], by_index=match["which"] is not None)
        if task is None:
            return _MISSING
        if task.status != "completed":
            self.unmet.append(task)
            return _MISSING
        path, found = _STEP.findall(match["path"]), task.result
        if not path and isinstance(found, dict) and "response" in found:
            return found["response"]
        for step in path:
            found = _member(found, step)
        return found

    def _task(self, name: str, *, by_index: bool) -> PlannedTask | None:
        if by_index and _is_number(name):
            return self.tasks[int(name)] if _is_index(name, self.tasks) else None
        return next((task for task in reversed(self.tasks) if task.id == name), None)


def _member(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, _MISSING)
    if isinstance(value, list) and _is_number(step) and _is_index(step, value):
        return value[int(step)]
    return _MISSING


def _is_index(digits: str, values: Sequence[Any]) -> bool:
    return len(digits) <= _MAX_DIGITS and int(digits) < len(values)


def _is_number(text: str) -> bool:
    """Return True if a text consists of ASCII digits. `str.isdigit` also accepts digits of other scripts, such as U+FF11."""
    return text.isascii() and text.isdigit()
