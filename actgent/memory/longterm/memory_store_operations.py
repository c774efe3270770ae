"""Operations on a memory store, as data. Each is atomic. Several can be executed in one transaction."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from actgent.messages import Sender

from .memory_records import EVERYTHING, MemoryFilter, MemoryRecord
from .memory_visibility_by_owner import Scope
from .months_in_questions import Period


@attrs.frozen(kw_only=True)
class Put:
    """Operation that stores a memory once per `key`. Its result is the stored or existing memory."""

    memory: MemoryRecord
    key: str = ""
    """Idempotency key, unique per owner; empty stores a memory on each call."""
    vector: bytes | None = None
    is_unique: bool = False
    """True returns an existing memory of the owner with the same kind and text instead of storing a second one."""


@attrs.frozen(kw_only=True)
class Replace:
    """Operation that replaces a memory by a changed copy. Its result is the new memory."""

    scope: Scope
    old: str
    new_id: str
    changes: Mapping[str, Any]
    """New values of the memory's fields, by name of the field in `MemoryRecord`."""
    now: float
    key: str = ""
    vector: bytes | None = None


@attrs.frozen(kw_only=True)
class ForgetMemories:
    """Operation that deletes memories with their history. Its result is the number of deleted memories."""

    scope: Scope
    ids: Sequence[str] = ()
    filters: MemoryFilter = EVERYTHING
    """Filter that selects the memories if `ids` is empty."""


@attrs.frozen(kw_only=True)
class Associate:
    """Operation that creates or deletes a link between two memories. Its result is False if nothing was changed."""

    scope: Scope
    source: str
    target: str
    relation: str
    is_removed: bool = False


@attrs.frozen(kw_only=True)
class SetMark:
    """Operation that stores a named value of an owner. Its result is the stored value. With `once`, an existing value stays."""

    owner: Sender
    name: str
    value: str
    once: bool = False


@attrs.frozen(kw_only=True)
class Use:
    """Operation that adds recalls to the use counts of memories."""

    uses: Mapping[int, tuple[int, float]]
    """Number of recalls and Unix time of the last one, by memory number."""


@attrs.frozen(kw_only=True)
class Embed:
    """Operation that stores the vectors of memories."""

    vectors: Mapping[int, bytes]
    is_anew: bool = False
    """True deletes all vectors of the store first."""


@attrs.frozen(kw_only=True)
class Erase:
    """Operation that deletes all data of an owner. Its result is the number of deleted memories."""

    owner: Sender


@attrs.frozen
class Transaction:
    """Several operations that all succeed or have no effect. Its result is the list of their results."""

    operations: Sequence["Operation"]


Operation: TypeAlias = (
    Put | Replace | ForgetMemories | Associate | SetMark | Use | Embed | Erase | Transaction
)


@attrs.frozen(kw_only=True)
class Search:
    """Request to search the memories of an owner."""

    scope: Scope
    words: Sequence[str]
    """Words of which a memory must contain at least one. Empty returns the most important memories."""
    vector: bytes | None
    filters: MemoryFilter
    periods: Sequence[Period] = ()
    """Months that the question names; memories created in them score higher."""
    at: float | None
    """Unix time in seconds at which the memories must be valid; None also finds expired and future memories."""
    limit: int
    """Maximum number of found memories."""
