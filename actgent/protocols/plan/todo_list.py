"""A plan with its todo list: items, their dependencies, statuses and results.

An item goes `pending -> in_progress -> completed | failed | waiting`. An item that can never run, because a dependency
did not complete, is `cancelled`. Functions get the current time as an argument, in Unix seconds. A session's state
stores a plan as text, see `Plan.to_text`.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs

from actgent.protocols.tool_call_summary import ToolsStatus
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.dict_serialization import Serializable

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
_MAX_RESULT_CHARS = 200
"""Maximum length of a result in a rendered list."""


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@attrs.frozen(kw_only=True, repr=False)
class TodoItem(Serializable):
    """One step of a plan."""

    id: str
    """Id of the item; unique in its plan."""
    description: str
    """Description of the item's work."""
    status: Status = "pending"
    """Status of the item, such as `pending`."""
    dependencies: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """Ids of the items that must be completed before this item starts."""
    step_type: StepType | None = None
    """Kind of the item's work; None if the model did not specify it."""
    required_tools: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """Names of tools that must be called with success before the item can complete."""
    expected_outcome: str | None = None
    """Description of the expected result; None if the model did not specify it."""
    mode: Mode | None = None
    """`strict` fails the item if a required tool was not called, `advisory` only records it; None counts as `strict`."""
    result: str | None = None
    """Result of the item as text; None until the item has ended."""
    called_tools: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """Names of the tools that were called for the item with success."""
    validation: Validation | None = None
    """Outcome of the check that the required tools were called; None before the check."""
    attempts: int = 0
    """Number of retries of the item because a required tool was not called."""
    begun_after: str | None = None
    """Id of the last message before the current attempt of the item; None if the item has not started."""
    created_at: float = 0.0
    """Creation time in Unix seconds."""
    updated_at: float = 0.0
    """Time of the last status change in Unix seconds."""

    @property
    def is_tool_step(self) -> bool:
        return self.step_type == "tool" or bool(self.required_tools)

    @property
    def is_strict(self) -> bool:
        return bool(self.required_tools) and self.mode != "advisory"

    def validate(self, called: Iterable[str]) -> Validation:
        """Check that the required tools of the item are among the `called` tools. Return `passed` or `failed`.

        For an item without required tools, return `skipped`.
        """
        if not self.is_tool_step:
            return "skipped"
        return "passed" if set(self.required_tools) <= set(called) else "failed"


def _items(values: Iterable[TodoItem]) -> tuple[TodoItem, ...]:
    return tuple(values)


@attrs.frozen(kw_only=True, repr=False)
class Plan(Serializable):
    """The plan of a session. A plan without items allows at most one round of tool calls before the answer."""

    title: str | None = None
    """Short title; None if the model gave none."""
    intent: str | None = None
    """The user's intent as the model understood it; None if the model gave none."""
    outline: str | None = None
    """The plan as text; None if the model gave none."""
    items: tuple[TodoItem, ...] = attrs.field(default=(), converter=_items)
    """Items in the order of the model's list."""
    warnings: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """Reasons why items of the model's list were omitted as invalid."""
    status: RunStatus = "running"
    """Status of the plan as a whole."""

    def find(self, item_id: str) -> TodoItem | None:
        """Return the item with this id; None if the plan has no such item."""
        return next((item for item in self.items if item.id == item_id), None)

    @property
    def current(self) -> TodoItem | None:
        """Item that is in progress; None if no item is in progress."""
        return next((item for item in self.items if item.status == "in_progress"), None)

    @property
    def outputs(self) -> dict[str, str]:
        """Results of the completed items, by id."""
        return {item.id: item.result or "" for item in self.items if item.status == "completed"}

    def with_item(self, item: TodoItem) -> "Plan":
        """Return a copy of the plan in which `item` replaces the item with the same id."""
        items = [item if old.id == item.id else old for old in self.items]
        # `attrs.evolve` takes three times as long.
        return Plan(
            title=self.title,
            intent=self.intent,
            outline=self.outline,
            items=items,
            warnings=self.warnings,
            status=self.status,
        )

    def to_data(self) -> dict[str, Any]:
        """Convert the plan to plain data for the agent's event handlers, without default values."""
        return {
            **_without_defaults(self, _PLAN_DEFAULTS),
            "items": [_without_defaults(item, _ITEM_DEFAULTS) for item in self.items],
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Plan":
        """Create a plan from the data of `to_data`."""
        return cls(**{**data, "items": [TodoItem(**item) for item in data.get("items", ())]})

    def to_text(self) -> str:
        """Encode the plan as JSON text for the session's state. The state copies texts faster than nested data."""
        import msgspec  # noqa: PLC0415 - loads 16 modules, which agents without a plan save

        text = msgspec.json.encode(self).decode()
        _cache_plan(text, self)
        return text

    @staticmethod
    def from_text(text: str) -> "Plan":
        """Parse a plan from the JSON text of `to_text`."""
        return _cache.get(text) or _cache_plan(text, _decoder().decode(text))


_MAX_CACHED_PLANS = 256
_cache: dict[str, Plan] = {}
"""Recently parsed plans by their JSON text. A plan is parsed several times between two changes."""


def _cache_plan(text: str, plan: Plan) -> Plan:
    if len(_cache) >= _MAX_CACHED_PLANS:
        del _cache[next(iter(_cache))]
    _cache[text] = plan
    return plan


@functools.cache
def _decoder() -> Any:
    """Return the msgspec decoder of plans, which is created at the first call, because msgspec loads 16 modules."""
    import msgspec  # noqa: PLC0415

    return msgspec.json.Decoder(Plan)


def _defaults_of(cls: type) -> dict[str, Any]:
    return {field.name: field.default for field in attrs.fields(cls) if field.name != "items"}


_PLAN_DEFAULTS, _ITEM_DEFAULTS = _defaults_of(Plan), _defaults_of(TodoItem)


def _without_defaults(value: Plan | TodoItem, defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item for name, default in defaults.items() if (item := getattr(value, name)) != default}


# --- scheduling ------------------------------------------------------------------------------


def next_item(plan: Plan) -> TodoItem | None:
    """Return the first pending item whose dependencies are all completed; None if no pending item can start."""
    done = {item.id for item in plan.items if item.status == "completed"}
    return next((i for i in plan.items if i.status == "pending" and done.issuperset(i.dependencies)), None)


def cancel_blocked(plan: Plan, *, now: float) -> Plan:
    """Cancel the items that can never run, if no item can run next.

    Such an item depends on itself, or on an item that failed, was cancelled or is missing. An item that depends on a
    waiting item stays pending. Return the plan.
    """
    if next_item(plan) is not None:
        return plan  # items are cancelled only when nothing else can run
    alive = _reachable(plan.items)
    blocked = [item for item in plan.items if item.status == "pending" and item.id not in alive]
    for item in blocked:
        plan = plan.with_item(_cancel_item(item, plan, now))
    return plan


def _reachable(items: Sequence[TodoItem]) -> set[str]:
    """Return the ids of all items that are completed or may still complete."""
    alive = {item.id for item in items if item.status in {"completed", "in_progress", "waiting"}}
    pending = [item for item in items if item.status == "pending"]
    while found := [item for item in pending if alive.issuperset(item.dependencies)]:
        alive.update(item.id for item in found)
        pending = [item for item in pending if item.id not in alive]
    return alive


def _cancel_item(item: TodoItem, plan: Plan, now: float) -> TodoItem:
    missing = [name for name in item.dependencies if name not in plan.outputs]
    reason = ", ".join(f"{name} ({_status_of(plan.find(name))})" for name in missing)
    return attrs.evolve(item, status="cancelled", result=f"not run: depends on {reason}", updated_at=now)


def _status_of(item: TodoItem | None) -> str:
    return "not in the plan" if item is None else item.status


def run_status(plan: Plan, tools: ToolsStatus = "success") -> RunStatus:
    """Return the final status of a plan from its items and the tool calls of the turn.

    - `suspended`: an item waits for an approval or an input.
    - `error`: all tool calls failed, and no item that needs only reasoning was completed.
    - `success`: every item was completed with its required tools, and every failed tool call was repeated with success.
    - `partial`: all other plans.
    """
    if any(item.status == "waiting" for item in plan.items):
        return "suspended"
    completed = [item for item in plan.items if item.status == "completed" and item.validation != "failed"]
    if tools == "error" and not any(item.step_type == "reasoning" for item in completed):
        return "error"
    is_whole = len(completed) == len(plan.items) and not plan.warnings and tools == "success"
    return "success" if is_whole else "partial"


# --- changed plans ------------------------------------------------------------------------------


def refine(old: Plan, new: Plan) -> Plan:
    """Merge a new plan of the model with the old plan of the session, and return the result.

    The statuses `completed` and `failed` are kept only if the item has them in the old plan. A completed item is kept
    unchanged, even if the new plan describes it differently.
    """
    return attrs.evolve(new, items=tuple(_check_status(old.find(item.id), item) for item in new.items))


def update(old: Plan, new: Plan) -> Plan:
    """Replace the todo list of a running plan by that of a new plan, and return the plan.

    Items that are completed or in progress stay, and come first. Warnings of both plans are kept.
    """
    fixed = {item.id: item for item in old.items if item.status in {"completed", "in_progress"}}
    fresh = [item for item in refine(old, new).items if item.id not in fixed]
    warnings = (*old.warnings, *new.warnings)
    return attrs.evolve(old, items=(*fixed.values(), *fresh), warnings=warnings)


def _check_status(old: TodoItem | None, new: TodoItem) -> TodoItem:
    if new.status in {"completed", "failed"} and old is not None and old.status == new.status:
        return old
    status = new.status if new.status in {"cancelled", "waiting"} else "pending"
    if old is None and status == new.status:
        return new
    return attrs.evolve(new, status=status, created_at=(old or new).created_at)


# --- differences -------------------------------------------------------------------------------

ChangeKind = Literal["added", "modified", "removed"]
_UNCHANGING = frozenset({"created_at", "updated_at", "begun_after"})
"""Names of item fields that a comparison of todo lists ignores."""


@attrs.frozen(repr=False)
class TodoChange(FieldRepr):
    """Change of one item between two todo lists."""

    kind: ChangeKind
    """Kind of the change: added, modified or removed."""
    item: TodoItem
    """The new item, or the old one if it was removed."""
    fields: tuple[str, ...] = ()
    """Names of the changed fields of a modified item; otherwise empty."""


@attrs.frozen(repr=False)
class TodoDiff(FieldRepr):
    """Differences between two todo lists, in the order of the new list, then the removed items."""

    changes: tuple[TodoChange, ...] = ()
    """Changes, one for each item that differs."""

    def of(self, kind: ChangeKind) -> tuple[TodoItem, ...]:
        """Return the items whose change is of this kind: added, modified or removed."""
        return tuple(change.item for change in self.changes if change.kind == kind)

    def to_data(self) -> dict[str, Any]:
        """Convert the differences to plain data for the agent's event handlers: item ids by kind of change."""
        kinds = get_args(ChangeKind)
        return {kind: [item.id for item in self.of(kind)] for kind in kinds}


def diff_todo(old: Iterable[TodoItem], new: Iterable[TodoItem]) -> TodoDiff:
    """Compare two todo lists, without the timestamps of their items, and return the differences."""
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


# --- plain text -----------------------------------------------------------------------------


def todo_text(plan: Plan) -> str:
    """Render a plan as text. Each item is one line, followed by its result."""
    lines = [line for line in (plan.title, plan.outline) if line]
    for item in plan.items:
        lines.append(f"{status_mark(item)} {item.id}: {item.description}{_dependency_text(item)}")
        if item.result:
            lines.append(f"      {shorten_to_line(item.result)}")
    lines += [f"({warning})" for warning in plan.warnings]
    return "\n".join(lines)


def change_text(change: TodoChange) -> str:
    """Render the change of one item as a line: `+` added, `~` modified, `-` removed."""
    sign = {"added": "+", "modified": "~", "removed": "-"}[change.kind]
    details = ", ".join(f"{name}: {_field_text(getattr(change.item, name))}" for name in change.fields)
    return f"{sign} {change.item.id}: {details or change.item.description}"


def status_mark(item: TodoItem) -> str:
    """Return the status of an item as a mark of three characters, such as `[x]` for completed."""
    return _MARKS[item.status]


def shorten_to_line(text: str, limit: int = _MAX_RESULT_CHARS) -> str:
    """Convert a text to one line, and truncate it to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def _dependency_text(item: TodoItem) -> str:
    return f" (after {', '.join(item.dependencies)})" if item.dependencies else ""


def _field_text(value: Any) -> str:
    return shorten_to_line(", ".join(value) if isinstance(value, tuple) else str(value))
