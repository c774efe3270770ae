"""Conversion of the journal records of a session to events for clients, and the status of one message.

Most records become one event with the number of the record. Records that only serve recovery become no event. Events name
the turn that they belong to, so a reader that starts after a cursor needs an encoder from `encoder_at`.
"""

import sys
from collections.abc import Iterable, Sequence

import attrs

from actgent.approvals import Approval
from actgent.information_flow_labels import TRUSTED, Label, label_of
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import (
    REFUSED,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    CallFinishedRecord,
    DeliveryRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    OutcomeRecord,
    Record,
    ResumptionRecord,
    SourceLiftRecord,
    SuspensionRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import NO_USAGE, Message, ToolResult, Usage
from actgent.runtime.subscriptions.session_follower import page_ranges_before
from actgent.support.fast_attrs_constructors import fast_init
from actgent.web import json_response_types
from actgent.web.routes.json_serializers import (
    MAX_CONTENT_CHARACTERS,
    MediaIds,
    media_ids,
    of_caller_call,
    of_label,
    of_message,
    of_result,
    of_usage,
    to_date,
)

from .session_event_types import EVENT_ROWS, Data, answer_event, of_message_end, outcome_event, to_event

PAGE_SIZE = 200
"""Number of records read from the journal at a time."""


@fast_init
@attrs.frozen(kw_only=True)
class SessionEvent:
    """One event in the event stream of a session: record number, name and JSON data."""

    number: int
    """Number of the journal record from which the event was made. Clients resume the stream after this number."""
    name: str
    data: Data


@attrs.define
class EventEncoder:
    """Converts the journal records of one session to events for clients. Records must be passed in order."""

    turn: str | None = None
    """Id of the message that started the turn at the last record; None between turns."""
    is_whole: bool = False
    """True to return complete tool results. False truncates them to `MAX_CONTENT_CHARACTERS` characters."""
    shows_exception_texts: bool = False
    """True to include the messages of exceptions raised by user code or libraries."""
    _answer: Message | None = None
    """Last model answer of the current turn; None before the first answer."""
    _encoded: set[str] = attrs.field(factory=set)
    """Ids of replies, events, routes and tool results of the current turn that were already converted to events."""

    def encode(self, number: int, record: Record, at: float = 0.0) -> list[SessionEvent]:
        """Return the events for a record; empty if the record is only needed for recovery.

        `at` is the time at which the record was written, as Unix time in seconds; 0 if unknown.
        """
        if type(record) is MessageAppendedRecord and not record.joins:
            self.turn = record.message_id
        rows = self._rows_of(record, number)
        data = {"turn": self.turn, "at": to_date(_event_time(record, at))}
        if type(record) is MessageEndRecord:
            self._end(record)
        if len(rows) == 1:  # the usual case
            name, more = rows[0]
            return [SessionEvent(number=number, name=name, data={**data, **more})]
        return [SessionEvent(number=number, name=name, data={**data, **more}) for name, more in rows]

    def skip(self, number: int, record: Record) -> None:
        """Process a record without returning its events, because the events of later records may depend on this record."""
        if type(record) is MessageEndRecord:
            self._end(record)
        elif type(record) is not MessageAcceptedRecord:  # later events depend on every other kind of record
            self.encode(number, record)

    def _end(self, record: MessageEndRecord) -> None:
        if record.message_id == self.turn:
            self.turn, self._answer = None, None
            self._encoded.clear()

    def encode_all(self, first: int, records: Iterable[Record], at: float = 0.0) -> list[SessionEvent]:
        """Return the events for consecutive records. `first` is the number of the first record, `at` the time of writing."""
        return [
            each for number, record in enumerate(records, first) for each in self.encode(number, record, at)
        ]

    def _rows_of(self, record: Record, number: int) -> list[tuple[str, Data]]:
        if type(record) is AgentMessageRecord:
            return self._answer_events(record, number)
        if type(record) is MessageAcceptedRecord:
            return [("message", of_message(record.message, media_ids(number, record)))]
        if type(record) is DeliveryRecord:
            return self._rows_of_delivered(record)
        if type(record) is OutcomeRecord:
            self._encoded.add(record.id)
            name, data = outcome_event(record)
            answered = TRUSTED if self._answer is None else self._answer.label
            return [(name, {**data, **of_label(answered | label_of(record.via))})]
        if type(record) is CallFinishedRecord:
            self._encoded.add(record.result.call_id)
            return [("result", self._result(record.result, media_ids(number, record)))]
        has_event = type(record) in EVENT_ROWS or type(record) is ApprovalRequestRecord
        return [to_event(record)] if has_event else []

    def _answer_events(self, record: AgentMessageRecord, number: int) -> list[tuple[str, Data]]:
        """Return the events for a message that the agent appended: an answer of the model, or results of tool calls.

        Results that an earlier `CallFinishedRecord` contained are left out, because they already had an event.

        Args:
            record: Record of the message.
            number: Number of the record in the session.
        """
        message = record.message
        if message.sender.kind in ("assistant", "agent"):
            self._answer = message
        if message.sender.kind == "assistant":
            return [answer_event(record)]
        new = [each for each in message.tool_results if each.call_id not in self._encoded]
        return [("result", self._result(each, media_ids(number, record))) for each in new]

    def _result(self, result: ToolResult, ids: MediaIds) -> Data:
        most = sys.maxsize if self.is_whole else MAX_CONTENT_CHARACTERS
        return of_result(result, ids, max_chars=most, shows_exception_texts=self.shows_exception_texts)

    def _rows_of_delivered(self, record: DeliveryRecord) -> list[tuple[str, Data]]:
        """Return the reply event for a plain text answer without an `OutcomeRecord`; empty for other records."""
        answer = self._answer
        if answer is None or answer.id not in record.ids or answer.id in self._encoded:
            return []
        self._encoded.add(answer.id)
        no_data = {"data": None, "message_type": None, "reasoning": None}
        return [("reply", {"id": answer.id, "text": answer.text, **no_data, **of_label(answer.label)})]


def _event_time(record: Record, written_at: float) -> float:
    """Return the Unix time in seconds of what a record reports. It is the time of writing if the record has no own time."""
    if type(record) is AgentMessageRecord:
        return record.message.created_at or written_at
    if type(record) is MessageAppendedRecord:
        return record.at or written_at
    if written_at:
        return written_at
    if isinstance(record, MessageAcceptedRecord):
        return record.message.created_at
    return record.at if isinstance(record, ApprovalDecisionRecord | SourceLiftRecord) else 0.0


async def encoder_at(
    journal: Journal, key: SessionKey, number: int, *, shows_exception_texts: bool = False
) -> EventEncoder:
    """Return an encoder for the records after `number`. The encoder has read the records of a turn that is unfinished there."""
    encoder = EventEncoder(shows_exception_texts=shows_exception_texts)
    for start, last in page_ranges_before(number):
        records = await journal.read(key.session_id, agent=key.agent, after=start, limit=last - start)
        known = records[: last - start]  # the journal returns whole steps, so possibly more
        begins = [
            place
            for place, each in enumerate(known)
            if type(each) is MessageAppendedRecord and not each.joins
        ]
        if not begins and start:
            continue
        first = start + (begins[-1] if begins else 0)
        rest: Sequence[Record] = known[first - start :]
        if last < number:
            rest = await journal.read(key.session_id, agent=key.agent, after=first, limit=number - first)
        for each in rest:
            first += 1
            if first <= number:
                encoder.encode(first, each)
        break
    return encoder


# --- status of a message -------------------------------------------------------------------


@attrs.define
class MessageProgress:
    """Status, reply and token usage of one message, computed from the journal records of its session."""

    message_id: str
    status: json_response_types.MessageState = "waiting"
    reply: Data = attrs.field(factory=dict)
    """JSON data of the last reply, or id and text of the last model answer; empty before the first answer."""
    ended: MessageEndRecord | None = None
    number: int = 0
    """Number of the record that accepted the message; 0 if that record was not read yet."""
    accepted: MessageAcceptedRecord | None = None
    usage: Usage = NO_USAGE
    """Token usage and cost of the message's turn so far."""
    last: int = 0
    """Number of the last record that was passed to `apply`."""
    _turn: str = ""
    _requested_approvals: dict[str, Approval] = attrs.field(factory=dict)
    """Requested approvals and client-executed tool calls, by id."""
    _waits_for: tuple[str, ...] = ()
    """Ids of the undecided approvals and client-executed tool calls for which the turn is suspended."""
    _label: Label = TRUSTED
    """Information-flow label of the turn: the untrusted sources of all its messages, and the users who may read all of them."""

    def apply(self, number: int, record: Record) -> None:
        """Update the progress of the message from a record. Records that were already applied are ignored."""
        if number <= self.last:
            return
        self.last = number
        if isinstance(record, MessageAcceptedRecord) and record.message.id == self.message_id:
            self.number, self.accepted, self.status, self.ended = number, record, "waiting", None
        elif isinstance(record, MessageAppendedRecord):
            self._begin(record)
        elif isinstance(record, MessageEndRecord) and record.message_id == self.message_id:
            self._end(record)
        elif self.is_in_current_turn:
            self._apply_in_turn(record)

    def _end(self, record: MessageEndRecord) -> None:
        if record.failed == REFUSED:  # the message was never accepted, so its id may be sent again
            self.number, self.accepted, self.status = 0, None, "waiting"
        else:
            self.status, self.ended = ("answered" if record.failed is None else "failed"), record

    @property
    def is_over(self) -> bool:
        """True if the message has ended: it was answered or failed."""
        return self.status in ("answered", "failed")

    @property
    def is_settled(self) -> bool:
        """True if the message has ended, or is suspended until an approval is decided."""
        return self.is_over or self.status == "suspended"

    @property
    def cursor(self) -> int:
        """Number of the record before the acceptance of the message. The events of the message come after this record."""
        return max(0, self.number - 1)

    @property
    def is_in_current_turn(self) -> bool:
        """True if the turn at the last applied record processes this message."""
        return self._turn != "" and not self.is_over

    def _begin(self, record: MessageAppendedRecord) -> None:
        if not record.joins and not record.is_repeated:
            self._turn = ""
        if record.message_id == self.message_id:
            self._turn, self.status = self.message_id, "working"
        elif record.joins and self._turn:
            self._turn = record.message_id

    def _apply_in_turn(self, record: Record) -> None:
        if isinstance(record, ApprovalRequestRecord):
            self._requested_approvals[record.approval.id] = record.approval
        elif isinstance(record, SuspensionRecord):
            self._wait_for(record.ids)
        elif isinstance(record, ApprovalDecisionRecord):
            self._wait_for(tuple(each for each in self._waits_for if each != record.approval_id))
        elif isinstance(record, ResumptionRecord):
            self._wait_for(())
        elif isinstance(record, AgentMessageRecord):
            self._apply_answer(record)
        elif isinstance(record, OutcomeRecord):
            self._label |= label_of(record.via)
            if record.kind == "reply":
                self.reply = outcome_event(record)[1]

    def _apply_answer(self, record: AgentMessageRecord) -> None:
        self.usage += record.usage
        self._label |= record.message.label
        if record.message.sender.kind in ("assistant", "agent"):
            self.reply = {"id": record.message.id, "text": record.message.text}

    def _wait_for(self, ids: tuple[str, ...]) -> None:
        self._waits_for = ids
        self.status = "suspended" if ids else "working"

    def document(self, key: SessionKey) -> json_response_types.RunDocument:
        """Return the progress of the message as the JSON document for clients."""
        outcome: json_response_types.MessageOutcome | None = None
        if self.ended is not None:
            reply = self.reply if self.ended.failed is None else {}
            outcome = {
                "id": reply.get("id"),
                "text": reply.get("text"),
                "data": reply.get("data"),
                "message_type": reply.get("message_type"),
                "reasoning": reply.get("reasoning"),
                "usage": of_usage(self.usage),
                "failed": self.ended.failed,
                "error": of_message_end(self.ended)["error"],
                **of_label(self._label),
            }
        return {
            "message_id": self.message_id,
            "session_id": key.session_id,
            "agent": key.agent,
            "created_at": None if self.accepted is None else to_date(self.accepted.message.created_at),
            "status": self.status,
            "cursor": self.cursor,
            "waits_for": [self._waiting_call_document(each) for each in self._waits_for],
            "outcome": outcome,
        }

    def _waiting_call_document(
        self, approval_id: str
    ) -> "json_response_types.PendingApproval | json_response_types.PendingCallerCall":
        """Return the JSON of an approval or client-executed tool call, by id, for which the turn waits."""
        asked = self._requested_approvals.get(approval_id)
        if asked is not None and asked.for_caller:
            return {**of_caller_call(asked), "for_caller": True}
        return {"id": approval_id, "tool": "" if asked is None else asked.tool_name}


async def find_message(
    journal: Journal, key: SessionKey, message_id: str, last: int
) -> MessageProgress | None:
    """Return the progress of a message; None if the session has not accepted the message.

    Args:
        journal: Journal with the records of the session.
        key: Agent and id of the session.
        message_id: Id of the message.
        last: Number of the session's last record, from which the search reads backwards.
    """
    pages: list[tuple[int, Sequence[Record]]] = []
    for start, number in page_ranges_before(last):
        records = await journal.read(key.session_id, agent=key.agent, after=start, limit=number - start)
        pages.append((start + 1, records[: number - start] if pages else records))
        if any(isinstance(each, MessageAcceptedRecord) and each.message.id == message_id for each in records):
            progress = _progress_from(message_id, pages)
            return None if progress.accepted is None else progress
    return None


async def find_messages_before(
    journal: Journal, key: SessionKey, last: int, limit: int, records: int
) -> list[MessageProgress]:
    """Return the progress of the newest messages that the session accepted, newest first.

    Args:
        journal: Journal with the records of the session.
        key: Agent and id of the session.
        last: Number of the last record that may have accepted a message.
        limit: Maximum number of messages.
        records: Number of records of the session. Records after `last` are read for the progress of the messages.
    """
    found: list[MessageProgress] = []
    for start, number in page_ranges_before(last):
        page = await journal.read(key.session_id, agent=key.agent, after=start, limit=number - start)
        accepted = [
            MessageProgress(each.message.id, number=place)
            for place, each in enumerate(page[: number - start], start + 1)
            if isinstance(each, MessageAcceptedRecord)
        ]
        known = {each.message_id for each in found}  # a rejected message may have been sent again with its id
        newest = {each.message_id: each for each in accepted if each.message_id not in known}
        found += await _read_progress(journal, key, list(newest.values()), records)
        if len(found) >= limit:
            break
    return found[:limit]


async def _read_progress(
    journal: Journal, key: SessionKey, messages: Sequence[MessageProgress], records: int
) -> list[MessageProgress]:
    """Apply the records of a session to messages until all messages have ended.

    Return the progress of those that were not rejected, newest first.
    """
    working = list(messages)
    number = working[0].cursor if working else records
    while working and number < records:
        page = await journal.read(key.session_id, agent=key.agent, after=number, limit=PAGE_SIZE)
        if not page:
            break
        for place, record in enumerate(page, number + 1):
            for each in working:
                if place >= each.number:
                    each.apply(place, record)
        number += len(page)
        working = [
            each for each in working if number < each.number or not (each.is_over or each.accepted is None)
        ]
    return [each for each in reversed(messages) if each.accepted is not None]


def _progress_from(message_id: str, pages: Sequence[tuple[int, Sequence[Record]]]) -> MessageProgress:
    progress = MessageProgress(message_id)
    for first, records in reversed(pages):
        for number, record in enumerate(records, first):
            progress.apply(number, record)
    return progress
