"""A plan and its todo list: what is to be done, in which order, and what came of it.

An item goes `pending -> in_progress -> completed | failed | waiting`; what can never run, because what it
depends on did not end well, is `cancelled`. Nothing here asks the time: it is passed in, in Unix seconds.
Plans are kept in a session's store as text, see `Plan.to_text`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs
import msgspec

from actgent.protocols.tool_status import ToolsStatus
from actgent.support.serializable import Serializable

Status = Literal["pending", "in_progress", "completed", "failed", "cancelled", "waiting"]
StepType = Literal["tool", "reasoning"]
Mode = Literal["strict", "advisory"]
Validation = Literal["passed", "failed", "skipped"]
RunStatus = Literal["running", "success", "partial", "error", "suspended"]
STATUSES: tuple[Status, ...] = get_args(Status)

_MARKS: dict[Status, str] = {
    "pending": "[ ]",
    "in_progress": "[>]",
    "completed": "[x]",
    "failed": "[!]",
    "cancelled": "[-]",
    "waiting": "[~]",
}
_SHOWN_RESULT = 200
"""Characters of a result in a rendered list."""


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@attrs.frozen(kw_only=True)
class TodoItem(Serializable):
    """One step of a plan."""

    id: str
    """Unique in its plan."""
    description: str
    """What is to be done, in words."""
    status: Status = "pending"
    """How far it is."""
    dependencies: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """Ids of the items that have to be completed before."""
    step_type: StepType | None = None
    """What kind of work it is; None where the model did not say."""
    required_tools: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """Tools that have to be called, with success, before the item counts as completed."""
    expected_outcome: str | None = None
    """What should come of it, in words; None where the model did not say."""
    mode: Mode | None = None
    """`strict`: without its required tools the item fails; `advisory`: it is only noted. None: see `is_strict`."""
    result: str | None = None
    """What came of it, in words; None until it has ended."""
    called_tools: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """The tools that were called for it, with success."""
    validation: Validation | None = None
    """What came of looking whether its required tools were called; None until then."""
    attempts: int = 0
    """How often it was tried again because a required tool was not called."""
    begun_after: str | None = None
    """The id of the message after which its current attempt began."""
    created_at: float = 0.0
    """Unix time in seconds."""
    updated_at: float = 0.0
    """Unix time in seconds."""

    @property
    def is_tool_step(self) -> bool:
        return self.step_type == "tool" or bool(self.required_tools)

    @property
    def is_strict(self) -> bool:
        return bool(self.required_tools) and self.mode != "advisory"

    def validate(self, called: Iterable[str]) -> Validation:
        """Check that the required tools are among the called ones; a reasoning step has nothing to check."""
        if not self.is_tool_step:
            return "skipped"
        return "passed" if set(self.required_tools) <= set(called) else "failed"


def _items(values: Iterable[TodoItem]) -> tuple[TodoItem, ...]:
    return tuple(values)


@attrs.frozen(kw_only=True)
class Plan(Serializable):
    """What a session is about to do. `items` may be empty: then one round of tools, or none, leads to the answer."""

    title: str | None = None
    """A few words for people; None where the model gave none."""
    intent: str | None = None
    """What the user wants, as the model understood it."""
    outline: str | None = None
    """The plan in words."""
    items: tuple[TodoItem, ...] = attrs.field(default=(), converter=_items)
    """In the order of the model's list."""
    warnings: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """What was left out of the model's list because it could not be read."""
    status: RunStatus = "running"
    """How far it is as a whole."""

    def find(self, item_id: str) -> TodoItem | None:
        """The item of this id."""
        return next((item for item in self.items if item.id == item_id), None)

    @property
    def current(self) -> TodoItem | None:
        """The item in progress."""
        return next((item for item in self.items if item.status == "in_progress"), None)

    @property
    def outputs(self) -> dict[str, str]:
        """The results of the completed items, by id."""
        return {item.id: item.result or "" for item in self.items if item.status == "completed"}

    def replaced(self, item: TodoItem) -> "Plan":
        """The plan with another form of one of its items."""
        items = [item if old.id == item.id else old for old in self.items]
        # Not by `evolve`, which takes three times as long.
        return Plan(
            title=self.title,
            intent=self.intent,
            outline=self.outline,
            items=items,
            warnings=self.warnings,
            status=self.status,
        )

    def to_data(self) -> dict[str, Any]:
        """The plan as plain data, for handlers; what has its default is left out."""
        return {**_said(self, _PLAN_DEFAULTS), "items": [_said(item, _ITEM_DEFAULTS) for item in self.items]}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Plan":
        """The plan that `to_data` wrote."""
        return cls(**{**data, "items": [TodoItem(**item) for item in data.get("items", ())]})

    def to_text(self) -> str:
        """The plan as JSON, for stores: a text is neither copied nor changed."""
        text = msgspec.json.encode(self).decode()
        _keep(text, self)
        return text

    @staticmethod
    def from_text(text: str) -> "Plan":
        """The plan that `to_text` wrote."""
        return _kept.get(text) or _keep(text, _DECODER.decode(text))


_MAX_KEPT = 256
_kept: dict[str, Plan] = {}
"""The last plans by their texts: each is read several times between two changes."""


def _keep(text: str, plan: Plan) -> Plan:
    if len(_kept) >= _MAX_KEPT:
        del _kept[next(iter(_kept))]
    _kept[text] = plan
    return plan


_DECODER = msgspec.json.Decoder(Plan)


def _defaults_of(cls: type) -> dict[str, Any]:
    return {field.name: field.default for field in attrs.fields(cls) if field.name != "items"}


_PLAN_DEFAULTS, _ITEM_DEFAULTS = _defaults_of(Plan), _defaults_of(TodoItem)


def _said(value: Plan | TodoItem, defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: said for name, default in defaults.items() if (said := getattr(value, name)) != default}


# --- what is next ------------------------------------------------------------------------------


def next_item(plan: Plan) -> TodoItem | None:
    """The first pending item whose dependencies are all completed."""
    done = {item.id for item in plan.items if item.status == "completed"}
    return next((i for i in plan.items if i.status == "pending" and done.issuperset(i.dependencies)), None)


def without_blocked(plan: Plan, *, now: float) -> Plan:
    """Where no item can run next, cancel what never can: it depends on what failed, was cancelled, is not there, or on itself.

    What waits for a waiting item stays pending.
    """
    if next_item(plan) is not None:
        return plan  # there is time until nothing can run
    alive = _reachable(plan.items)
    blocked = [item for item in plan.items if item.status == "pending" and item.id not in alive]
    for item in blocked:
        plan = plan.replaced(_cancelled(item, plan, now))
    return plan


def _reachable(items: Sequence[TodoItem]) -> set[str]:
    """The ids of all items that are, or may yet be, completed."""
    alive = {item.id for item in items if item.status in {"completed", "in_progress", "waiting"}}
    pending = [item for item in items if item.status == "pending"]
    while found := [item for item in pending if alive.issuperset(item.dependencies)]:
        alive.update(item.id for item in found)
        pending = [item for item in pending if item.id not in alive]
    return alive


def _cancelled(item: TodoItem, plan: Plan, now: float) -> TodoItem:
    missing = [name for name in item.dependencies if name not in plan.outputs]
    reason = ", ".join(f"{name} ({_standing(plan.find(name))})" for name in missing)
    return attrs.evolve(item, status="cancelled", result=f"not run: depends on {reason}", updated_at=now)


def _standing(item: TodoItem | None) -> str:
    return "not in the plan" if item is None else item.status


def run_status(plan: Plan, tools: ToolsStatus = "success") -> RunStatus:
    """Judge a plan by its items and by the tool calls of the turn.

    It is a `success` if each item was completed with its required tools, no item was left out, and no tool call failed for
    good. It is an `error` if all tool calls failed, unless an item of reasoning alone was completed.
    """
    if any(item.status == "waiting" for item in plan.items):
        return "suspended"
    completed = [item for item in plan.items if item.status == "completed" and item.validation != "failed"]
    if tools == "error" and not any(item.step_type == "reasoning" for item in completed):
        return "error"
    is_whole = len(completed) == len(plan.items) and not plan.warnings and tools == "success"
    return "success" if is_whole else "partial"


# --- another plan ------------------------------------------------------------------------------


def refined(old: Plan, new: Plan) -> Plan:
    """A new plan in place of an old one: what it says is completed or failed counts only if it was.

    A completed item stays as it was done, whatever its new words.
    """
    return attrs.evolve(new, items=tuple(_checked(old.find(item.id), item) for item in new.items))


def updated(old: Plan, new: Plan) -> Plan:
    """A plan changed while it runs: what is done or in progress stays, named or not, and the rest is the new list's."""
    fixed = {item.id: item for item in old.items if item.status in {"completed", "in_progress"}}
    fresh = [item for item in refined(old, new).items if item.id not in fixed]
    warnings = (*old.warnings, *new.warnings)
    return attrs.evolve(old, items=(*fixed.values(), *fresh), warnings=warnings)


def _checked(old: TodoItem | None, new: TodoItem) -> TodoItem:
    if new.status in {"completed", "failed"} and old is not None and old.status == new.status:
        return old
    status = new.status if new.status in {"cancelled", "waiting"} else "pending"
    if old is None and status == new.status:
        return new
    return attrs.evolve(new, status=status, created_at=(old or new).created_at)


# --- differences -------------------------------------------------------------------------------

ChangeKind = Literal["added", "modified", "removed"]
_UNCHANGING = frozenset({"created_at", "updated_at", "begun_after"})
"""Fields that alone are no change."""


@attrs.frozen
class TodoChange:
    """What happened to one item."""

    kind: ChangeKind
    """What happened to it."""
    item: TodoItem
    """As it is now; as it was, where it was removed."""
    fields: tuple[str, ...] = ()
    """What is different in a modified item."""


@attrs.frozen
class TodoDiff:
    """The way from one list to another, in the order of the new one, then what was removed."""

    changes: tuple[TodoChange, ...] = ()
    """One for each item that is different."""

    def of(self, kind: ChangeKind) -> tuple[TodoItem, ...]:
        """The items of one kind of change."""
        return tuple(change.item for change in self.changes if change.kind == kind)

    def to_data(self) -> dict[str, Any]:
        """The ids by kind, for handlers."""
        kinds = get_args(ChangeKind)
        return {kind: [item.id for item in self.of(kind)] for kind in kinds}


def diff_todo(old: Iterable[TodoItem], new: Iterable[TodoItem]) -> TodoDiff:
    """Return what is different in a new list; timestamps alone are no difference."""
    before, after = {item.id: item for item in old}, {item.id: item for item in new}
    changes = [change for item in after.values() if (change := _change(before.get(item.id), item))]
    removed = [TodoChange("removed", item) for item_id, item in before.items() if item_id not in after]
    return TodoDiff((*changes, *removed))


def _change(old: TodoItem | None, new: TodoItem) -> TodoChange | None:
    if old is None:
        return TodoChange("added", new)
    names = [field.name for field in attrs.fields(TodoItem) if field.name not in _UNCHANGING]
    fields = tuple(name for name in names if getattr(old, name) != getattr(new, name))
    return TodoChange("modified", new, fields) if fields else None


# --- as plain text -----------------------------------------------------------------------------


def todo_text(plan: Plan) -> str:
    """A plan for people and prompts: a line an item, its result below it."""
    lines = [line for line in (plan.title, plan.outline) if line]
    for item in plan.items:
        lines.append(f"{status_mark(item)} {item.id}: {item.description}{_needs(item)}")
        if item.result:
            lines.append(f"      {clipped(item.result)}")
    lines += [f"({warning})" for warning in plan.warnings]
    return "\n".join(lines)


def diff_text(diff: TodoDiff) -> str:
    """Differences as lines: `+` added, `~` modified, `-` removed."""
    return "\n".join(change_text(change) for change in diff.changes)


def change_text(change: TodoChange) -> str:
    """One line of `diff_text`."""
    sign = {"added": "+", "modified": "~", "removed": "-"}[change.kind]
    what = ", ".join(f"{name}: {_shown(getattr(change.item, name))}" for name in change.fields)
    return f"{sign} {change.item.id}: {what or change.item.description}"


def status_mark(item: TodoItem) -> str:
    """The status as a mark of three characters."""
    return _MARKS[item.status]


def clipped(text: str, limit: int = _SHOWN_RESULT) -> str:
    """A text in one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def _needs(item: TodoItem) -> str:
    return f" (after {', '.join(item.dependencies)})" if item.dependencies else ""


def _shown(value: Any) -> str:
    return clipped(", ".join(value) if isinstance(value, tuple) else str(value))
