"""Visibility of memories: the only module that decides which owner sees which memory.

Each read from a store takes a `Scope`, from which SQL statements get their condition on owners. Each result is verified with
`Scope.check`, however it was found.
"""

import functools
import json
from collections.abc import Iterable, Iterator

import attrs

from actgent.errors import ConfigurationError, MemoriesFailed
from actgent.messages import Sender

from .memory_records import MemoryRecord

MAX_OWNER_BYTES = 1_000
"""Maximum size of an owner's key. With the other columns, an index row in PostgreSQL has at most 2,704 bytes."""


@functools.lru_cache(1_000)
def owner_key(owner: Sender) -> str:
    """Return the text that identifies an owner in a store, made of kind and name."""
    return json.dumps([owner.kind, owner.name], ensure_ascii=True)


def check_owner(owner: Sender) -> None:
    """Raise if an owner's key is too long for an index of PostgreSQL.

    Raises:
        ConfigurationError: The owner's name is too long.
    """
    if (size := len(owner_key(owner))) > MAX_OWNER_BYTES:
        raise ConfigurationError(
            f"the owner {owner.name[:20]!r}... has {size:,} bytes as JSON with its kind (a character outside of ASCII counts 6 or 12), "
            f"and memories allow {MAX_OWNER_BYTES:,}: use a shorter id as owner"
        )


@functools.lru_cache(1_000)
def owner_of_key(key: str) -> Sender:
    """Return the owner that a key of `owner_key` identifies."""
    kind, name = json.loads(key)
    return Sender(name, kind)


@attrs.frozen
class Scope:
    """The memories that one owner may see."""

    owner: Sender
    with_shared: bool = True
    """True includes the shared memories of other owners. False for changes, which are limited to the owner's memories."""

    @property
    def key(self) -> str:
        return owner_key(self.owner)

    @property
    def condition(self) -> tuple[str, list[object]]:
        """SQL condition for the rows of the table `m` that the owner may see, and the values of the condition."""
        if self.with_shared:
            return "(m.owner = ? OR m.is_shared = 1)", [self.key]
        return "m.owner = ?", [self.key]

    def allows(self, memory: MemoryRecord) -> bool:
        """Return True if the owner of this scope may see the memory."""
        return memory.owner == self.owner or (self.with_shared and memory.is_shared)

    def check(self, memories: Iterable[MemoryRecord]) -> Iterator[MemoryRecord]:
        """Yield the memories unchanged. Raise before a memory that the owner may not see.

        Raises:
            MemoriesFailed: The store returned a memory of another owner, which is a bug. It is not yielded.
        """
        for memory in memories:
            if not self.allows(memory):
                raise MemoriesFailed(
                    "the memory store returned a memory of another owner, which was discarded: this is a defect of the store"
                )
            yield memory
