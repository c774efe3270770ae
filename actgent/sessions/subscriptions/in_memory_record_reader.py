"""Reader of the recent records that a session without a journal keeps in memory."""

from actgent.journal.record_feed_readers import WrittenBatch
from actgent.journal.record_types import (
    AgentMessageRecord,
    DeliveryRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    OutcomeRecord,
    Record,
)
from actgent.messages import Event, Message, Reply, Route
from actgent.sessions.recent_records_without_journal import Entry, RecentRecords
from actgent.tools.outputs.result_text import to_json_text

from .records_for_subscribers import FollowedRecord, TurnAssigner


class RecentHistory:
    """Converts the entries of `RecentRecords` to numbered records with their turns, in order.

    The records of replies, events and routes contain no untrusted sources, because observations do not show them.
    """

    def __init__(self, recent: RecentRecords) -> None:
        self._recent = recent
        self._number = recent.dropped
        """Number of the entry that was read last."""
        self._names = TurnAssigner()
        self._answer: Message | None = None
        """Last answer of the model; None before the first."""
        self._at: float | None = None

    def read(self) -> list[FollowedRecord]:
        """Return the next records: usually one; several if one turn answered several messages; none after the last entry."""
        recent = self._recent
        self._number = max(self._number, recent.dropped)
        records: list[Record] = []
        for entry in recent[self._number - recent.dropped :]:
            record = self._record_of(entry, joins=bool(records))
            if records and not isinstance(record, MessageAppendedRecord):
                break
            records.append(record)
            if not isinstance(record, MessageAppendedRecord):
                break
        if not records:
            return []
        step = WrittenBatch(
            session_id="",
            agent="",
            first=self._number + 1,
            count=len(records),
            at=self._at,
            records=tuple(records),
        )
        self._number = step.last
        return list(self._names.number_records(step, 0))

    def _record_of(self, entry: Entry, *, joins: bool) -> Record:
        if isinstance(entry, Message):
            self._at = entry.created_at
            return self._record_of_message(entry, joins=joins)
        if isinstance(entry, Reply | Event | Route):
            return self._delivery_record(entry)
        if isinstance(entry, str):
            return MessageEndRecord(message_id=entry)
        self._at, record = entry
        return record

    def _record_of_message(self, message: Message, *, joins: bool) -> Record:
        if message.correlation_id is None:
            starts_turn = message.causation_id is None and message.sender.kind != "assistant"
            return (
                MessageAppendedRecord(message_id=message.id, joins=joins)
                if starts_turn
                else AgentMessageRecord(message=message)
            )
        if message.sender.kind not in ("assistant", "agent"):
            return AgentMessageRecord(message=message)
        self._answer = message
        return AgentMessageRecord(message=message, stop="end")

    def _delivery_record(self, delivery: Reply | Event | Route) -> Record:
        answer = self._answer
        if not isinstance(delivery, Reply):
            kind, name = (
                ("event", delivery.name) if isinstance(delivery, Event) else ("route", delivery.action)
            )
            return OutcomeRecord(id=delivery.id, kind=kind, name=name, data=to_json_text(delivery.data))
        is_plain = delivery.data is None and delivery.message_type is None and delivery.reasoning is None
        if is_plain and answer is not None and (delivery.id, delivery.text) == (answer.id, answer.text):
            return DeliveryRecord(ids=(delivery.id,))
        return OutcomeRecord(
            id=delivery.id,
            kind="reply",
            name=delivery.message_type or "",
            text=delivery.text,
            data=to_json_text(delivery.data),
            reasoning=to_json_text(delivery.reasoning),
        )
