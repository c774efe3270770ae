"""Observations: what an agent intends, plans, thinks, calls and answers, as a view of its session's records.

Nothing is stored for them: the same records make the same observations, with the same ids, whenever they are read.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import attrs

from actgent.journal.records import (
    Changed,
    Delivered,
    Ended,
    Finished,
    Record,
    Resumed,
    RolledBack,
    Said,
    SuspendedRecord,
    Told,
)
from actgent.messages import Thinking, ToolResult
from actgent.protocols.plan import STATE as PLAN

from .records import Followed

ObservedType = Literal[
    "INTENT",
    "PLAN",
    "PLAN_UPDATE",
    "ITEM_STATUS_CHANGE",
    "THOUGHTS",
    "TOOL_CALL",
    "TOOL_EXECUTION",
    "EVENT",
    "ROUTE",
    "FINAL_RESPONSE",
    "STATE_UPDATE",
    "AGENT_SUSPENDED",
    "AGENT_RESUMED",
    "ERROR",
]
_OF_EVENTS: Mapping[str, ObservedType] = {
    "intent": "INTENT",
    "plan": "PLAN",
    "plan_update": "PLAN_UPDATE",
    "item": "ITEM_STATUS_CHANGE",
    "thoughts": "THOUGHTS",
}
"""What events of the built-in protocols are; all others are an EVENT."""
_TITLE_KEYS = 3
"""Keys of a state update that its title names."""


@attrs.frozen(kw_only=True)
class Observed:
    """Something that happened in a turn, as people read it."""

    id: str
    """Unique in its session, and the same whenever it is read."""
    type: ObservedType
    title: str
    number: int
    """Of the record that it was made of, which is the cursor; 0 where it has none yet."""
    at: float | None
    """When that was written: Unix time in seconds; None where nobody knows, or where it still grows."""
    turn: str
    """The id of the outside message whose turn it belongs to."""
    parent: str
    """The id of the observation that it comes of: of a result its call; else that of the turn's message."""
    content: Any = None
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    is_whole: bool = True
    """False: it still grows, and the next one of this id takes its place."""


class ObservationView:
    """Makes observations of a session's records, in their order."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        """The text of the last answer, by its id."""
        self._told: set[str] = set()
        """Outcomes of that with a record of their own."""
        self._done: set[str] = set()
        """Calls whose results were observed already."""

    def read(self, item: Followed) -> Iterator[Observed]:
        """The observations that a record makes."""
        for each in self._made(item):
            identity, kind, title, content, *rest = each
            metadata = rest[0] if rest else {}
            parent = metadata.pop("parent", item.turn)
            yield Observed(
                id=identity,
                type=kind,
                title=title,
                number=item.number,
                at=item.at,
                turn=item.turn,
                parent=parent,
                content=content,
                metadata=metadata,
            )

    def _made(self, item: Followed) -> Iterator[tuple[Any, ...]]:
        match record := item.record:
            case Said():
                yield from self._of_said(record)
            case Finished(result=result):
                yield from self._of_results([result])
            case Told():
                self._told.add(record.id)
                yield _of_told(record)
            case Delivered(ids=ids):
                for each in ids:
                    if each in self._texts and each not in self._told:
                        yield each, "FINAL_RESPONSE", "Answer", self._texts[each]
            case _:
                yield from _of_turn(record, item.number)

    def _of_said(self, said: Said) -> Iterator[tuple[Any, ...]]:
        message = said.message
        if said.stop:
            self._texts, self._told = {message.id: message.text}, set()
            thoughts = "\n".join(
                part.text for part in message.parts if isinstance(part, Thinking) and part.text
            )
            if thoughts:
                yield f"{message.id}/thinking", "THOUGHTS", "Thoughts of the model", thoughts
            for call in message.tool_calls:
                content = {"name": call.name, "arguments": call.arguments}
                yield f"{call.id}/call", "TOOL_CALL", f"Calls {call.name}", content
        yield from self._of_results(message.tool_results)

    def _of_results(self, results: Iterable[ToolResult]) -> Iterator[tuple[Any, ...]]:
        for result in results:
            if result.call_id not in self._done:
                self._done.add(result.call_id)
                about: dict[str, Any] = {"status": result.status, "error": result.error}
                if result.native:  # a call in the text of an answer has no observation of its own
                    about["parent"] = f"{result.call_id}/call"
                if result.raised:
                    about["raised"] = result.raised
                title = f"{result.tool_name}: {result.status.replace('_', ' ')}"
                yield f"{result.call_id}/result", "TOOL_EXECUTION", title, result.content, about


def _of_told(told: Told) -> tuple[Any, ...]:
    data = None if told.data is None else json.loads(told.data)
    if told.kind == "reply":
        about: dict[str, Any] = {"data": data, "message_type": told.name}
        if told.reasoning is not None:
            about["reasoning"] = json.loads(told.reasoning)
        return told.id, "FINAL_RESPONSE", "Answer", told.text, about
    if told.kind == "route":
        return told.id, "ROUTE", f"Hands over to {told.name}", data
    kind = _OF_EVENTS.get(told.name, "EVENT")
    if kind == "THOUGHTS":
        return thoughts_id(told.id.partition("/event/")[0]), kind, "Thoughts", data
    title = told.name.replace("_", " ").capitalize()
    return told.id, kind, title, data, {"name": told.name}


def _of_turn(record: Record, number: int) -> Iterator[tuple[Any, ...]]:
    match record:
        case Ended(message_id=message_id, failed=str(kind)):
            about = {"kind": kind, "error": record.error}
            yield f"{message_id}/error", "ERROR", f"Failed: {kind}", record.words, about
        case Changed(changes=changes, action=action):
            yield f"state/{number}", "STATE_UPDATE", _state_title(changes, action), _readable(changes)
        case RolledBack(number=after):
            yield f"state/{number}", "STATE_UPDATE", "State rolled back", {"number": after}
        case SuspendedRecord(ids=ids):
            yield f"{ids[0]}/suspended", "AGENT_SUSPENDED", "Waits for people", list(ids)
        case Resumed(ids=ids):
            yield f"resumed/{number}", "AGENT_RESUMED", "Goes on", list(ids)


def _state_title(changes: Mapping[str, Any], action: str) -> str:
    """Return the name of the action, or else the keys that changed. Earlier versions recorded `<lambda>` as a name."""
    if action and action != "<lambda>":
        return action.replace("_", " ").strip().capitalize()
    more = f" and {len(changes) - _TITLE_KEYS} more" if len(changes) > _TITLE_KEYS else ""
    return f"State: {', '.join(itertools.islice(changes, _TITLE_KEYS))}{more}"


def _readable(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes with plans as plain data: a session's store holds a plan as JSON text."""
    return {key: _decoded(value) if key == PLAN else value for key, value in changes.items()}


def _decoded(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    except ValueError:
        return value


def thoughts_id(answer: str) -> str:
    """The id of the thoughts in an answer, while they grow and when they are whole."""
    return f"{answer}/thoughts"


_THINKS = re.compile(r"\s*<think>(.*?)(?:</think>|(?:<(?:/(?:t(?:h(?:i(?:n(?:k)?)?)?)?)?)?)?\Z)", re.DOTALL)
_MEMBER = re.compile(
    r'"(?:thoughts|tool_thought|thought)"\s*:\s*"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)'
)


def growing_thoughts(text: str) -> str:
    """The thoughts in the beginning of an answer: between `<think>` tags, or in the member of a JSON answer that holds them."""
    if (found := _THINKS.match(text)) is not None:
        return found[1]
    if (found := _MEMBER.search(text)) is None:
        return ""
    return json.loads(f'"{_without_half_pair(found[1])}"')  # type: ignore[no-any-return]


def _without_half_pair(quoted: str) -> str:
    """A JSON string without an escape at its end whose second half is still to come."""
    return re.sub(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z", "", quoted)
