"""Parser of the planning and execution answers of the `plan` protocol.

An answer is JSON: alone, in a code fence, within prose, or between the two markers; text outside of the markers is
ignored. A planning answer may also consist of lines that begin with `Title:`, `Intent:` and `Plan:`. An invalid todo item
is omitted with a warning. An invalid tool call is a `ParseError`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import EmptyAnswer, ParseError
from actgent.messages import ToolCall
from actgent.protocols.answer_content_parsing import misspelled_key_reason
from actgent.protocols.text_tool_calls import CallFormat
from actgent.structured_output.extract_json import extract_only, is_truncated, loads, remove_thinking
from actgent.support.attrs_class_repr import FieldRepr

from .todo_list import STATUSES, Plan, TodoItem

START, END = "---JSON_OUTPUT_START---", "---JSON_OUTPUT_END---"
MAX_ITEMS = 200
"""Maximum number of items in one plan; each step scans all of them."""
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
_CALL = CallFormat(
    ("toolName", "tool_name", "name"),
    'each of toolCalls needs {"toolName": "<tool>", "arguments": {...}}',
    decodes=True,
)


@attrs.frozen(kw_only=True, repr=False)
class PlanningAnswer(FieldRepr):
    """Parsed answer of the planning stage."""

    plan: Plan
    """Plan in the answer."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls in the answer."""
    thoughts: str | None = None
    """The model's reasoning; None if the answer has none."""


@attrs.frozen(kw_only=True, repr=False)
class ItemAnswer(FieldRepr):
    """Parsed answer about one item of the plan."""

    content: str | None = None
    """Result of the item as the model stated it; None if it stated none."""
    calls: tuple[ToolCall, ...] | None = None
    """Tool calls that the answer contains; None if it has no list of calls."""
    decision: str | None = None
    """Decision about the item, one of `DECISIONS`; None if the answer has none."""
    update: Plan | None = None
    """New todo list for the rest of the plan; None if the answer has none."""
    thoughts: str | None = None
    """The model's reasoning; None if the answer has none."""


def parse_planning_answer(text: str, *, now: float) -> PlanningAnswer:
    """Parse a planning answer; `now` is the creation time of its items in Unix seconds.

    Raises:
        ParseError: The text is not a planning answer, or all items are invalid.
        EmptyAnswer: The answer has only reasoning.
    """
    thoughts, rest = split_thoughts(text)
    if (plan := _parse_sections(rest)) is not None:
        return PlanningAnswer(plan=plan, thoughts=thoughts)
    value = _decode(rest, _planned_reason)
    return PlanningAnswer(
        plan=_plan(value, now=now),
        calls=_calls(value.get("toolCalls")) or (),
        thoughts=_text(value.get("thoughts")) or thoughts,
    )


def parse_item_answer(text: str, *, now: float) -> ItemAnswer:
    """Parse an answer about one item of the plan; `now` is the creation time of new items in Unix seconds.

    Raises:
        ParseError: The text is not an answer about an item.
        EmptyAnswer: The answer has only reasoning.
    """
    thoughts, rest = split_thoughts(text)
    value = _decode(rest, _executed_reason)
    update = value.get("updatedPlan")
    return ItemAnswer(
        content=value.get("content"),
        calls=_calls(value.get("toolCalls")),
        decision=value.get("nextStepDecision"),
        update=None if update is None else _plan(_to_plan_object(update), now=now),
        thoughts=_text(value.get("thoughts")) or thoughts,
    )


def read_calls(text: str) -> tuple[ToolCall, ...]:
    """Parse an answer that consists only of tool calls as JSON; return no calls for any other text.

    Raises:
        ParseError: A tool call is invalid.
    """
    try:
        value = loads(_unwrap(text))
    except ParseError:
        return ()
    value = _normalize(value)
    if not isinstance(value, dict):
        return ()
    if reason := _calls_reason(value):
        raise ParseError(reason, text)
    return _calls(value.get("toolCalls")) or ()


def split_thoughts(text: str) -> tuple[str | None, str]:
    """Split an answer into the reasoning in `<think>` tags (None without reasoning) and the remaining text.

    Tags within JSON are not removed.

    Raises:
        EmptyAnswer: The text has only reasoning.
    """
    rest = remove_thinking(text)
    found, _ = _split_tags(text[: len(text) - len(rest)])
    if not rest.lstrip().startswith(_JSON_LIKE):
        more, rest = _split_tags(rest)
        found += more
    if not rest.strip():
        raise EmptyAnswer("the answer contains only reasoning", text)
    return "\n".join(found).strip() or None, rest


def _split_tags(text: str) -> tuple[list[str], str]:
    """Split an answer into the contents of complete `<think>` tags and the remaining text, with unclosed tags."""
    thoughts, others, opened, end = [], [], None, 0
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = opened or tag
        elif opened is not None:
            thoughts.append(text[opened.end() : tag.start()])
            others.append(text[end : opened.start()])
            opened, end = None, tag.end()
    return thoughts, "".join((*others, text[end:]))


# --- text to JSON value -------------------------------------------------------------------


def _decode(text: str, reason: Callable[[Any], str | None]) -> dict[str, Any]:
    inside = _unwrap(text)
    value = _parse_object(inside)
    if value is None or reason(value) is not None:
        value = _normalize(extract_only(inside, lambda found: reason(_normalize(found))))
    return value  # type: ignore[no-any-return]


def _parse_object(text: str) -> Any:
    """Parse a text that is exactly one JSON object; None for other texts. This takes half the time of `extract_only`."""
    if not text.startswith("{"):
        return None
    try:
        return _normalize(loads(text))
    except ParseError:
        return None


def _unwrap(text: str) -> str:
    """Return the part of an answer between the two markers; return an answer without markers unchanged.

    Raises:
        ParseError: The end marker is missing.
    """
    _, start, inside = text.partition(START)
    if not start:
        return text
    inside, end, _ = inside.partition(END)
    if not end:
        raise ParseError(f"the answer is truncated: it has {START} without {END}", text)
    return inside


def _normalize(value: Any) -> Any:
    """Convert the JSON value of an answer to an object with camel-case keys.

    A list of tool calls becomes an object with the list as `toolCalls`. Other values are returned unchanged.
    """
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
            raise ParseError(f"{key!r} has two spellings with different values: write it once")
    return members


def _parse_sections(text: str) -> Plan | None:
    """Parse a plan in lines of `Title:`, `Intent:` and `Plan:`; return None without an intent and a plan."""
    if "{" in text or is_truncated(text):
        return None
    parts = _SECTION.split(text)
    sections = {name.lower(): words.strip() for name, words in zip(parts[1::2], parts[2::2], strict=True)}
    if not sections.get("intent") or not sections.get("plan"):
        return None
    return Plan(title=sections.get("title"), intent=sections["intent"], outline=sections["plan"])


# --- planning -----------------------------------------------------------------------------------


def _planned_reason(value: Any) -> str | None:
    if not isinstance(value, dict):
        return PLAN_FORM
    if not (_outline(value.get("plan")) or value.get("todoList") or value.get("toolCalls")):
        return PLAN_FORM
    return (
        misspelled_key_reason(value, _NAMES)
        or _list_reason(value.get("todoList", []))
        or _calls_reason(value)
    )


def _list_reason(items: Any) -> str | None:
    if not isinstance(items, list):
        return "todoList must be a list of items"
    if len(items) > MAX_ITEMS:
        return f"todoList has more than {MAX_ITEMS} items: give fewer, larger ones"
    reason = None
    for item in items:
        if (reason := _item_reason(item)) is None:
            return None  # one valid item is enough
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
    """Convert the outline in an answer to text: text unchanged, a list joined by newlines. Return None for other values."""
    if isinstance(plan, list) and all(isinstance(line, str) for line in plan):
        plan = "\n".join(plan)
    return _text(plan)


def _read_items(values: Sequence[Any], *, now: float) -> tuple[list[TodoItem], list[str]]:
    """Parse the todo items of an answer. Return the valid items, and a warning for each invalid one."""
    items: dict[str, TodoItem] = {}
    warnings = []
    for number, value in enumerate(values, 1):
        reason = _item_reason(value)
        item = None if reason else _item(_camel(value), number, now=now)
        if item is None or item.id in items:
            warnings.append(f"todo item {number} was omitted: {reason or 'its id is used twice'}")
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
"""Checks of a todo item from the model, by the error text for an item that fails the check."""


def _is_one_of(value: Any, choices: Sequence[str]) -> bool:
    return value is None or _lower(value) in choices


def _item(value: Mapping[str, Any], number: int, *, now: float) -> TodoItem:
    return TodoItem(
        id=str(value.get("id", f"step_{number}")).strip(),
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
    """Convert an item's status to lower case with underscores: `In Progress` becomes `in_progress`."""
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
    return misspelled_key_reason(value, _NAMES) or _update_reason(value) or _calls_reason(value)


def _update_reason(value: Mapping[str, Any]) -> str | None:
    update = value.get("updatedPlan")
    if update is None:
        is_required = value.get("nextStepDecision") == "update_plan"
        return "update_plan needs updatedPlan, with the full todoList" if is_required else None
    plan = _to_plan_object(update)
    if not plan.get("todoList"):
        return "updatedPlan needs a todoList"
    return _list_reason(plan["todoList"])


def _to_plan_object(update: Any) -> dict[str, Any]:
    """Convert an updated plan to an object. The model may have written only the list of items."""
    if isinstance(update, list):
        return {"todoList": update}
    return _camel(update) if isinstance(update, dict) else {}


# --- tool calls ---------------------------------------------------------------------------------


def _is_call_like(value: Any) -> bool:
    return isinstance(value, dict) and bool({"toolName", "tool_name", "function"} & value.keys())


def _calls_reason(value: Mapping[str, Any]) -> str | None:
    """Return an error text if a tool call of an answer is invalid, else None."""
    calls = value.get("toolCalls")
    if calls is None:
        return None
    if not isinstance(calls, list):
        return _CALL.expected
    return _CALL.calls_reason(calls, ("toolCalls", value, _KEYS)) if calls else None


def _calls(calls: Any) -> tuple[ToolCall, ...] | None:
    return None if calls is None else tuple(map(_call, calls))


def _call(call: Any) -> ToolCall:
    written = _CALL.read(call)
    return ToolCall(name=written.name, arguments=written.arguments, provider_id=written.id, native=False)
