"""Labels of long-term memories: the untrusted sources and the readers of a text, kept in the metadata of its memory."""

from collections.abc import Iterable, Mapping
from typing import Any

from actgent.information_flow_labels import Label, label_of
from actgent.support.untrusted_text import READERS, join_origins, split_readers

from .memory_records import MemoryRecord

_SOURCES = "actgent.sources"
"""Name in the metadata of a memory of the untrusted sources on which its text depends; missing if it is trusted."""
_READERS = "actgent.readers"
"""Name in the metadata of a memory of its readers in the format of the journal; missing if all owners may read it."""


def metadata_of(sources: str, old: MemoryRecord | None = None) -> dict[str, Any]:
    """Build the metadata of a memory that stores the sources and readers of its text; empty if nothing is to be changed.

    Args:
        sources: Label of the text (its sources and readers), in the format of the journal.
        old: Memory that is replaced, whose metadata, sources and readers are kept; None for a new memory.
    """
    if not sources:
        return {}
    kept: Mapping[str, Any] = {} if old is None else old.metadata
    names, readers = split_readers(sources if old is None else join_origins(_label_text(old), sources))
    added = {_SOURCES: names, _READERS: readers.removeprefix(READERS)}
    is_set = {_SOURCES: bool(names), _READERS: bool(readers)}
    return {"metadata": {**kept, **{name: value for name, value in added.items() if is_set[name]}}}


def _label_text(memory: MemoryRecord) -> str:
    """Return the label of a memory (its sources and readers), in the format of the journal."""
    return join_origins(str(memory.metadata.get(_SOURCES, "")), readers_of([memory]))


def label_of_memory(memory: MemoryRecord) -> Label:
    """Return the untrusted sources on which the text of a memory depends, and the owners that may read it."""
    return label_of(_label_text(memory))


def readers_of(memories: Iterable[MemoryRecord]) -> str:
    """Return the owners that may read all of these memories, in the format of the journal; empty if all owners may."""
    found = ""
    for each in memories:
        if _READERS in each.metadata:
            found = join_origins(found, f"{READERS}{each.metadata[_READERS]}")
    return found
