"""What a model's planning and execution answers say, read strictly.

An answer is JSON: alone, in a fence, among prose, or between the markers, which win over everything round
them. A planning answer may also be lines that begin with `Title:`, `Intent:` and `Plan:`. One todo item that
cannot be read is left out with a warning; a tool call that cannot be read makes the answer a `ParseError`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import EmptyAnswer, ParseError
from actgent.messages import ToolCall
from actgent.protocols.actions import misspelt
from actgent.protocols.calls import CallForm, stray_arguments
from actgent.structured.extract import extract_only, is_cut, loads, visible

from .todo import STATUSES, Plan, TodoItem

START, END = "---JSON_OUTPUT_START---", "---JSON_OUTPUT_END---"
MAX_ITEMS = 200
"""Of one plan: each step looks at all of them."""
DECISIONS = ("continue", "wait", "complete_item", "update_plan")
PLAN_FORM = (
    'the answer must be a JSON object with "todoList", "toolCalls" or "plan", in the form that was asked for'
)
STEP_FORM = 'the answer must be a JSON object with "content", "toolCalls" or "nextStepDecision"'

_NAMES = {
    name.lower(): name
    for name in ("plan", "todoList", "toolCalls", "content", "nextStepDecision", "updatedPlan")
}
_KEYS = frozenset((*_NAMES.values(), "title", "intent", "thoughts"))
_TAG = re.compile(r"<(/?)think(?:ing)?>")
_SECTION = re.compile(r"^[ \t]*(?:[*#]+[ \t]*)?(Title|Intent|Plan)[ \t]*:[ \t*]*", re.MULTILINE)
_SNAKE = re.compile(r"_([a-z])")
_JSON_LIKE = ("{", "[", "`", "---")
_CALL = CallForm(
    ("toolName", "tool_name", "name"),
    'each of toolCalls needs {"toolName": "<tool>", "arguments": {...}}',
    decodes=True,
)


@attrs.frozen(kw_only=True)
class Planned:
    """What a planning answer said."""

    plan: Plan
    calls: tuple[ToolCall, ...] = ()
    thoughts: str | None = None
    has_list: bool = False
    """True if it gave a todo list, be it an empty one."""


@attrs.frozen(kw_only=True)
class Executed:
    """What an answer about one item said; None is what it did not say."""

    content: str | None = None
    calls: tuple[ToolCall, ...] | None = None
    decision: str | None = None
    update: Plan | None = None
    thoughts: str | None = None


def read_planned(text: str, *, now: float) -> Planned:
    """A planning answer; `now` is the time of its items.

    Raises:
        ParseError: it is none, or it holds no item that can be read.
        EmptyAnswer: there are only thoughts.
    """
    thoughts, rest = split_thoughts(text)
    if (sections := _sections(rest)) is not None:
        return Planned(plan=sections, thoughts=thoughts)
    value = _decoded(rest, _planned_reason)
    return Planned(
        plan=_plan(value, now=now),
        calls=_calls(value.get("toolCalls")) or (),
        thoughts=_text(value.get("thoughts")) or thoughts,
        has_list="todoList" in value,
    )


def read_executed(text: str, *, now: float) -> Executed:
    """An answer about one item.

    Raises:
        ParseError: it is none.
        EmptyAnswer: there are only thoughts.
    """
    thoughts, rest = split_thoughts(text)
    value = _decoded(rest, _executed_reason)
    update = value.get("updatedPlan")
    return Executed(
        content=value.get("content"),
        calls=_calls(value.get("toolCalls")),
        decision=value.get("nextStepDecision"),
        update=None if update is None else _plan(_as_plan(update), now=now),
        thoughts=_text(value.get("thoughts")) or thoughts,
    )


def read_calls(text: str) -> tuple[ToolCall, ...]:
    """The tool calls of an answer that is nothing but such JSON; empty for any other text.

    Raises:
        ParseError: one of them cannot be read.
    """
    try:
        value = loads(_unwrapped(text))
    except ParseError:
        return ()
    value = _normal(value)
    if not isinstance(value, dict):
        return ()
    if reason := _calls_reason(value):
        raise ParseError(reason, text)
    return _calls(value.get("toolCalls")) or ()


def split_thoughts(text: str) -> tuple[str | None, str]:
    """The thoughts in `<think>` tags, and the text without them; tags inside of a JSON answer are its own.

    Raises:
        EmptyAnswer: there is nothing else.
    """
    rest = visible(text)
    found, _ = _parted(text[: len(text) - len(rest)])
    if not rest.lstrip().startswith(_JSON_LIKE):
        more, rest = _parted(rest)
        found += more
    if not rest.strip():
        raise EmptyAnswer("the answer holds nothing but thoughts", text)
    return "\n".join(found).strip() or None, rest


def _parted(text: str) -> tuple[list[str], str]:
    """What stands in tags, each up to the first that closes it, and the rest; what is never closed belongs to the rest."""
    thoughts, others, opened, end = [], [], None, 0
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = opened or tag
        elif opened is not None:
            thoughts.append(text[opened.end() : tag.start()])
            others.append(text[end : opened.start()])
            opened, end = None, tag.end()
    return thoughts, "".join((*others, text[end:]))


# --- from text to one value -------------------------------------------------------------------


def _decoded(text: str, reason: Callable[[Any], str | None]) -> dict[str, Any]:
    inside = _unwrapped(text)
    value = _whole(inside)
    if value is None or reason(value) is not None:
        value = _normal(extract_only(inside, lambda found: reason(_normal(found))))
    return value  # type: ignore[no-any-return]


def _whole(text: str) -> Any:
    """The value of a text that is one JSON object, which is the usual case, in half of the time; None for others."""
    if not text.startswith("{"):
        return None
    try:
        return _normal(loads(text))
    except ParseError:
        return None


def _unwrapped(text: str) -> str:
    """Return what stands between the markers; any other text as it is.

    Raises:
        ParseError: the second marker is missing.
    """
    _, start, inside = text.partition(START)
    if not start:
        return text
    inside, end, _ = inside.partition(END)
    if not end:
        raise ParseError(f"truncated: {START} without {END}", text)
    return inside


def _normal(value: Any) -> Any:
    """A list of calls as the object that holds them; names of members in one spelling, however they came."""
    if isinstance(value, list):
        value = {"toolCalls": value} if value and all(map(_is_call_like, value)) else value
    return _camel(value) if isinstance(value, dict) else value


def _camel(value: Mapping[str, Any]) -> dict[str, Any]:
    if not any("_" in key for key in value):
        return dict(value)
    members: dict[str, Any] = {}
    for key, member in value.items():
        name = _SNAKE.sub(lambda match: match[1].upper(), key)
        if members.setdefault(name, member) != member:
            raise ParseError(f"{key!r} stands there in two spellings, which differ: give it once")
    return members


def _sections(text: str) -> Plan | None:
    """The plan in lines of `Title:`, `Intent:` and `Plan:`; None without an intent and a plan."""
    if "{" in text or is_cut(text):
        return None
    parts = _SECTION.split(text)
    said = {name.lower(): words.strip() for name, words in zip(parts[1::2], parts[2::2], strict=True)}
    if not said.get("intent") or not said.get("plan"):
        return None
    return Plan(title=said.get("title"), intent=said["intent"], outline=said["plan"])


# --- planning -----------------------------------------------------------------------------------


def _planned_reason(value: Any) -> str | None:
    if not isinstance(value, dict):
        return PLAN_FORM
    if not (_outline(value.get("plan")) or value.get("todoList") or value.get("toolCalls")):
        return PLAN_FORM
    return misspelt(value, _NAMES) or _list_reason(value.get("todoList", [])) or _calls_reason(value)


def _list_reason(items: Any) -> str | None:
    if not isinstance(items, list):
        return "todoList must be a list of items"
    if len(items) > MAX_ITEMS:
        return f"todoList has more than {MAX_ITEMS} items: give fewer, larger ones"
    reason = None
    for item in items:
        if (reason := _item_reason(item)) is None:
            return None  # one that can be read is enough
    return reason


def _plan(value: Mapping[str, Any], *, now: float) -> Plan:
    items, warnings = _read_items(value.get("todoList", []), now=now)
    return Plan(
        title=_text(value.get("title")),
        intent=_text(value.get("intent")),
        outline=_outline(value.get("plan")),
        items=items,
        warnings=warnings,
    )


def _outline(plan: Any) -> str | None:
    """The plan in words, which may come as a list of them."""
    if isinstance(plan, list) and all(isinstance(line, str) for line in plan):
        plan = "\n".join(plan)
    return _text(plan)


def _read_items(values: Sequence[Any], *, now: float) -> tuple[list[TodoItem], list[str]]:
    """The items that can be read, and what was wrong with the others."""
    items: dict[str, TodoItem] = {}
    warnings = []
    for place, value in enumerate(values, 1):
        reason = _item_reason(value)
        item = None if reason else _item(_camel(value), place, now=now)
        if item is None or item.id in items:
            warnings.append(f"todo item {place} was left out: {reason or 'its id is there twice'}")
        else:
            items[item.id] = item
    return list(items.values()), warnings


def _item_reason(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "a todo item must be an object"
    item = _camel(value)
    return next((reason for reason, is_right in _ITEM_RULES.items() if not is_right(item)), None)


_ITEM_RULES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "a todo item needs a description": lambda item: _text(item.get("description")),
    "the id of a todo item is text or a whole number": lambda item: _is_id(item.get("id", 1)),
    f"the status of a todo item is one of {', '.join(STATUSES)}": lambda item: (
        _status(item.get("status", "pending")) in STATUSES
    ),
    "the dependencies of a todo item are a list of ids": lambda item: _is_list_of(
        item.get("dependencies"), _is_id
    ),
    "the requiredTools of a todo item are a list of names": lambda item: _is_list_of(
        item.get("requiredTools"), _text
    ),
    "the stepType of a todo item is tool or reasoning": lambda item: _is_one_of(
        item.get("stepType"), ("tool", "reasoning")
    ),
    "the toolValidationMode of a todo item is strict or advisory": lambda item: _is_one_of(
        item.get("toolValidationMode"), ("strict", "advisory")
    ),
}
"""What is said of an item that breaks a rule, and the rule."""


def _is_one_of(value: Any, choices: Sequence[str]) -> bool:
    return value is None or _lower(value) in choices


def _item(value: Mapping[str, Any], place: int, *, now: float) -> TodoItem:
    return TodoItem(
        id=str(value.get("id", f"step_{place}")).strip(),
        description=value["description"].strip(),
        status=_status(value.get("status", "pending")),
        dependencies=[str(name).strip() for name in value.get("dependencies") or ()],
        step_type=_lower(value.get("stepType")),
        required_tools=value.get("requiredTools") or (),
        expected_outcome=_text(value.get("expectedOutcome")),
        mode=_lower(value.get("toolValidationMode")),
        created_at=now,
        updated_at=now,
    )


def _status(value: Any) -> Any:
    """The status in the spelling of ours: `In Progress` and `IN_PROGRESS` are the same."""
    if value in STATUSES or not isinstance(value, str):
        return value
    return re.sub(r"[\s-]+", "_", value.strip().lower())


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _is_id(value: Any) -> bool:
    return type(value) is int or bool(_text(value))


def _is_list_of(values: Any, check: Callable[[Any], Any]) -> bool:
    return values is None or (isinstance(values, list) and all(map(check, values)))


def _text(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


# --- execution ----------------------------------------------------------------------------------


def _executed_reason(value: Any) -> str | None:
    if not isinstance(value, dict) or not value.keys() & {"content", "toolCalls", "nextStepDecision"}:
        return STEP_FORM
    if not isinstance(value.get("content"), str | None):
        return "content must be text"
    if value.get("nextStepDecision") not in (None, *DECISIONS):
        return f"nextStepDecision must be one of {', '.join(DECISIONS)}"
    return misspelt(value, _NAMES) or _update_reason(value) or _calls_reason(value)


def _update_reason(value: Mapping[str, Any]) -> str | None:
    update = value.get("updatedPlan")
    if update is None:
        wanted = value.get("nextStepDecision") == "update_plan"
        return "update_plan needs updatedPlan, with the full todoList" if wanted else None
    plan = _as_plan(update)
    if not plan.get("todoList"):
        return "updatedPlan needs a todoList"
    return _list_reason(plan["todoList"])


def _as_plan(update: Any) -> dict[str, Any]:
    """An updated plan, which may come as the plain list of its items."""
    if isinstance(update, list):
        return {"todoList": update}
    return _camel(update) if isinstance(update, dict) else {}


# --- tool calls ---------------------------------------------------------------------------------


def _is_call_like(value: Any) -> bool:
    return isinstance(value, dict) and bool({"toolName", "tool_name", "function"} & value.keys())


def _calls_reason(value: Mapping[str, Any]) -> str | None:
    """Explain what is wrong with the calls of an answer, None if nothing."""
    calls = value.get("toolCalls")
    if calls is None:
        return None
    if not isinstance(calls, list):
        return _CALL.wanted
    reasons = filter(None, map(_CALL.reason, calls))
    if not calls or (reason := next(reasons, None)):
        return reason if calls else None
    return stray_arguments(value, "toolCalls", known=_KEYS, are_bare=_CALL.is_bare(calls))


def _calls(calls: Any) -> tuple[ToolCall, ...] | None:
    return None if calls is None else tuple(map(_call, calls))


def _call(call: Any) -> ToolCall:
    written = _CALL.read(call)
    return ToolCall(name=written.name, arguments=written.arguments, provider_id=written.id, native=False)
