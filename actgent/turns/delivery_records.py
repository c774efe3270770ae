"""Journal records of a turn's deliveries that differ from the text of the answer.

A text that is part of the recorded answer is stored as its position in the answer.
"""

import json
from collections.abc import Iterator, Sequence

from actgent.journal.record_types import OutcomeRecord
from actgent.messages import Delivery, Event, Message, Reply, Route
from actgent.support.untrusted_text import join_origins
from actgent.tools.outputs.result_text import to_json_text

MIN_POSITION_CHARS = 24
"""Minimum length in characters of a text that is stored as a position in the answer."""


def delivery_records(deliveries: Sequence[Delivery], answer: Message) -> Iterator[OutcomeRecord]:
    """Yield the journal record of each reply, event and route of an answer. Other deliveries have no record."""
    for delivery in deliveries:
        match delivery:
            case Reply():
                name = delivery.message_type or ""
                yield _told(delivery, "reply", name, answer, text=delivery.text)
            case Event():
                yield _told(delivery, "event", delivery.name, answer)
            case Route():
                yield _told(delivery, "route", delivery.action, answer)


def remote_reply_record(reply: Reply) -> OutcomeRecord:
    """Return the journal record of a reply that another agent gave."""
    name = reply.message_type or ""
    return OutcomeRecord(
        id=reply.id,
        kind="reply",
        name=name,
        text=reply.text,
        data=to_json_text(reply.data),
        reasoning=to_json_text(reply.reasoning),
        via=join_origins(reply.origin, reply.via),
    )


def _told(
    delivery: Reply | Event | Route, kind: str, name: str, answer: Message, *, text: str | None = None
) -> OutcomeRecord:
    answer_text, data = answer.text, to_json_text(delivery.data)
    quoted = "" if text is None else json.dumps(text, ensure_ascii=False)[1:-1]
    plain_at = _place_of(text, answer_text)
    text_at, data_at = plain_at or _place_of(quoted, answer_text), _place_of(data, answer_text)
    return OutcomeRecord(
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
        via=sources_besides(delivery, answer),
    )


def sources_besides(delivery: Reply | Event | Route, answer: Message) -> str:
    """Return the label of a delivery in the format of the journal; empty if the answer has the same label."""
    if (delivery.origin, delivery.via) == (answer.origin, answer.via):
        return ""
    return join_origins(delivery.origin, delivery.via)


def _place_of(text: str | None, answer_text: str) -> tuple[int, ...]:
    """Return the start and end index of a text in an answer, which the record stores in place of the text.

    The result is empty if the answer does not contain the text, or the text is too short to save space.
    """
    begin = -1 if text is None or len(text) < MIN_POSITION_CHARS else answer_text.find(text)
    return () if text is None or begin < 0 else (begin, begin + len(text))
