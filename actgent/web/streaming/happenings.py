"""What happens in a session, as clients read it: events made of its numbered records, and what a message came to.

Mostly a record makes one event, which has its number; records that only serve recovery make none. Whoever reads on
behind a number has to know whose turn it is there: `teller_at` finds it.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from actgent.approvals import word_for
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.journal.records import (
    REFUSED,
    Accepted,
    ActionFailed,
    Appended,
    Changed,
    Closed,
    Decided,
    Delivered,
    Ended,
    Finished,
    Fired,
    PersonAsked,
    Rated,
    Record,
    Resumed,
    RolledBack,
    Said,
    Scheduled,
    Started,
    SuspendedRecord,
    Told,
    Unscheduled,
)
from actgent.messages import NO_USAGE, Message, ToolResult, Usage
from actgent.support.quick_init import quick_init
from actgent.web.routes.views import (
    MAX_CONTENT,
    MediaIds,
    media_ids,
    of_approval,
    of_call,
    of_message,
    of_rating,
    of_result,
    of_usage,
    to_date,
)

PAGE = 200
"""Records that are read at a time."""
Data = dict[str, Any]


@quick_init
@attrs.frozen(kw_only=True)
class Happening:
    """One event of a session's stream."""

    number: int
    """Of its record: the cursor behind it."""
    name: str
    data: Data


@attrs.define
class Teller:
    """Makes events of the records of one session, in their order."""

    turn: str | None = None
    """The outside message of the turn that the next record belongs to."""
    is_whole: bool = False
    """True: results of tools are told however long they are."""
    shows_foreign: bool = False
    """True: for readers whose scope shows the words of exceptions that are not ours."""
    _answer: Message | None = None
    """The last answer of the turn."""
    _known: set[str] = attrs.field(factory=set)
    """Ids of outcomes, and of calls with results, that were told in the turn."""

    def tell(self, number: int, record: Record, at: float = 0.0) -> list[Happening]:
        """The events of a record: mostly one; none of what only serves recovery."""
        if type(record) is Appended and not record.joins:
            self.turn = record.message_id
        told = self._rows_of(record, number)
        written_at = record.at if type(record) is Appended and record.at else at or _time_of(record)
        data = {"turn": self.turn, "at": to_date(written_at)}
        if type(record) is Ended:
            self._end(record)
        if len(told) == 1:  # as nearly always
            name, more = told[0]
            return [Happening(number=number, name=name, data={**data, **more})]
        return [Happening(number=number, name=name, data={**data, **more}) for name, more in told]

    def pass_over(self, number: int, record: Record) -> None:
        """Go on behind a record whose events nobody is told."""
        if type(record) is Ended:
            self._end(record)
        elif type(record) is not Accepted:  # which no other event depends on
            self.tell(number, record)

    def _end(self, record: Ended) -> None:
        if record.message_id == self.turn:
            self.turn, self._answer = None, None
            self._known.clear()

    def tell_all(self, first: int, records: Iterable[Record], at: float = 0.0) -> list[Happening]:
        """The events of records that follow each other, the first of which has this number."""
        return [
            each for number, record in enumerate(records, first) for each in self.tell(number, record, at)
        ]

    def _rows_of(self, record: Record, number: int) -> list[tuple[str, Data]]:
        if type(record) is Said:
            return self._said(record, number)
        if type(record) is Accepted:
            return [("message", of_message(record.message, media_ids(number, record)))]
        if type(record) is Delivered:
            return self._delivered(record)
        if type(record) is Told:
            self._known.add(record.id)
        elif type(record) is Finished:
            self._known.add(record.result.call_id)
            return [("result", self._result(record.result, media_ids(number, record)))]
        row = _ROWS.get(type(record))
        return [] if row is None else [row(record)]

    def _said(self, record: Said, number: int) -> list[tuple[str, Data]]:
        """An answer of the model, or results that were not told one by one; notes are told by what they are about."""
        message = record.message
        if message.sender.kind == "assistant":
            self._answer = message
            return [_answer(record)]
        new = [each for each in message.tool_results if each.call_id not in self._known]
        return [("result", self._result(each, media_ids(number, record))) for each in new]

    def _result(self, result: ToolResult, ids: MediaIds) -> Data:
        most = sys.maxsize if self.is_whole else MAX_CONTENT
        return of_result(result, ids, most=most, shows_foreign=self.shows_foreign)

    def _delivered(self, record: Delivered) -> list[tuple[str, Data]]:
        """A reply that is just the words of the answer: handlers got it, and nothing else says so."""
        answer = self._answer
        if answer is None or answer.id not in record.ids or answer.id in self._known:
            return []
        self._known.add(answer.id)
        nothing = {"data": None, "message_type": None, "reasoning": None}
        return [("reply", {"id": answer.id, "text": answer.text, **nothing})]


def _time_of(record: Record) -> float:
    if isinstance(record, Accepted | Said):
        return record.message.created_at
    return record.at if isinstance(record, Decided) else 0.0


def _answer(record: Said) -> tuple[str, Data]:
    message = record.message
    data = {
        "message_id": message.id,
        "text": message.text,
        "calls": [of_call(call) for call in message.tool_calls],
        "stop": record.stop,
        "model": record.model,
        "usage": of_usage(record.usage),
        "seconds": record.seconds,
        "cut": message.cut,
    }
    return "answer", data


def _told(record: Told) -> tuple[str, Data]:
    """A reply, an event or a route, as handlers get it."""
    data = None if record.data is None else json.loads(record.data)
    if record.kind == "reply":
        return "reply", {
            "id": record.id,
            "text": record.text,
            "data": data,
            "message_type": record.name or None,
            "reasoning": None if record.reasoning is None else json.loads(record.reasoning),
        }
    named = "name" if record.kind == "event" else "action"
    return record.kind, {"id": record.id, named: record.name, "data": data}


def _ended(record: Ended) -> tuple[str, Data]:
    error = {"class": record.error, "words": record.words} if record.error else None
    return "ended", {"message_id": record.message_id, "failed": record.failed, "error": error}


def _decision(record: Decided) -> tuple[str, Data]:
    return "decision", {"id": record.approval_id, "word": word_for(record.decision), "by": record.by}


def _schedule(record: Scheduled) -> tuple[str, Data]:
    data = {"description": record.description, "due": to_date(record.at), "cron": record.cron or None}
    return "schedule", {"action": "set", "id": record.schedule_id, **data}


def _fired(record: Fired) -> tuple[str, Data]:
    data = {"message_id": record.message_id or None, "following": to_date(record.following)}
    return "schedule", {"action": "fired", "id": record.schedule_id, **data}


_ROWS: Mapping[type, Callable[[Any], tuple[str, Data]]] = {
    Appended: lambda record: (
        "turn",
        {"phase": "started", "message_id": record.message_id, "joins": record.joins},
    ),
    SuspendedRecord: lambda record: ("turn", {"phase": "suspended", "waits_for": list(record.ids)}),
    Resumed: lambda record: ("turn", {"phase": "resumed", "came": list(record.ids)}),
    Told: _told,
    Started: lambda record: ("tools", {"call_ids": list(record.call_ids)}),
    PersonAsked: lambda record: ("approval", of_approval(record.approval)),
    Decided: _decision,
    Changed: lambda record: ("state", {"changes": dict(record.changes), "action": record.action}),
    RolledBack: lambda record: ("state", {"rolled_back_to": record.number}),
    ActionFailed: lambda record: ("state", {"action": record.action, "failed": True}),
    Scheduled: _schedule,
    Fired: _fired,
    Unscheduled: lambda record: ("schedule", {"action": "removed", "id": record.schedule_id}),
    Ended: _ended,
    Rated: lambda record: ("feedback", of_rating(record)),
    Closed: lambda _: ("closed", {}),
}


_ONLY_ENDED, _FAILED = ("ended",), ("ended", "failed")
_ANSWER, _RESULT = ("answer",), ("result",)
_NAMES: Mapping[type, tuple[str, ...]] = {
    Accepted: ("message",),
    Delivered: ("reply",),
    Finished: ("result",),
    Appended: ("turn",),
    SuspendedRecord: ("turn",),
    Resumed: ("turn",),
    Started: ("tools",),
    PersonAsked: ("approval",),
    Decided: ("decision",),
    Changed: ("state",),
    RolledBack: ("state",),
    ActionFailed: ("state",),
    Scheduled: ("schedule",),
    Fired: ("schedule",),
    Unscheduled: ("schedule",),
    Rated: ("feedback",),
    Closed: ("closed",),
}


def event_names(record: Record) -> tuple[str, ...]:
    """The events that may be made of a record, by name; `failed` is one that tells a failure, too."""
    kind = type(record)  # of each record of each session that is read: no call more than it takes
    if kind in _NAMES:
        return _NAMES[kind]
    if type(record) is Said:
        return _ANSWER if record.message.sender.kind == "assistant" else _RESULT
    if type(record) is Ended:
        return _ONLY_ENDED if record.failed is None else _FAILED
    return (record.kind,) if type(record) is Told else ()


def to_event(record: Record) -> tuple[str, Data]:
    """The event of one record that says all by itself: a call that waits for a person, a decision, an end.

    Raises:
        KeyError: it is another one.
    """
    return _ROWS[type(record)](record)


async def teller_at(journal: Journal, key: SessionKey, number: int, *, shows_foreign: bool = False) -> Teller:
    """Return what tells the records of a session behind this one: it knows the turn in the middle of which that may be."""
    teller, last = Teller(shows_foreign=shows_foreign), number
    while last > 0:
        start = max(0, last - PAGE)
        records = await journal.read(key.session_id, agent=key.agent, after=start, limit=last - start)
        known = records[: last - start]  # a step is read whole
        begins = [place for place, each in enumerate(known) if type(each) is Appended and not each.joins]
        if not begins and start:
            last = start
            continue
        first = start + (begins[-1] if begins else 0)
        for each in await journal.read(key.session_id, agent=key.agent, after=first, limit=number - first):
            first += 1
            if first <= number:
                teller.tell(first, each)
        break
    return teller


# --- what a message came to ----------------------------------------------------------------


@attrs.define
class MessageStory:
    """What is known of one message from its records."""

    message_id: str
    status: str = "waiting"
    reply: Data = attrs.field(factory=dict)
    """The last reply, or the words of the last answer."""
    ended: Ended | None = None
    number: int = 0
    """Of the record with which it was accepted; 0 while that is not known."""
    accepted: Accepted | None = None
    usage: Usage = NO_USAGE
    """Of its turn so far."""
    last: int = 0
    """The number of the last record that was taken."""
    _turn: str = ""
    _tools: dict[str, str] = attrs.field(factory=dict)
    """Of its calls that wait for people, by the ids of their approvals."""
    _waits_for: tuple[str, ...] = ()
    """What its turn is suspended for, and nobody has decided."""

    def take(self, number: int, record: Record) -> None:
        """Go on with a record behind those that were taken before; one that was taken is left out."""
        if number <= self.last:
            return
        self.last = number
        if isinstance(record, Accepted) and record.message.id == self.message_id:
            self.number, self.accepted, self.status, self.ended = number, record, "waiting", None
        elif isinstance(record, Appended):
            self._begin(record)
        elif isinstance(record, Ended) and record.message_id == self.message_id:
            self._end(record)
        elif self.is_mine:
            self._go_on(record)

    def _end(self, record: Ended) -> None:
        if record.failed == REFUSED:  # it never got in, which its sender was told; it may be sent again
            self.number, self.accepted, self.status = 0, None, "waiting"
        else:
            self.status, self.ended = ("answered" if record.failed is None else "failed"), record

    @property
    def is_over(self) -> bool:
        """True if it has ended."""
        return self.status in ("answered", "failed")

    @property
    def is_settled(self) -> bool:
        """True if it has ended, or waits for people: nothing comes of it by itself."""
        return self.is_over or self.status == "suspended"

    @property
    def is_mine(self) -> bool:
        """True while the turn that runs answers it."""
        return self._turn != "" and not self.is_over

    def _begin(self, record: Appended) -> None:
        if not record.joins and not record.again:
            self._turn = ""
        if record.message_id == self.message_id:
            self._turn, self.status = self.message_id, "working"
        elif record.joins and self._turn:
            self._turn = record.message_id

    def _go_on(self, record: Record) -> None:
        if isinstance(record, PersonAsked):
            self._tools[record.approval.id] = record.approval.tool_name
        elif isinstance(record, SuspendedRecord):
            self._wait_for(record.ids)
        elif isinstance(record, Decided):
            self._wait_for(tuple(each for each in self._waits_for if each != record.approval_id))
        elif isinstance(record, Resumed):
            self._wait_for(())
        elif isinstance(record, Said):
            self._say(record)
        elif isinstance(record, Told) and record.kind == "reply":
            self.reply = _told(record)[1]

    def _say(self, said: Said) -> None:
        self.usage += said.usage
        if said.message.sender.kind == "assistant":
            self.reply = {"id": said.message.id, "text": said.message.text}

    def _wait_for(self, ids: tuple[str, ...]) -> None:
        self._waits_for = ids
        self.status = "suspended" if ids else "working"

    def document(self, key: SessionKey) -> Data:
        """The same for a client."""
        outcome = None
        if self.ended is not None:
            reply = self.reply if self.ended.failed is None else {}
            told = {name: reply.get(name) for name in ("id", "text", "data", "message_type", "reasoning")}
            outcome = {
                **told,
                "usage": of_usage(self.usage),
                "failed": self.ended.failed,
                "error": _ended(self.ended)[1]["error"],
            }
        return {
            "message_id": self.message_id,
            "session_id": key.session_id,
            "agent": key.agent,
            "status": self.status,
            "cursor": max(0, self.number - 1),
            "waits_for": [{"id": each, "tool": self._tools.get(each, "")} for each in self._waits_for],
            "outcome": outcome,
        }


async def find_message(journal: Journal, key: SessionKey, message_id: str, last: int) -> MessageStory | None:
    """Return what is known of a message, from the records of its session; None where it was never accepted, or refused.

    Args:
        journal: Where they are.
        key: The session.
        message_id: The message.
        last: The number of the session's last record; it is looked for from there.
    """
    pages: list[tuple[int, Sequence[Record]]] = []
    number = last
    while number > 0:
        start = max(0, number - PAGE)
        records = await journal.read(key.session_id, agent=key.agent, after=start, limit=number - start)
        pages.append((start + 1, records[: number - start] if pages else records))
        if any(isinstance(each, Accepted) and each.message.id == message_id for each in records):
            story = _story(message_id, pages)
            return None if story.accepted is None else story
        number = start
    return None


def _story(message_id: str, pages: Sequence[tuple[int, Sequence[Record]]]) -> MessageStory:
    story = MessageStory(message_id)
    for first, records in reversed(pages):
        for number, record in enumerate(records, first):
            story.take(number, record)
    return story
