"""Changes of a session's state that are stored as differences: which are, and how they become values again.

A difference refers to the value of the key in an earlier record. Readers go back to the record with the whole value,
so a chain of differences is bounded: in number, and in bytes by the size of the value. A journal that is read from any
record so reads at most `MOST_PATCHES` changes before it, and stores at most twice the bytes of the differences.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.support.patches import apply_difference, difference
from actgent.support.wire import pack_plain

from .records import Changed, Record, RolledBack

MOST_PATCHES = 256
"""Differences of a key after which its whole value is written again."""
LEAST_BYTES = 128
"""Size of an encoded value below which it is written as a whole."""


def stored_records(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records as a journal stores them: a value with a difference is left out."""
    for record in records:
        if type(record) is Changed and record.patches:
            return [_without_values(each) if type(each) is Changed else each for each in records]
    return records


def _without_values(changed: Changed) -> Changed:
    left = {key: value for key, value in changed.changes.items() if key not in changed.patches}
    return attrs.evolve(changed, changes=left)


def with_values(changed: Changed, before: Mapping[str, Any]) -> Changed:
    """Return the record of a change with all its values, made of the values before it, and without differences.

    Raises:
        LookupError: A value before it is missing, or is another one.
    """
    made = {
        key: apply_difference(before[key], patch)
        for key, patch in changed.patches.items()
        if key not in changed.changes
    }
    return attrs.evolve(changed, changes={**changed.changes, **made}, patches={})


@attrs.frozen
class _Chain:
    """Differences of a key since its whole value."""

    whole: int
    """Bytes of the whole value."""
    length: int = 0
    size: int = 0
    """Bytes of the differences."""


@attrs.define(eq=False)
class StatePatcher:
    """Finds the differences in the changes of one session's state, as this process writes them.

    The first change of a key has the whole value; so has the first after a rollback, and after a change by a reducer.
    """

    _chains: dict[str, _Chain] = attrs.field(factory=dict)
    """By key; a key is missing if its next change has the whole value."""
    _next: dict[str, _Chain | None] = attrs.field(factory=dict)
    """What the record that was made last does to the chains, once it is written."""

    def patch(self, changed: Changed, before: Mapping[str, Any]) -> Changed:
        """Return the record of a change with the differences to the values before it that are worth it."""
        patches: dict[str, Any] = {}
        self._next = {}
        for key, value in changed.changes.items():
            if type(value) not in (dict, list) or key in changed.reduced:
                self._next[key] = None
                continue
            try:
                if (patch := self._difference(key, value, before)) is not None:
                    patches[key] = patch
                    continue
                size = len(pack_plain(value))
            except (TypeError, ValueError, OverflowError, RecursionError):
                size = 0  # the record is refused, or holds an integer beyond 64 bits
            self._next[key] = _Chain(size) if size >= LEAST_BYTES else None
        return attrs.evolve(changed, patches=patches) if patches else changed

    def note(self, written: Changed | RolledBack) -> None:
        """Note that a record was written; of a change the one that `patch` returned last."""
        if type(written) is RolledBack:
            self._chains.clear()
            return
        for key, chain in self._next.items():
            if chain is None:
                self._chains.pop(key, None)
            else:
                self._chains[key] = chain

    def _difference(self, key: str, value: Any, before: Mapping[str, Any]) -> list[Any] | None:
        """Return the difference of a value to the one before it; None if the whole value is written."""
        chain = self._chains.get(key)
        if chain is None or chain.length >= MOST_PATCHES or key not in before:
            return None
        patch = difference(before[key], value)
        size = chain.size + len(pack_plain(patch))
        if size > chain.whole:
            return None
        self._next[key] = _Chain(chain.whole, chain.length + 1, size)
        return patch
