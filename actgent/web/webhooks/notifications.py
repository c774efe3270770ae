"""What of a session's records a webhook tells, and how it says it."""

import hashlib
from collections.abc import Sequence
from typing import Any

import attrs
import orjson

from actgent.journal.base import Journal, SessionSummary
from actgent.journal.feed import Written
from actgent.journal.listing import SessionKey
from actgent.journal.records import REFUSED, Closed, Delivered, Ended, PersonAsked, Record, Told
from actgent.web.routes.views import to_date
from actgent.web.streaming.happenings import Happening, teller_at

PAGE = 200
"""Records that are read at a time."""
_PERHAPS = (Told, Delivered, PersonAsked, Ended, Closed)


@attrs.frozen(kw_only=True)
class Notification:
    """One thing to tell."""

    id: str
    """The same at each attempt, and after a restart."""
    event: str
    number: int
    """Of its record."""
    at: float
    """When that was written: Unix time in seconds."""
    body: bytes


def may_tell(step: Written) -> bool:
    """Return True if a step has something that a webhook may tell."""
    return any(isinstance(record, _PERHAPS) and _event_of(record) for record in step.records)


def _event_of(record: Record) -> str | None:
    """What a record is to webhooks, as far as it says by itself."""
    if isinstance(record, Told | Delivered):
        return "reply" if isinstance(record, Delivered) or record.kind == "reply" else None
    if isinstance(record, Ended):
        return "failed" if record.failed not in (None, REFUSED) else None
    if isinstance(record, Closed):
        return None if record.unused or record.erase else "closed"
    return "approval" if isinstance(record, PersonAsked) else None


async def read_notifications(
    journal: Journal, head: SessionSummary, after: int, events: Sequence[str]
) -> tuple[list[Notification], int]:
    """What is to be told of a session behind a record, of one page, and up to which record that goes.

    Of sessions that work for others only approvals are told: what they answer, others answer for.
    """
    key = head.key
    teller = await teller_at(journal, key, after)
    steps = await journal.read_steps(key.session_id, agent=key.agent, after=after, limit=PAGE)
    notifications: list[Notification] = []
    number = after
    for step in steps:
        for number, record in enumerate(step.records, step.first):
            told = [] if number <= after else teller.tell(number, record, step.at or 0.0)
            event = _event_of(record) if told else None
            is_own = head.parent_id is None or event == "approval"
            if event is not None and event in events and is_own:
                notifications += [_notification(head, event, each, step.at or 0.0) for each in told]
    return notifications, max(number, after)


def _notification(head: SessionSummary, event: str, happening: Happening, at: float) -> Notification:
    data = {
        "agent": head.agent,
        "session_id": head.session_id,
        "owner": head.owner,
        "number": happening.number,
        **happening.data,
    }
    body = {"type": event, "timestamp": to_date(at), "data": data}
    words = orjson.dumps([*head.key, happening.number, head.created_at, event])
    return Notification(
        id=f"msg_{hashlib.blake2b(words, digest_size=16, person=b'actgent.webhook').hexdigest()}",
        event=event,
        number=happening.number,
        at=at,
        body=orjson.dumps(body, default=repr, option=orjson.OPT_NON_STR_KEYS),
    )


async def first_behind(journal: Journal, head: SessionSummary, at: float) -> int:
    """The number of the last record of a session that was written before a Unix time."""
    last = head.records
    while last > 0:
        start = max(0, last - PAGE)
        steps = await journal.read_steps(head.session_id, agent=head.agent, after=start, limit=last - start)
        before = [step.last for step in steps if step.at is None or step.at < at]
        if before:
            return min(before[-1], head.records)
        last = start
    return 0


def to_failed(key: SessionKey, notification: Notification, reason: str) -> dict[str, Any]:
    """What was given up, as administrators are shown it."""
    return {
        "webhook_id": notification.id,
        "event": notification.event,
        "agent": key.agent,
        "session_id": key.session_id,
        "number": notification.number,
        "reason": reason,
        "at": to_date(notification.at),
    }
