"""References of records to earlier records of their session.

Tool results are stored once: a message with several results refers to the `CallFinishedRecord` records that were
written before. A large state value is stored once as a whole, and each later change as the difference to the previous
value.
"""

import json
from collections.abc import Iterable
from typing import Any

import attrs

from actgent.journal.record_types import (
    AgentMessageRecord,
    CallFinishedRecord,
    OutcomeRecord,
    Record,
    StateChangeRecord,
    StateRollbackRecord,
)
from actgent.journal.session_state_patches import with_values


def resolve(records: Iterable[Record], *, is_partial: bool = False) -> list[Record]:
    """Return all records of a session, with references to earlier records replaced by the referenced values.

    References stand for tool results, answer texts and state values.

    With `is_partial`, earlier records may be missing. A state difference whose earlier value is missing then stays a
    difference.

    Raises:
        LookupError: A record refers to something that is missing.
    """
    found = {}
    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    resolved: list[Record] = []
    for record in records:
        if type(record) is CallFinishedRecord:
            found[record.result.call_id] = record.result
        elif type(record) is OutcomeRecord:
            if record.answer:
                record = _with_answer_text(record, texts[record.answer])  # noqa: PLW2901
        elif type(record) is AgentMessageRecord:
            if record.results:
                parts = tuple(found[call_id] for call_id in record.results)
                record = attrs.evolve(record, message=attrs.evolve(record.message, parts=parts), results=())  # noqa: PLW2901
            elif record.stop:
                texts = {record.message.id: record.message.text}
        elif type(record) is StateChangeRecord or type(record) is StateRollbackRecord:
            record = _follow_state(values, record, is_partial=is_partial)  # noqa: PLW2901
        resolved.append(record)
    return resolved


def _follow_state(
    values: dict[str, Any], record: StateChangeRecord | StateRollbackRecord, *, is_partial: bool
) -> StateChangeRecord | StateRollbackRecord:
    """Return a state change record with whole values instead of differences, and update `values`, the current values by key.

    With `is_partial`, a difference to an unknown value stays a difference.
    """
    if type(record) is StateRollbackRecord:
        values.clear()  # the next change of each key has the whole value
        return record
    assert type(record) is StateChangeRecord  # noqa: S101 - the other of the two
    if record.patches and (not is_partial or record.patches.keys() <= values.keys()):
        record = with_values(record, values)
    values.update(record.changes)
    for key in (*record.reduced, *record.patches):  # the current values of these keys are unknown
        values.pop(key, None)
    return record


def _with_answer_text(outcome: OutcomeRecord, answer: str) -> OutcomeRecord:
    """Fill in the text and data of an outcome, which are stored as positions in `answer`."""
    text, data = outcome.text, outcome.data
    if outcome.text_at:
        text = answer[slice(*outcome.text_at)]
        text = json.loads(f'"{text}"', strict=False) if outcome.is_quoted else text
    if outcome.data_at:
        data = answer[slice(*outcome.data_at)]
    return OutcomeRecord(
        id=outcome.id,
        kind=outcome.kind,
        name=outcome.name,
        text=text,
        data=data,
        reasoning=outcome.reasoning,
        via=outcome.via,
    )


def refers(record: Record) -> bool:
    """Return True if a part of the record is stored in an earlier record."""
    return (
        (type(record) is AgentMessageRecord and bool(record.results))
        or (type(record) is OutcomeRecord and record.answer != "")
        or (type(record) is StateChangeRecord and bool(record.patches))
    )
