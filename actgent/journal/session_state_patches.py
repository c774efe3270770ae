"""Differences of a session's state as stored in records, and the values rebuilt from them.

A difference refers to the value of its key in an earlier record. A reader goes back to the record with the whole
value. So a chain has at most `MAX_PATCHES` differences, and their bytes never exceed those of the whole value.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.structural_diff import apply_difference, difference
from actgent.support.tagged_codec import pack_plain

from .record_types import StateChangeRecord, StateRollbackRecord

MAX_PATCHES = 256
"""Maximum number of consecutive differences of a key. Then the whole value is written again."""
MIN_VALUE_BYTES = 128
"""Minimum encoded size of a value that is stored as differences; smaller values are written whole."""


def with_values(changed: StateChangeRecord, before: Mapping[str, Any]) -> StateChangeRecord:
    """Return a change record with whole values, computed from the earlier values in `before`, and without differences.

    Raises:
        LookupError: An earlier value is missing or does not fit the difference.
    """
    made = {
        key: apply_difference(before[key], patch)
        for key, patch in changed.patches.items()
        if key not in changed.changes
    }
    return attrs.evolve(changed, changes={**changed.changes, **made}, patches={})


@attrs.frozen(repr=False)
class _Chain(FieldRepr):
    """Size of the stored chain of one state key: a whole value and the differences after it."""

    whole: int
    """Size in bytes of the complete value to which the differences apply."""
    length: int = 0
    """Number of differences since the complete value was written."""
    size: int = 0
    """Total size in bytes of the differences."""


@attrs.define(eq=False, repr=False)
class StatePatcher(FieldRepr):
    """Computes the differences for the state changes of one session that this process writes.

    The first change of a key has the whole value, also after a rollback and after a change by a reducer.
    """

    _chains: dict[str, _Chain] = attrs.field(factory=dict)
    """Sizes of the stored value and its differences, by state key. A key without an entry is written as a complete value."""
    _next: dict[str, _Chain | None] = attrs.field(factory=dict)
    """Entries of `_chains` after the record that is being written, by state key.
    `note` stores them after the write; None removes an entry.
    """

    def patch(self, changed: StateChangeRecord, before: Mapping[str, Any]) -> StateChangeRecord:
        """Return a change record with differences to the earlier values in `before`.

        Only keys whose difference is smaller than the whole value get a difference.
        """
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
                size = 0  # the journal rejects the record, or an integer needs more than 64 bits
            self._next[key] = _Chain(size) if size >= MIN_VALUE_BYTES else None
        return attrs.evolve(changed, patches=patches) if patches else changed

    def note(self, written: StateChangeRecord | StateRollbackRecord) -> None:
        """Update the sizes of stored values and differences after the record `written` was stored.

        If it is a change record, it must be the one that `patch` returned last.
        """
        if type(written) is StateRollbackRecord:
            self._chains.clear()
            return
        for key, chain in self._next.items():
            if chain is None:
                self._chains.pop(key, None)
            else:
                self._chains[key] = chain

    def _difference(self, key: str, value: Any, before: Mapping[str, Any]) -> list[Any] | None:
        """Return how the value of a state key differs from its earlier value; None if the whole value must be written."""
        chain = self._chains.get(key)
        if chain is None or chain.length >= MAX_PATCHES or key not in before:
            return None
        patch = difference(before[key], value)
        size = chain.size + len(pack_plain(patch))
        if size > chain.whole:
            return None
        self._next[key] = _Chain(chain.whole, chain.length + 1, size)
        return patch
