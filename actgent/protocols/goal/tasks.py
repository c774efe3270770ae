"""Tasks: a plan whose steps are calls of tools, with ids, retries, and references to what came of earlier ones.

A task is written as `{"description", "tool", "args"}`, where it is told with an `id` and `max_retries` of its own. What came
of the tasks of a goal is kept in the session's state, over all plans, so that the next plan can refer to it, and is told why
others failed.
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
"""The tool that carries tasks out."""
MAX_PLANS = 5
"""Plans of tasks that one goal may take."""
MAX_RETRIES = 3
"""How often a task is tried again, where it says nothing itself."""
MAX_TASKS = 50
"""Tasks of one plan."""
SHOWN = 4_000
"""Characters of a task's result that the model reads; references have all of it."""
STATE_KEY = "_tasks"
_FAILED_SHOWN = 300

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
    """A step of a plan, and what came of it."""

    id: str
    """`task_1`, `task_2` ..., counted over all plans of a goal, where the plan gave none."""
    description: str
    """What is to be done."""
    tool_name: str = ""
    """What does it; empty: the model itself, in its next decisions."""
    tool_args: Mapping[str, Any] = attrs.field(factory=dict)
    """As the plan has them, with references."""
    cycle: int = 1
    """Of the plan, from 1."""
    status: TaskStatus = "pending"
    """`pending` is what was not tried: no tool, or something before it that is pending."""
    attempts: int = 0
    """How often its tool was called."""
    max_retries: int = MAX_RETRIES
    """How often it may be called again."""
    failure_reason: str | None = None
    """Why it failed, or was not tried."""
    result: Any = None
    """What its tool returned; None if it failed."""

    @property
    def retry_count(self) -> int:
        """How often its tool was called again."""
        return max(0, self.attempts - 1)


# --- what is written ---------------------------------------------------------------------------


def tasks_reason(written: Any) -> str | None:
    """Why these are no tasks of a plan; None if they are."""
    if not isinstance(written, list) or not written or len(written) > MAX_TASKS:
        return f"tasks must be a list of 1 to {MAX_TASKS} tasks"
    for task in written:
        if (
            not isinstance(task, dict)
            or not isinstance(task.get("description"), str)
            or not task["description"].strip()
        ):
            return "each task is an object with a description"
        if not isinstance(task.get("tool") or "", str) or not isinstance(task.get("args") or {}, dict):
            return f"the task {task['description'][:80]!r} names its tool as text, and args as an object"
    ids = [task["id"] for task in written if "id" in task]
    if any(not isinstance(each, str) or not each or ids.count(each) > 1 for each in ids):
        return "the id of a task is a text, and no two tasks have the same"
    return None


def written_tasks(written: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tasks of a plan as arguments of `run_tasks`: what has no meaning is left out."""
    known = ("id", "description", "tool", "args", "max_retries")
    return [{name: task[name] for name in known if task.get(name) is not None} for task in written]


def read_tasks(written: Sequence[Mapping[str, Any]], before: Sequence[PlannedTask]) -> list[PlannedTask]:
    """The tasks of a plan, numbered behind those of the plans before."""
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


# --- what is kept and told ---------------------------------------------------------------------


def tasks_in(state: Mapping[str, Any], turn: str) -> list[PlannedTask]:
    """The tasks of a goal, those of all its plans; none for another goal's turn."""
    kept = state.get(STATE_KEY)
    return [PlannedTask(**task) for task in kept["tasks"]] if kept and kept["turn"] == turn else []


def kept_tasks(turn: str, tasks: Sequence[PlannedTask]) -> tuple[str, Mapping[str, Any]]:
    """The change of state that keeps them."""
    return STATE_KEY, {"turn": turn, "tasks": [attrs.asdict(task) for task in tasks]}


def told_tasks(tasks: Sequence[PlannedTask], first: int) -> Mapping[str, Any]:
    """What the model reads of the tasks of a plan, the first of which has this place."""
    return {"tasks": [_told(task, place) for place, task in enumerate(tasks, first)]}


def _told(task: PlannedTask, place: int) -> Mapping[str, Any]:
    told: dict[str, Any] = {
        "place": f"tasks.{place}",
        "id": task.id,
        "description": task.description,
        "tool": task.tool_name,
    }
    told |= {"status": task.status, "attempts": task.attempts}
    if task.failure_reason:
        told["failure_reason"] = task.failure_reason
    if task.status == "completed":
        told["output"] = _short(task.result)
    return told


def _short(value: Any) -> Any:
    text = json.dumps(value)
    return value if len(text) <= SHOWN else f"{text[:SHOWN]}[cut: the first of {len(text)} characters]"


def tasks_told(result: ToolResult) -> Sequence[Mapping[str, Any]]:
    """What a result of `run_tasks` tells of each task; nothing, if it cannot be read."""
    try:
        told = loads(result.content)
    except ParseError:
        return ()
    tasks = told.get("tasks") if isinstance(told, dict) else None
    return [each for each in tasks if isinstance(each, dict)] if isinstance(tasks, list) else ()


def failures(tasks: Sequence[PlannedTask]) -> list[str]:
    """What the next plan is told of the last one: which tasks failed or were not tried, and why."""
    last = max((task.cycle for task in tasks), default=0)
    left = [task for task in tasks if task.cycle == last and task.status != "completed"]
    lines = [f"- {task.description}: {(task.failure_reason or task.status)[:_FAILED_SHOWN]}" for task in left]
    return ["FAILED TASKS:", *lines] if lines else []
