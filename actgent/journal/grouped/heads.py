"""The heads of sessions that are known between writes, so that a step of one needs no reading.

A step that failed may be in the storage all the same. Its session is in doubt until it was taken back to the head before.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

import attrs

from actgent.journal.listing import SessionKey

from .steps import Head, JournalStep, begin_head, find_parent, name_series

KNOWN_HEADS = 10_000
"""Heads of sessions that are kept between writes; others are read again."""


@attrs.define(eq=False)
class KnownHeads:
    """What the owner of a storage knows of its sessions without asking."""

    bound: int = KNOWN_HEADS
    """How many are kept, those that were written last."""
    by_key: OrderedDict[SessionKey, Head] = attrs.field(factory=OrderedDict)
    """The heads; those that were written last stand last."""
    doubts: dict[SessionKey, Head | None] = attrs.field(factory=dict)
    """Sessions of which nobody knows whether their last step, which failed, is there, and their heads before it."""
    _numbers: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))
    """Of the sessions that begin in this epoch."""

    def begin_epoch(self) -> None:
        """Read all again, as an epoch begins; what is in doubt is no less so."""
        self.by_key.clear()
        self._numbers = itertools.count(1)

    def keep(self, heads: Mapping[SessionKey, Head]) -> None:
        """Know these, and forget those that were written longest ago where there are too many."""
        known = self.by_key
        for key, head in heads.items():
            known[key] = head
            known.move_to_end(key)
        while len(known) > self.bound:
            known.popitem(last=False)

    def settled(self, key: SessionKey) -> Head | None:
        """The head of a session, where it is known without a doubt."""
        return None if key in self.doubts else self.by_key.get(key)

    def forget(self, keys: Iterable[SessionKey]) -> None:
        """Have these read again."""
        for key in keys:
            self.by_key.pop(key, None)

    def erase(self, keys: Iterable[SessionKey]) -> None:
        """Know that these are gone, without a doubt."""
        for key in keys:
            self.by_key.pop(key, None)
            self.doubts.pop(key, None)

    def doubt(self, keys: Iterable[SessionKey], before: Mapping[SessionKey, Head]) -> None:
        """Remember that a step of these may be there or not, and the heads before it."""
        self.doubts.update({key: before.get(key) for key in keys})

    def settle(self, key: SessionKey) -> None:
        """Know that a session was taken back to its head before."""
        self.by_key.pop(key, None)
        del self.doubts[key]

    def begin(self, step: JournalStep, beside: Mapping[SessionKey, Head], *, epoch: int, now: float) -> Head:
        """Return the head of a new session, below one that is there, or begins `beside` it."""
        above = find_parent(step)
        parent = None if above is None else beside.get(above) or self.by_key.get(above)
        return begin_head(step, name_series(epoch, next(self._numbers)), parent, now=now)
