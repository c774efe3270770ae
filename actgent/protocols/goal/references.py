"""References of tasks to what came of others: `{{tasks.0.output.results.0.url}}`, `{{task_1.output}}`.

One that is all of a text keeps its type: a list stays a list. In the midst of a text it becomes text. What refers to nothing
that is there stays as it is written.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import attrs

from .tasks import PlannedTask

_REFERENCE = re.compile(
    r"\{\{\s*(?:tasks\.(?P<which>[\w-]+)|(?P<id>[A-Za-z_][\w-]*))\.output(?P<path>(?:\.[\w-]+|\[[0-9]+\])*)\s*\}\}"
)
_STEP = re.compile(r"[\w-]+")
_DIGITS = 9
"""Digits of a place, at most; Python refuses to read a number of more than 4,300."""
_MISSING = object()


@attrs.define
class References:
    """Puts in the place of references what the tasks before came to."""

    tasks: Sequence[PlannedTask]
    """All tasks of the goal before this one, in their order."""
    unmet: list[PlannedTask] = attrs.field(factory=list)
    """Tasks that were referred to and are not completed."""

    def resolve(self, value: Any) -> Any:
        """A value with all references in it resolved, at any depth."""
        if isinstance(value, dict):
            return {key: self.resolve(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        if not isinstance(value, str) or "{{" not in value:
            return value
        if alone := _REFERENCE.fullmatch(value.strip()):
            found = self._find(alone)
            return value if found is _MISSING else found
        return _REFERENCE.sub(self._in_text, value)

    def _in_text(self, match: re.Match[str]) -> str:
        found = self._find(match)
        if found is _MISSING:
            return match[0]
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    def _find(self, match: re.Match[str]) -> Any:
        task = self._task(match["which"] or match["id"], by_place=match["which"] is not None)
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

    def _task(self, name: str, *, by_place: bool) -> PlannedTask | None:
        if by_place and _is_number(name):
            return self.tasks[int(name)] if _is_place(name, self.tasks) else None
        return next((task for task in reversed(self.tasks) if task.id == name), None)


def _member(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, _MISSING)
    if isinstance(value, list) and _is_number(step) and _is_place(step, value):
        return value[int(step)]
    return _MISSING


def _is_place(digits: str, values: Sequence[Any]) -> bool:
    return len(digits) <= _DIGITS and int(digits) < len(values)


def _is_number(text: str) -> bool:
    """True for digits of ASCII: `int` also reads those of other scripts, such as U+FF11."""
    return text.isascii() and text.isdigit()
