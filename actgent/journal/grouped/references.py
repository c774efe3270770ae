"""Records that refer to what others of their session hold.

Results of tools are stored once: what is said of several calls refers to what was written when each had ended.
A large value of a state is stored once as a whole, and each later change of it as its difference to the value before.
"""

import json
from collections.abc import Iterable
from typing import Any

import attrs

from actgent.journal.records import (
    Changed,
    Finished,
    Record,
    RolledBack,
    Said,
    Told,
)
from actgent.journal.state_patches import with_values


def refer(said: Said) -> Said:
    """The same without its tool results, which stand in `Finished` records before it."""
    ids = tuple(result.call_id for result in said.message.tool_results)
    return attrs.evolve(said, message=attrs.evolve(said.message, parts=()), results=ids)


def resolve(records: Iterable[Record], *, is_partial: bool = False) -> list[Record]:
    """Return all records of a session with the results, the words of an answer and the values that they refer to.

    With `is_partial`, changes whose values are before the first record stay differences.

    Raises:
        LookupError: A record refers to something that is missing.
    """
    found = {}
    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    resolved: list[Record] = []
    for record in records:
        if type(record) is Finished:
            found[record.result.call_id] = record.result
        elif type(record) is Told:
            if record.answer:
                record = _with_words(record, texts[record.answer])  # noqa: PLW2901
        elif type(record) is Said:
            if record.results:
                parts = tuple(found[call_id] for call_id in record.results)
                record = attrs.evolve(record, message=attrs.evolve(record.message, parts=parts), results=())  # noqa: PLW2901
            elif record.stop:
                texts = {record.message.id: record.message.text}
        elif type(record) is Changed or type(record) is RolledBack:
            record = _follow_state(values, record, is_partial=is_partial)  # noqa: PLW2901
        resolved.append(record)
    return resolved


def _follow_state(
    values: dict[str, Any], record: Changed | RolledBack, *, is_partial: bool
) -> Changed | RolledBack:
    """Return a record with its values, and keep those that later differences may refer to."""
    if type(record) is RolledBack:
        values.clear()  # the next change of each key has the whole value
        return record
    assert type(record) is Changed  # noqa: S101 - the other of the two
    if record.patches and (not is_partial or record.patches.keys() <= values.keys()):
        record = with_values(record, values)
    values.update(record.changes)
    for key in (*record.reduced, *record.patches):  # the current values of these keys are unknown
        values.pop(key, None)
    return record


def _with_words(told: Told, said: str) -> Told:
    text, data = told.text, told.data
    if told.text_at:
        text = said[slice(*told.text_at)]
        text = json.loads(f'"{text}"', strict=False) if told.is_quoted else text
    if told.data_at:
        data = said[slice(*told.data_at)]
    return Told(id=told.id, kind=told.kind, name=told.name, text=text, data=data, reasoning=told.reasoning)


def refers(record: Record) -> bool:
    """Return True if a part of a record stands in one before it."""
    return (
        (type(record) is Said and bool(record.results))
        or (type(record) is Told and record.answer != "")
        or (type(record) is Changed and bool(record.patches))
    )
