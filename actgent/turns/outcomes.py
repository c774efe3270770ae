"""What handlers get, as records: only where it is more than the words of the answer, which stand in the journal already.

An answer in a form of the agent's, say JSON, holds the words that are shown. A record points to them there, if it can.
"""

import json
from collections.abc import Iterator, Sequence

from actgent.journal.records import Told
from actgent.messages import Delivery, Event, Message, Reply, Route
from actgent.tools.outputs.results import to_json_text

WORTH = 24
"""Characters from which it is shorter to say where a text stands."""


def is_said(deliveries: Sequence[Delivery], answer: Message) -> bool:
    """Return True if all that comes of an answer is its text."""
    if len(deliveries) > 1:
        return False
    (reply,) = deliveries
    if type(reply) is not Reply or reply.data is not None or reply.message_type is not None:
        return False
    return reply.text == answer.text and reply.reasoning is None


def told_records(deliveries: Sequence[Delivery], answer: Message) -> Iterator[Told]:
    """The records of what comes of an answer that is in the conversation."""
    for delivery in deliveries:
        match delivery:
            case Reply():
                name = delivery.message_type or ""
                yield _told(delivery, "reply", name, answer, text=delivery.text)
            case Event():
                yield _told(delivery, "event", delivery.name, answer)
            case Route():
                yield _told(delivery, "route", delivery.action, answer)


def told_elsewhere(reply: Reply) -> Told:
    """The record of a reply that another agent gave."""
    name = reply.message_type or ""
    return Told(
        id=reply.id,
        kind="reply",
        name=name,
        text=reply.text,
        data=to_json_text(reply.data),
        reasoning=to_json_text(reply.reasoning),
    )


def _told(
    delivery: Reply | Event | Route, kind: str, name: str, answer: Message, *, text: str | None = None
) -> Told:
    said, data = answer.text, to_json_text(delivery.data)
    quoted = "" if text is None else json.dumps(text, ensure_ascii=False)[1:-1]
    plain_at = _place_of(text, said)
    text_at, data_at = plain_at or _place_of(quoted, said), _place_of(data, said)
    return Told(
        id=delivery.id,
        kind=kind,
        name=name,
        text=None if text_at else text,
        data=None if data_at else data,
        answer=answer.id if text_at or data_at else "",
        text_at=text_at,
        data_at=data_at,
        is_quoted=bool(text_at and not plain_at),
        reasoning=to_json_text(delivery.reasoning) if isinstance(delivery, Reply) else None,
    )


def _place_of(text: str | None, said: str) -> tuple[int, ...]:
    """Where a text stands in an answer; empty where it does not, or is short."""
    begin = -1 if text is None or len(text) < WORTH else said.find(text)
    return () if text is None or begin < 0 else (begin, begin + len(text))
