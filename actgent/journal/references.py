"""Results of tools are stored once: what is said of several calls refers to what was written when each had ended."""

from collections.abc import Iterable

import attrs

from .records import Finished, Record, Said


def refer(said: Said) -> Said:
    """The same without its tool results, which stand in `Finished` records before it."""
    ids = tuple(result.call_id for result in said.message.tool_results)
    return attrs.evolve(said, message=attrs.evolve(said.message, parts=()), results=ids)


def resolve(records: Iterable[Record]) -> list[Record]:
    """All records of a session with their results in place again.

    Raises:
        LookupError: a result is referred to that is not there.
    """
    found = {}
    resolved: list[Record] = []
    for record in records:
        if type(record) is Finished:
            found[record.result.call_id] = record.result
        elif type(record) is Said and record.results:
            parts = tuple(found[call_id] for call_id in record.results)
            record = attrs.evolve(record, message=attrs.evolve(record.message, parts=parts), results=())  # noqa: PLW2901
        resolved.append(record)
    return resolved
