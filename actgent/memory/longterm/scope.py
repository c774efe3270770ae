"""Whose memories somebody may see and change: the one place in which that is decided.

Whatever asks a store for memories hands it a `Scope`, and the store's statements take the condition on owners from it.
Whatever comes out of a store goes through `check`, whichever way it was found.
"""

import functools
import json
from collections.abc import Iterable, Iterator

import attrs

from actgent.errors import ConfigurationError, MemoriesFailed
from actgent.messages import Sender

from .unit import MemoryUnit

MAX_OWNER = 1_000
"""Bytes of an owner's key; with what stands beside it a row of an index in PostgreSQL has at most 2,704."""


def owner_key(owner: Sender) -> str:
    """An owner as stores write it: no two have the same, whatever people are called."""
    return json.dumps([owner.kind, owner.name], ensure_ascii=True)


def check_owner(owner: Sender) -> None:
    """Refuse to write for an owner that no index of PostgreSQL takes beside an id; nothing is found of such a one.

    Raises:
        ConfigurationError: the name is too long.
    """
    if (size := len(owner_key(owner))) > MAX_OWNER:
        raise ConfigurationError(
            f"the owner {owner.name[:20]!r}... is too long for memories: with its kind it has {size:,} bytes of JSON, where a "
            f"character outside of ASCII counts 6 or 12, and {MAX_OWNER:,} may be; remember for an id in its place"
        )


@functools.lru_cache(1_000)
def owner_of_key(key: str) -> Sender:
    """Return the owner of a key."""
    kind, name = json.loads(key)
    return Sender(name, kind)


@attrs.frozen
class Scope:
    """What one owner may see, and change."""

    owner: Sender
    with_shared: bool = True
    """True: what is shared with everybody is seen, too. False: the owner's own alone, as for changes."""

    @property
    def key(self) -> str:
        return owner_key(self.owner)

    @property
    def condition(self) -> tuple[str, list[object]]:
        """What is true in SQL of each row `m` that may be seen, and its values."""
        if self.with_shared:
            return "(m.owner = ? OR m.is_shared = 1)", [self.key]
        return "m.owner = ?", [self.key]

    def allows(self, memory: MemoryUnit) -> bool:
        """Return True if this owner may see it."""
        return memory.owner == self.owner or (self.with_shared and memory.is_shared)

    def check(self, memories: Iterable[MemoryUnit]) -> Iterator[MemoryUnit]:
        """Let memories out that this owner may see.

        Raises:
            MemoriesFailed: a store found another's, which is its mistake; nothing of it is shown.
        """
        for memory in memories:
            if not self.allows(memory):
                raise MemoriesFailed("the store found a memory of another owner, which is not shown")
            yield memory
