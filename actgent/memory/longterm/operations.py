"""What can be done to a store, as data: each is done whole or not at all, and may be handed over together with others."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from actgent.messages import Sender

from .scope import Scope
from .unit import EVERYTHING, MemoryFilter, MemoryUnit


@attrs.frozen(kw_only=True)
class Put:
    """Remember something, once for each `key`. Results in the memory that is there then."""

    unit: MemoryUnit
    key: str = ""
    """The owner's name of this very act; empty: it has none, and is done each time."""
    vector: bytes | None = None
    is_unique: bool = False
    """True: where the owner has a memory of this kind that says the same, that one is the result."""


@attrs.frozen(kw_only=True)
class Replace:
    """Put a memory in the place of another one. Results in the new one."""

    scope: Scope
    old: str
    new_id: str
    changes: Mapping[str, Any]
    """Fields of `MemoryUnit`."""
    now: float
    key: str = ""
    vector: bytes | None = None


@attrs.frozen(kw_only=True)
class ForgetThese:
    """Remove memories with their history. Results in their number."""

    scope: Scope
    ids: Sequence[str] = ()
    wanted: MemoryFilter = EVERYTHING
    """Where no ids are given."""


@attrs.frozen(kw_only=True)
class Associate:
    """Link two memories, or take the link away. Results in True if that changed anything."""

    scope: Scope
    source: str
    target: str
    relation: str
    is_removed: bool = False


@attrs.frozen(kw_only=True)
class SetMark:
    """Note something for an owner under a name. Results in what is noted there then.

    With `once` what is there already stays.
    """

    owner: Sender
    name: str
    value: str
    once: bool = False


@attrs.frozen(kw_only=True)
class Use:
    """Note that memories were recalled."""

    uses: Mapping[int, tuple[int, float]]
    """How often, and at which Unix time last, by the numbers of memories."""


@attrs.frozen(kw_only=True)
class Embed:
    """Add vectors to memories that have none."""

    vectors: Mapping[int, bytes]
    is_anew: bool = False
    """True: all others are removed first."""


@attrs.frozen(kw_only=True)
class Erase:
    """Remove all that there is of an owner. Results in the number of memories."""

    owner: Sender


@attrs.frozen
class Together:
    """Several of these, all or none. Results in the list of their results."""

    operations: Sequence["Operation"]


Operation: TypeAlias = Put | Replace | ForgetThese | Associate | SetMark | Use | Embed | Erase | Together


@attrs.frozen(kw_only=True)
class Search:
    """What is looked for."""

    scope: Scope
    words: Sequence[str]
    """Any of them; none: the most worth keeping are found."""
    vector: bytes | None
    wanted: MemoryFilter
    at: float
    """Unix time at which a memory has to be valid."""
    limit: int
    """How many memories to return at most."""
