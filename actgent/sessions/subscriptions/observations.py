"""Observations: readable events of a session (intent, plan, thoughts, tool calls, answers), derived from its records.

Observations are not stored. Equal records always give equal observations with equal ids.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import attrs

from actgent.journal.record_types import (
    AgentMessageRecord,
    CallFinishedRecord,
    DeliveryRecord,
    MessageEndRecord,
    OutcomeRecord,
    Record,
    ResumptionRecord,
    StateChangeRecord,
    StateRollbackRecord,
    SuspensionRecord,
)
from actgent.messages import Thinking, ToolResult
from actgent.protocols.plan import STATE as PLAN
from actgent.support.attrs_class_repr import FieldRepr

from .records_for_subscribers import FollowedRecord

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
"""Type of an observation."""
_OF_EVENTS: Mapping[str, ObservedType] = {
    "intent": "INTENT",
    "plan": "PLAN",
    "plan_update": "PLAN_UPDATE",
    "item": "ITEM_STATUS_CHANGE",
    "thoughts": "THOUGHTS",
}
"""Observation type of each event of the built-in protocols, by event name. Other events become EVENT observations."""
_TITLE_KEYS = 3
"""Maximum number of keys in the title of a state update."""


@attrs.frozen(kw_only=True, repr=False)
class Observed(FieldRepr):
    """One observation of a turn, for display to users."""

    id: str
    """Id of the observation, unique in its session and the same each time that the records are read."""
    type: ObservedType
    """Type of the observation."""
    title: str
    """Short description for a list, e.g. the name of the called tool."""
    number: int
    """Number of the observation's record: the cursor of a reader that has processed it; 0 for a partial observation."""
    at: float | None
    """Unix time in seconds of the observation's record; None if unknown, and for a partial observation."""
    turn: str
    """Id of the turn that the observation belongs to, which is the id of the answered message."""
    parent: str
    """Id of the parent observation: for a tool result that of the tool call, otherwise the id of the turn."""
    content: Any = None
    """Text or data of the observation."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """Further data of the observation, by name."""
    is_whole: bool = True
    """False for a partial observation, which the next observation with the same id replaces."""


class ObservationView:
    """Converts the records of a session to observations, in the order of the records."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        """Text of the last answer, by the answer's id."""
        self._told: set[str] = set()
        """Ids of outcomes of the last answer that have records of their own."""
        self._done: set[str] = set()
        """Ids of calls whose results were already observed."""

    def read(self, item: FollowedRecord) -> Iterator[Observed]:
        """Convert one record to observations for users. A record gives one, none or several observations.

        Records must be read in order, because later ones refer to earlier calls.
        """
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

    def _made(self, item: FollowedRecord) -> Iterator[tuple[Any, ...]]:
        match record := item.record:
            case AgentMessageRecord():
                yield from self._answer_observations(record)
            case CallFinishedRecord(result=result):
                yield from self._of_results([result])
            case OutcomeRecord():
                self._told.add(record.id)
                yield _outcome_observations(record)
            case DeliveryRecord(ids=ids):
                for each in ids:
                    if each in self._texts and each not in self._told:
                        yield each, "FINAL_RESPONSE", "Answer", self._texts[each]
            case _:
                yield from _of_turn(record, item.number)

    def _answer_observations(self, record: AgentMessageRecord) -> Iterator[tuple[Any, ...]]:
        message = record.message
        if record.stop:
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
                if result.native:  # only native calls have an observation; calls in text have none
                    about["parent"] = f"{result.call_id}/call"
                if result.raised:
                    about["raised"] = result.raised
                title = f"{result.tool_name}: {result.status.replace('_', ' ')}"
                yield f"{result.call_id}/result", "TOOL_EXECUTION", title, result.content, about


def _outcome_observations(outcome: OutcomeRecord) -> tuple[Any, ...]:
    data = None if outcome.data is None else json.loads(outcome.data)
    if outcome.kind == "reply":
        about: dict[str, Any] = {"data": data, "message_type": outcome.name}
        if outcome.reasoning is not None:
            about["reasoning"] = json.loads(outcome.reasoning)
        return outcome.id, "FINAL_RESPONSE", "Answer", outcome.text, about
    if outcome.kind == "route":
        return outcome.id, "ROUTE", f"Hands over to {outcome.name}", data
    kind = _OF_EVENTS.get(outcome.name, "EVENT")
    if kind == "THOUGHTS":
        return thoughts_id(outcome.id.partition("/event/")[0]), kind, "Thoughts", data
    title = outcome.name.replace("_", " ").capitalize()
    return outcome.id, kind, title, data, {"name": outcome.name}


def _of_turn(record: Record, number: int) -> Iterator[tuple[Any, ...]]:
    match record:
        case MessageEndRecord(message_id=message_id, failed=str(kind)):
            about = {"kind": kind, "error": record.error}
            yield f"{message_id}/error", "ERROR", f"Failed: {kind}", record.error_text, about
        case StateChangeRecord(changes=changes, action=action):
            yield f"state/{number}", "STATE_UPDATE", _state_title(changes, action), _expand_plans(changes)
        case StateRollbackRecord(number=after):
            yield f"state/{number}", "STATE_UPDATE", "State rolled back", {"number": after}
        case SuspensionRecord(ids=ids):
            yield f"{ids[0]}/suspended", "AGENT_SUSPENDED", "Waits for approvals", list(ids)
        case ResumptionRecord(ids=ids):
            yield f"resumed/{number}", "AGENT_RESUMED", "Resumes", list(ids)


def _state_title(changes: Mapping[str, Any], action: str) -> str:
    """Return the title of a state change: the name of the action, or the changed keys.

    Earlier versions recorded `<lambda>` as a name.
    """
    if action and action != "<lambda>":
        return action.replace("_", " ").strip().capitalize()
    more = f" and {len(changes) - _TITLE_KEYS} more" if len(changes) > _TITLE_KEYS else ""
    return f"State: {', '.join(itertools.islice(changes, _TITLE_KEYS))}{more}"


def _expand_plans(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return state changes with plans as plain data. The session's state stores a plan as JSON text."""
    return {key: _decode_value(value) if key == PLAN else value for key, value in changes.items()}


def _decode_value(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    except ValueError:
        return value


def thoughts_id(answer: str) -> str:
    """Return the observation id for the thoughts in an answer, partial or complete."""
    return f"{answer}/thoughts"


_THINKS = re.compile(r"\s*<think>(.*?)(?:</think>|(?:<(?:/(?:t(?:h(?:i(?:n(?:k)?)?)?)?)?)?)?\Z)", re.DOTALL)
_MEMBER = re.compile(
    r'"(?:thoughts|tool_thought|thought)"\s*:\s*"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)'
)


def growing_thoughts(text: str) -> str:
    """Return the thoughts in a partial answer: the text in `<think>` tags, or the thoughts field of a JSON answer."""
    if (found := _THINKS.match(text)) is not None:
        return found[1]
    if (found := _MEMBER.search(text)) is None:
        return ""
    return json.loads(f'"{_without_half_pair(found[1])}"')  # type: ignore[no-any-return]


def _without_half_pair(quoted: str) -> str:
    """Return a quoted JSON string without an incomplete surrogate pair (half of a character) at its end."""
    return re.sub(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z", "", quoted)
