"""Conversion of the server's JSON and events to the values that local handlers and callers receive."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any
from zlib import crc32

import attrs

from actgent.approvals import Approval
from actgent.errors.text_escaping import counted
from actgent.information_flow_labels import Label, text_of
from actgent.journal.record_types import REFUSED
from actgent.limits_and_schedules.schedule import Schedule
from actgent.messages import (
    NO_METADATA,
    NO_USAGE,
    CallProgress,
    Delivery,
    Event,
    Failure,
    Message,
    Part,
    Priority,
    Reply,
    Route,
    Sender,
    Text,
    Token,
    ToolCall,
    ToolResult,
    Usage,
    message_failure,
)
from actgent.sessions.session_handlers import HandlerKind
from actgent.sessions.subscriptions import Observed
from actgent.tools.tools_run_by_caller import QUESTION

from .error_conversion import failure_error
from .transport_interface import StreamEvent

JSONObject = Mapping[str, Any]
MAX_REMEMBERED_ANSWERS = 100
"""Number of the most recent answers whose delivered text is tracked."""
_USAGE = tuple(field.name for field in attrs.fields(Usage) if field.name != "children")


def to_seconds(text: str | None, default: float = 0.0) -> float:
    """Convert an RFC 3339 date to Unix time in seconds. Return `default` if the date is None."""
    return default if text is None else datetime.fromisoformat(text).timestamp()


def to_usage(data: JSONObject | None) -> Usage:
    """Convert the JSON of a token usage to a `Usage`. The usage of child sessions is `total` minus the session's own usage."""
    if data is None:
        return NO_USAGE
    own = Usage(**{name: data[name] for name in _USAGE if name in data})
    total = data.get("total")
    if total is None or all(total.get(name) == data.get(name) for name in _USAGE):
        return own
    total_usage = Usage(**{name: total[name] for name in _USAGE if name in total})
    return attrs.evolve(own, children=total_usage - own)


def to_approval(data: JSONObject) -> Approval:
    """Convert the JSON of an approval to an `Approval`."""
    return Approval(
        id=data["id"],
        session_id=data["session_id"],
        agent=data["agent"],
        owner=data.get("owner", ""),
        call_id=data["call_id"],
        tool_name=data["tool"],
        arguments=data["arguments"],
        question=data["question"],
        form=data["form"],
        risk=data.get("risk") or "",
        again=data.get("again", True),
        created_at=to_seconds(data["created_at"]),
        deadline=to_seconds(data["deadline"], math.inf),
        sources=_to_sources(data),
    )


def _to_sources(data: JSONObject) -> Mapping[str, str] | None:
    """Return the label (untrusted sources and readers) of each checked argument of an approval, as the journal encodes it.

    Return None if the call violates no data-flow policy.
    """
    readers = data.get("readers", {})
    return {
        name: text_of(Label(names, readers.get(name))) for name, names in data.get("labels", {}).items()
    } or None


def _to_via(data: JSONObject) -> str:
    """Read the members `sources` and `readers` of the JSON of a message, result, reply or event.

    Return them as one text, the stored form of a label in `via` fields.
    """
    return text_of(to_label(data))


def to_label(data: JSONObject) -> Label:
    """Return the label (untrusted sources and readers) in the JSON of a session, message, result, reply or event."""
    return Label(data.get("sources", ()), data.get("readers"))


def to_caller_call(data: JSONObject, *, agent: str, session_id: str) -> Approval:
    """Convert the JSON of an open tool call that the API client executes itself to an `Approval`.

    The client answers the approval with the result of the call.
    """
    return Approval(
        id=data["id"],
        session_id=session_id,
        agent=agent,
        call_id=data["call_id"],
        tool_name=data["tool"],
        arguments=data["arguments"],
        question=QUESTION,
        again=False,
        deadline=to_seconds(data["deadline"], math.inf),
        for_caller=True,
    )


def to_result(data: JSONObject) -> ToolResult:
    """Convert the JSON of a tool result to a `ToolResult`."""
    return ToolResult(
        id=data.get("id", ""),
        call_id=data["call_id"],
        tool_name=data["tool"],
        status=data["status"],
        content=data["content"],
        error=data["error"],
        via=_to_via(data),
        started_at=to_seconds(data.get("started_at")),
        ended_at=to_seconds(data.get("ended_at")),
    )


def to_schedule(data: JSONObject) -> Schedule:
    """Convert the JSON of a schedule to a `Schedule`."""
    return Schedule(
        id=data["id"],
        description=data["input"],
        at=to_seconds(data["due"]),
        cron=data["cron"] or "",
        zone=data["zone"],
        priority=Priority.named(data["priority"]),
        metadata=data.get("metadata") or NO_METADATA,
    )


def to_observed(data: JSONObject) -> Observed:
    """Convert the JSON of an observation to an `Observed`. Unknown fields are ignored."""
    known = {field.name: data[field.name] for field in attrs.fields(Observed) if field.name in data}
    return Observed(**{**known, "at": None if data["at"] is None else to_seconds(data["at"])})


def to_reply(outcome: JSONObject) -> Reply:
    """Convert the JSON of a reply, or of a message's outcome, to a `Reply`."""
    return Reply(
        id=outcome.get("id") or "",
        text=outcome.get("text") or "",
        data=outcome.get("data"),
        message_type=outcome.get("message_type"),
        reasoning=outcome.get("reasoning"),
        usage=to_usage(outcome.get("usage")),
        via=_to_via(outcome),
    )


def to_message(session_id: str, data: JSONObject) -> Message:
    """Convert the JSON of a history message to a `Message`. Pictures and files become text parts without their bytes."""
    return Message(
        id=data["message_id"],
        session_id=session_id,
        sender=Sender(data["sender"]["name"], data["sender"]["kind"]),
        parts=tuple(_to_part(part) for part in data["parts"]),
        priority=Priority.named(data["priority"]),
        correlation_id=data.get("turn"),
        created_at=to_seconds(data.get("at")),
        metadata=data.get("metadata") or NO_METADATA,
        via=_to_via(data),
    )


def _to_part(data: JSONObject) -> Part:
    """Convert the JSON of a message part to a `Part`. Pictures and files become text."""
    match data["type"]:
        case "text":
            return Text(data["text"])
        case "call":
            return ToolCall(data["name"], data["arguments"], id=data["id"])
        case "result":
            return to_result(data)
        case kind:
            where = data.get("url") or counted(data.get("bytes", 0), "byte")
            return Text(f"[{kind} {data.get('name', '')} {data['media_type']}: {where}]".replace("  ", " "))


# --- events ------------------------------------------------------------------------------

HANDLER_EVENTS = frozenset(["reply", "event", "result", "route", "approval", "failed"])
"""Names of the events that are delivered to handlers. `failed` means `ended` events with a failure."""
CONTEXT_EVENTS = frozenset(["turn", "answer"])
"""Names of the events that `DeliveryDecoder` reads but that are not delivered to handlers."""
PARTIAL_EVENTS: Mapping[HandlerKind, frozenset[str]] = {
    "token": frozenset(["token", "growing"]),
    "tool_progress": frozenset(["progress"]),
}
"""Names of the events of partial answers and tool progress, by the kind of handler that receives them."""


def is_for_handlers(name: str, data: JSONObject) -> bool:
    """Return True if an event is delivered to handlers. Rejections of messages are not."""
    return name in HANDLER_EVENTS or (
        name == "ended" and data["failed"] is not None and not is_rejection(name, data)
    )


def is_rejection(name: str, data: JSONObject) -> bool:
    """Return True if an event reports that the session has rejected a message, which the sender may send again."""
    return name == "ended" and data["failed"] == REFUSED


@attrs.define(eq=False)
class _AnswerProgress:
    """Length and checksum of the delivered text of one partial answer."""

    server_attempt: int
    """Attempt number in the last text event of the server."""
    attempt: int
    """Attempt number that handlers receive. The number increases by 1 when a new text replaces the delivered text."""
    length: int = 0
    """Number of characters of the answer that were delivered to handlers."""
    digest: int = 0
    """CRC-32 of the delivered text; detects a replacement text of the same length."""


@attrs.define(eq=False)
class TokenDeduplicator:
    """Converts partial answers to tokens that contain each part of the text only once.

    It tracks several answers, because the next answer may start before the previous one is complete.
    """

    _answers: dict[str, _AnswerProgress] = attrs.field(factory=dict)
    """Progress of each partial answer, by reply id."""

    def add(self, data: JSONObject) -> Token | None:
        """Return the text of a partial answer event that was not delivered yet as a `Token`; None if it has no new text."""
        reply_id, attempt, begin, text = data["reply_id"], data["attempt"], data["begin"], data["text"]
        progress = self._answers.get(reply_id)
        if progress is None or attempt != progress.server_attempt:
            progress = self._begin(reply_id, attempt, progress)
        if begin > progress.length:
            return None  # text is missing: the server sends the whole answer again, or its record
        known = text[: progress.length - begin]
        if begin == 0 and progress.length and _digest(known) != progress.digest:
            progress, known = self._begin(reply_id, attempt, progress), ""
        new = text[len(known) :]
        if not new:
            return None
        progress.length += len(new)
        progress.digest = _digest(new, progress.digest)
        return Token(new, reply_id, progress.attempt)

    def complete(self, reply_id: str, text: str) -> Token | None:
        """Return the part of a complete answer that was not delivered yet as a `Token`; None if all text was delivered."""
        progress = self._answers.get(reply_id)
        attempt = 0 if progress is None else progress.server_attempt
        return self.add({"reply_id": reply_id, "attempt": attempt, "begin": 0, "text": text})

    def _begin(self, reply_id: str, server_attempt: int, former: _AnswerProgress | None) -> _AnswerProgress:
        """Start a new attempt of an answer; `former` is its previous attempt, None for the first one.

        Above `MAX_REMEMBERED_ANSWERS` answers, the oldest one is dropped.
        """
        attempt = server_attempt if former is None else max(server_attempt, former.attempt + 1)
        progress = self._answers[reply_id] = _AnswerProgress(server_attempt, attempt)
        if len(self._answers) > MAX_REMEMBERED_ANSWERS:
            del self._answers[next(iter(self._answers))]
        return progress


def _digest(text: str, before: int = 0) -> int:
    """Return the CRC-32 checksum of a text. `before` is the checksum of the text that precedes it."""
    return crc32(text.encode("utf-8", "surrogatepass"), before)


@attrs.define(eq=False)
class DeliveryDecoder:
    """Converts the events of a session to the deliveries (replies, results, failures and others) that handlers receive."""

    usage: Usage = NO_USAGE
    """Token usage of the current turn so far."""
    tokens: TokenDeduplicator = attrs.field(factory=TokenDeduplicator)
    """Converter of partial answers to tokens."""
    _completed: deque[str] = attrs.field(factory=lambda: deque[str](maxlen=MAX_REMEMBERED_ANSWERS))
    """Reply ids of the last complete answers. Later events of partial answers with these ids are dropped."""

    def decode(self, event: StreamEvent) -> Iterator[Delivery]:
        """Convert one event to deliveries for handlers, usually one. Yield nothing if the event is not for handlers."""
        data = event.data
        if event.name == "turn" and data["phase"] == "started" and not data.get("joins"):
            self.usage = NO_USAGE
        elif event.name == "answer":
            self.usage += to_usage(data["usage"])
            self._completed.append(data["message_id"])
        elif event.name in ("token", "growing"):
            if data["reply_id"] not in self._completed and (token := self.tokens.add(data)) is not None:
                yield token
        elif event.name == "reply":
            is_last = bool(self._completed) and data["id"] == self._completed[-1]
            if is_last and (token := self.tokens.complete(data["id"], data["text"])) is not None:
                yield token
            yield attrs.evolve(to_reply(data), usage=self.usage)
        elif event.name == "ended":
            if is_for_handlers(event.name, data):
                yield _to_failure(data)
        elif (make := _CONVERTERS.get(event.name)) is not None:
            yield make(data)


def _to_failure(data: JSONObject) -> Failure:
    """Convert the JSON data of an `ended` event of a failed message to a `Failure`."""
    error, message_id = data["error"] or {}, data["message_id"]
    kind = data["failed"]
    raised = failure_error(error.get("class", ""), error.get("text", ""), kind)
    return message_failure(message_id, kind, raised)


_CONVERTERS: Mapping[str, Callable[[JSONObject], Delivery]] = {
    "result": to_result,
    "approval": to_approval,
    "event": lambda data: Event(id=data["id"], name=data["name"], data=data["data"], via=_to_via(data)),
    "route": lambda data: Route(id=data["id"], action=data["action"], data=data["data"], via=_to_via(data)),
    "progress": lambda data: CallProgress(
        call_id=data["call_id"],
        tool_name=data["tool"],
        done=data["done"],
        total=data["total"],
        text=data["text"],
    ),
}
