"""What a server says, as the values that handlers and callers get in process."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any
from zlib import crc32

import attrs

from actgent.approvals import Approval
from actgent.control.schedule import Schedule
from actgent.errors.printable import counted
from actgent.journal.records import REFUSED
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
from actgent.sessions.following import Observed
from actgent.sessions.handlers import HandlerKind

from .problems import failure_error
from .transport import StreamEvent

Data = Mapping[str, Any]
REMEMBERED = 100
"""Answers of which nothing grows any more."""
_USAGE = tuple(field.name for field in attrs.fields(Usage) if field.name != "children")


def to_seconds(text: str | None, otherwise: float = 0.0) -> float:
    """Unix time of an RFC 3339 date."""
    return otherwise if text is None else datetime.fromisoformat(text).timestamp()


def to_usage(data: Data | None) -> Usage:
    """Return what model calls took; what sessions took that worked for this one is the difference of its total."""
    if data is None:
        return NO_USAGE
    own = Usage(**{name: data[name] for name in _USAGE if name in data})
    total = data.get("total")
    if total is None or all(total.get(name) == data.get(name) for name in _USAGE):
        return own
    whole = Usage(**{name: total[name] for name in _USAGE if name in total})
    return attrs.evolve(own, children=whole - own)


def to_approval(data: Data) -> Approval:
    """A call that waits for a person."""
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
    )


def to_result(data: Data) -> ToolResult:
    """Return what came of a call."""
    return ToolResult(
        id=data.get("id", ""),
        call_id=data["call_id"],
        tool_name=data["tool"],
        status=data["status"],
        content=data["content"],
        error=data["error"],
    )


def to_schedule(data: Data) -> Schedule:
    """Something that a session is to be told at a time."""
    return Schedule(
        id=data["id"],
        description=data["description"],
        at=to_seconds(data["due"]),
        cron=data["cron"] or "",
        zone=data["zone"],
        priority=Priority.named(data["priority"]),
        metadata=data.get("metadata") or NO_METADATA,
    )


def to_observed(data: Data) -> Observed:
    """An observation."""
    known = {field.name: data[field.name] for field in attrs.fields(Observed) if field.name in data}
    return Observed(**{**known, "at": None if data["at"] is None else to_seconds(data["at"])})


def to_reply(outcome: Data) -> Reply:
    """The last reply of a turn."""
    return Reply(
        id=outcome.get("id") or "",
        text=outcome.get("text") or "",
        data=outcome.get("data"),
        message_type=outcome.get("message_type"),
        reasoning=outcome.get("reasoning"),
        usage=to_usage(outcome.get("usage")),
    )


def to_message(session_id: str, data: Data) -> Message:
    """A message of a session's history; the bytes of pictures and files stay on the server, and their parts are text."""
    return Message(
        id=data["message_id"],
        session_id=session_id,
        sender=Sender(data["sender"]["name"], data["sender"]["kind"]),
        parts=tuple(_to_part(part) for part in data["parts"]),
        priority=Priority.named(data["priority"]),
        correlation_id=data.get("turn"),
        created_at=to_seconds(data.get("at")),
        metadata=data.get("metadata") or NO_METADATA,
    )


def _to_part(data: Data) -> Part:
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

HEARD = frozenset(["reply", "event", "result", "route", "approval", "failed"])
"""The events of records that some kind of handler hears; `failed` are those of `ended` that tell a failure."""
ALONG = frozenset(["turn", "answer"])
"""The events that `Deliveries` reads besides, for what it makes of those."""
GROWING: Mapping[HandlerKind, frozenset[str]] = {
    "token": frozenset(["token", "growing"]),
    "tool_progress": frozenset(["progress"]),
}
"""The events without a record, by the handlers that hear them."""


def is_heard(name: str, data: Data) -> bool:
    """Return True for the event of a record that some kind of handler hears."""
    return name in HEARD or (name == "ended" and data["failed"] is not None and not is_refusal(name, data))


def is_refusal(name: str, data: Data) -> bool:
    """Return True for the event of a message that never got in: its sender is told of that, and may send it again."""
    return name == "ended" and data["failed"] == REFUSED


@attrs.define(eq=False)
class _Told:
    """How much of one answer was told."""

    counted: int
    """Its attempt, as the server counts."""
    attempt: int
    """Rises with each text that voids the former one."""
    shown: int = 0
    digest: int = 0
    """Of that text, by which another text of the same length is known."""


@attrs.define(eq=False)
class GrownText:
    """How much of the last answers was told: the next one may grow before the former one is known to be whole."""

    _answers: dict[str, _Told] = attrs.field(factory=dict)
    """By their ids."""

    def take(self, data: Data) -> Token | None:
        """Return what is new of an answer that grows; None where nothing is."""
        reply_id, attempt, begin, text = data["reply_id"], data["attempt"], data["begin"], data["text"]
        told = self._answers.get(reply_id)
        if told is None or attempt != told.counted:
            told = self._begin(reply_id, attempt, told)
        if begin > told.shown:
            return None  # something is missing: all of it comes once more, or the record
        known = text[: told.shown - begin]
        if begin == 0 and told.shown and _digest(known) != told.digest:
            told, known = self._begin(reply_id, attempt, told), ""
        new = text[len(known) :]
        if not new:
            return None
        told.shown += len(new)
        told.digest = _digest(new, told.digest)
        return Token(new, reply_id, told.attempt)

    def complete(self, reply_id: str, text: str) -> Token | None:
        """Return what was not told of an answer that is whole; None where all was."""
        told = self._answers.get(reply_id)
        attempt = 0 if told is None else told.counted
        return self.take({"reply_id": reply_id, "attempt": attempt, "begin": 0, "text": text})

    def _begin(self, reply_id: str, counted: int, former: _Told | None) -> _Told:
        attempt = counted if former is None else max(counted, former.attempt + 1)
        told = self._answers[reply_id] = _Told(counted, attempt)
        if len(self._answers) > REMEMBERED:
            del self._answers[next(iter(self._answers))]
        return told


def _digest(text: str, before: int = 0) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"), before)


@attrs.define(eq=False)
class Deliveries:
    """Makes of a session's events what handlers get, in their order."""

    usage: Usage = NO_USAGE
    """Of the turn so far."""
    grown: GrownText = attrs.field(factory=GrownText)
    _whole: deque[str] = attrs.field(factory=lambda: deque[str](maxlen=REMEMBERED))
    """The ids of the last answers that are whole: a server that is behind its journal may still tell how they grew."""

    def read(self, event: StreamEvent) -> Iterator[Delivery]:
        """Return what an event tells: mostly one thing; nothing where handlers hear nothing of it."""
        data = event.data
        if event.name == "turn" and data["phase"] == "started" and not data.get("joins"):
            self.usage = NO_USAGE
        elif event.name == "answer":
            self.usage += to_usage(data["usage"])
            self._whole.append(data["message_id"])
        elif event.name in ("token", "growing"):
            if data["reply_id"] not in self._whole and (token := self.grown.take(data)) is not None:
                yield token
        elif event.name == "reply":
            is_last = bool(self._whole) and data["id"] == self._whole[-1]
            if is_last and (token := self.grown.complete(data["id"], data["text"])) is not None:
                yield token
            yield attrs.evolve(to_reply(data), usage=self.usage)
        elif event.name == "ended":
            if is_heard(event.name, data):
                yield _to_failure(data)
        elif (make := _PLAIN.get(event.name)) is not None:
            yield make(data)


def _to_failure(data: Data) -> Failure:
    error, message_id = data["error"] or {}, data["message_id"]
    kind = data["failed"]
    raised = failure_error(error.get("class", ""), error.get("words", ""), kind)
    return message_failure(message_id, kind, raised)


_PLAIN: Mapping[str, Callable[[Data], Delivery]] = {
    "result": to_result,
    "approval": to_approval,
    "event": lambda data: Event(id=data["id"], name=data["name"], data=data["data"]),
    "route": lambda data: Route(id=data["id"], action=data["action"], data=data["data"]),
    "progress": lambda data: CallProgress(
        call_id=data["call_id"],
        tool_name=data["tool"],
        done=data["done"],
        total=data["total"],
        text=data["text"],
    ),
}
