"""Records that refer to what others of their session hold.

Results of tools are stored once: what is said of several calls refers to what was written when each had ended.
"""

import json
from collections.abc import Iterable

import attrs

from actgent.journal.records import (
    Finished,
    Record,
    Said,
    Told,
)


def refer(said: Said) -> Said:
    """The same without its tool results, which stand in `Finished` records before it."""
    ids = tuple(result.call_id for result in said.message.tool_results)
    return attrs.evolve(said, message=attrs.evolve(said.message, parts=()), results=ids)


def resolve(records: Iterable[Record]) -> list[Record]:
    """All records of a session with their results in place again, and the words that outcomes have of an answer.

    Raises:
        LookupError: something is referred to that is not there.
    """
    found = {}
    texts: dict[str, str] = {}
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
        resolved.append(record)
    return resolved


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
    return (type(record) is Said and bool(record.results)) or (type(record) is Told and record.answer != "")
