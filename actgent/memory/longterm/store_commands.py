"""Operations on a memory store, as data. Each is atomic. Several can be executed in one transaction."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from actgent.messages import Sender

from .memory_records import EVERYTHING, MemoryFilter, MemoryRecord
from .named_months import Period
from .owner_visibility import Scope


@attrs.frozen(kw_only=True)
class Put:
    """Store a memory once per `key`. The result is the stored or existing memory."""

    unit: MemoryRecord
    key: str = ""
    """Idempotency key, unique per owner; empty stores a memory on each call."""
    vector: bytes | None = None
    is_unique: bool = False
    """True returns an existing memory of the owner with the same kind and text instead of storing a second one."""


@attrs.frozen(kw_only=True)
class Replace:
    """Replace a memory by a changed copy. The result is the new memory."""

    scope: Scope
    old: str
    new_id: str
    changes: Mapping[str, Any]
    """New values of fields of `MemoryRecord`."""
    now: float
    key: str = ""
    vector: bytes | None = None


@attrs.frozen(kw_only=True)
class ForgetMemories:
    """Delete memories with their history. The result is their number."""

    scope: Scope
    ids: Sequence[str] = ()
    wanted: MemoryFilter = EVERYTHING
    """Filter that selects the memories if `ids` is empty."""


@attrs.frozen(kw_only=True)
class Associate:
    """Create or delete a link between two memories. The result is True if it changed."""

    scope: Scope
    source: str
    target: str
    relation: str
    is_removed: bool = False


@attrs.frozen(kw_only=True)
class SetMark:
    """Store a named value of an owner. The result is the stored value. With `once`, an existing value stays."""

    owner: Sender
    name: str
    value: str
    once: bool = False


@attrs.frozen(kw_only=True)
class Use:
    """Write operation that adds recalls to the use counts of memories."""

    uses: Mapping[int, tuple[int, float]]
    """Number of recalls and Unix time of the last one, by memory number."""


@attrs.frozen(kw_only=True)
class Embed:
    """Store vectors of memories."""

    vectors: Mapping[int, bytes]
    is_anew: bool = False
    """True deletes all vectors first."""


@attrs.frozen(kw_only=True)
class Erase:
    """Delete all data of an owner. The result is the number of memories."""

    owner: Sender


@attrs.frozen
class Transaction:
    """Several operations that all succeed or have no effect. The result is the list of their results."""

    operations: Sequence["Operation"]


Operation: TypeAlias = (
    Put | Replace | ForgetMemories | Associate | SetMark | Use | Embed | Erase | Transaction
)


@attrs.frozen(kw_only=True)
class Search:
    """Search request."""

    scope: Scope
    words: Sequence[str]
    """Words to search for, any of them; empty searches by worth."""
    vector: bytes | None
    wanted: MemoryFilter
    periods: Sequence[Period] = ()
    """Periods that the question names."""
    at: float | None
    """Unix time in seconds at which the memories must be valid; None also finds expired and future memories."""
    limit: int
    """Maximum number of results."""
