"""Conversion of a session's records to webhook notifications."""

import hashlib
from collections.abc import Mapping, Sequence

import attrs
import orjson

from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.record_feed_readers import WrittenBatch
from actgent.journal.record_types import (
    REFUSED,
    ApprovalRequestRecord,
    DeliveryRecord,
    MessageEndRecord,
    OutcomeRecord,
    Record,
    SessionClosedRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.support.strict_json import encode_json
from actgent.web import json_response_types
from actgent.web.routes.json_serializers import to_date
from actgent.web.streaming.session_events import SessionEvent, encoder_at

from .delivery_queue import Target

PAGE_SIZE = 200
"""Number of records read from the journal at a time."""
_NOTIFIED = (OutcomeRecord, DeliveryRecord, ApprovalRequestRecord, MessageEndRecord, SessionClosedRecord)


@attrs.frozen(kw_only=True)
class Notification:
    """One webhook request: id, event and JSON body."""

    id: str
    """Value of the header `webhook-id`. It is the same for each attempt, also after a restart."""
    event: str
    """Name of the reported event: `reply`, `approval`, `failed` or `closed`."""
    number: int
    """Number of the journal record that caused the notification."""
    at: float
    """Unix time in seconds at which the journal record was written."""
    body: bytes
    """JSON body of the request."""
    target: Target | None = None
    """Receiver of this notification; None for the receiver of the session."""
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Additional HTTP headers of the request."""


def has_notification(batch: WrittenBatch) -> bool:
    """Return True if one of the newly written records may need a notification by a webhook."""
    return any(isinstance(record, _NOTIFIED) and _event_of(record) for record in batch.records)


def _event_of(record: Record) -> str | None:
    """Return the name of the webhook event that a record may cause; None if the record causes no event."""
    if isinstance(record, OutcomeRecord | DeliveryRecord):
        return "reply" if isinstance(record, DeliveryRecord) or record.kind == "reply" else None
    if isinstance(record, MessageEndRecord):
        return "failed" if record.failed not in (None, REFUSED) else None
    if isinstance(record, SessionClosedRecord):
        return None if record.unused or record.erase else "closed"
    return (
        "approval" if isinstance(record, ApprovalRequestRecord) and not record.approval.for_caller else None
    )


async def read_notifications(
    journal: Journal, head: SessionSummary, after: int, events: Sequence[str]
) -> tuple[list[Notification], int]:
    """Read one page of a session's records after a number. Return their notifications and the number of the last record read.

    Child sessions report only approvals, because their parent session reports the reply.
    """
    key = head.key
    encoder = await encoder_at(journal, key, after)
    batches = await journal.read_batches(key.session_id, agent=key.agent, after=after, limit=PAGE_SIZE)
    notifications: list[Notification] = []
    number = after
    for batch in batches:
        for number, record in enumerate(batch.records, batch.first):
            encoded = [] if number <= after else encoder.encode(number, record, batch.at or 0.0)
            event = _event_of(record) if encoded else None
            is_reported = head.parent_id is None or event == "approval"
            if event is not None and event in events and is_reported:
                notifications += [_notification(head, event, each, batch.at or 0.0) for each in encoded]
    return notifications, max(number, after)


def _notification(head: SessionSummary, event: str, session_event: SessionEvent, at: float) -> Notification:
    data = {
        "agent": head.agent,
        "session_id": head.session_id,
        "owner": head.owner,
        "number": session_event.number,
        **session_event.data,
    }
    body = {"type": event, "timestamp": to_date(at), "data": data}
    words = orjson.dumps([*head.key, session_event.number, head.created_at, event])
    return Notification(
        id=f"msg_{hashlib.blake2b(words, digest_size=16, person=b'actgent.webhook').hexdigest()}",
        event=event,
        number=session_event.number,
        at=at,
        body=encode_json(body),
    )


async def last_record_before(journal: Journal, head: SessionSummary, at: float) -> int:
    """Return the number of the last record that a session had at a Unix time; 0 if it had no record."""
    last = head.records
    while last > 0:
        start = max(0, last - PAGE_SIZE)
        batches = await journal.read_batches(
            head.session_id, agent=head.agent, after=start, limit=last - start
        )
        before = [batch.last for batch in batches if batch.at is None or batch.at < at]
        if before:
            return min(before[-1], head.records)
        last = start
    return 0


def to_failed(key: SessionKey, notification: Notification, reason: str) -> json_response_types.FailedDelivery:
    """Return a notification that could not be delivered as a JSON object for administrators. `reason` is the last failure."""
    return {
        "webhook_id": notification.id,
        "event": notification.event,
        "agent": key.agent,
        "session_id": key.session_id,
        "number": notification.number,
        "reason": reason,
        "at": to_date(notification.at),
    }
