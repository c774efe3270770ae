"""References of tasks to results of earlier tasks: `{{tasks.0.output.results.0.url}}`, `{{task_1.output}}`.

A reference that is the whole text keeps the type of its value: a list stays a list. Within other text it becomes text.
A reference without a target stays unchanged.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import attrs

from .task_plan import PlannedTask

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
