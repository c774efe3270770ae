"""Cache of session summaries between writes, so that the next batch of a session needs no read, and the changes since lists were read.

A batch that failed may be stored nevertheless. Its session is uncertain until it is rolled back to the session summary before the
batch.
"""

import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping

import attrs

from actgent.journal.session_list_queries import SessionKey, State

from .row_format import EncodedBatch, Head, begin_head, find_parent, name_series

KNOWN_HEADS = 10_000
"""Maximum number of cached session summaries. Other session summaries are read from the storage."""
MAX_CHANGED_SESSIONS = 10_000
"""Maximum number of changed sessions that are remembered. If more change, all sessions are compared."""


@attrs.define(eq=False)
class HeadCache:
    """Cache of the stored summaries of the sessions that the owner of a storage wrote or read last."""

    bound: int = KNOWN_HEADS
    """Maximum number of session summaries in the cache. The least recently written session summaries are evicted."""
    by_key: OrderedDict[SessionKey, Head] = attrs.field(factory=OrderedDict)
    """Cached session summaries by session, least recently written first."""
    uncertain: dict[SessionKey, Head | None] = attrs.field(factory=dict)
    """Sessions whose last write failed and may still have been stored.
    The value is the session's summary before that write; None for a new session.
    """
    changed: set[SessionKey] | None = None
    """Sessions that changed since a page of a session list was last read; None if unknown."""
    states: Counter[tuple[str, State]] | None = None
    """Number of sessions by agent and state; None if they must be counted."""
    _numbers: Iterator[int] = attrs.field(init=False, factory=lambda: itertools.count(1))
    """Counter that numbers the sessions created in this epoch."""

    def begin_epoch(self) -> None:
        """Clear the cache, because this process has just acquired the ownership of the journal.

        Sessions whose last write is uncertain stay marked as uncertain.
        """
        self.clear()
        self.changed = None
        self._numbers = itertools.count(1)

    def clear(self) -> None:
        """Discard the cached session summaries and the cached number of sessions."""
        self.by_key.clear()
        self.states = None

    def note_written(self, heads: Mapping[SessionKey, Head], before: Mapping[SessionKey, Head]) -> None:
        """Store the session summaries after a write. `before` contains the session summaries before the write."""
        self.put(heads)
        if self.changed is not None:
            self.changed.update(heads)
            if len(self.changed) > MAX_CHANGED_SESSIONS:
                self.changed = None
        if self.states is not None:
            self.states.update((key.agent, head.state) for key, head in heads.items())
            self.states.subtract((key.agent, before[key].state) for key in heads if key in before)

    def put(self, heads: Mapping[SessionKey, Head]) -> None:
        """Add session summaries with their storage fields. Evict the least recently written session summaries above `bound`."""
        known = self.by_key
        for key, head in heads.items():
            known[key] = head
            known.move_to_end(key)
        while len(known) > self.bound:
            known.popitem(last=False)

    def get_if_certain(self, key: SessionKey) -> Head | None:
        """Return the cached summary of a session.

        Return None if it is not cached, or if it is unknown whether the last write of the session is stored.
        """
        return None if key in self.uncertain else self.by_key.get(key)

    def evict(self, keys: Iterable[SessionKey]) -> None:
        """Remove the summaries of sessions from the cache. The next use of a summary reads it from the storage."""
        for key in keys:
            self.by_key.pop(key, None)

    def erase(self, keys: Iterable[SessionKey]) -> None:
        """Remove erased sessions from the cached summaries and from the sessions with an uncertain last batch."""
        for key in keys:
            self.by_key.pop(key, None)
            self.uncertain.pop(key, None)
        self.states = None

    def mark_uncertain(self, keys: Iterable[SessionKey], before: Mapping[SessionKey, Head]) -> None:
        """Mark sessions whose last batch may or may not be stored. `before` contains their summaries before this batch."""
        self.uncertain.update({key: before.get(key) for key in keys})

    def mark_rolled_back(self, key: SessionKey) -> None:
        """Mark an uncertain session as certain after it was rolled back, and evict its summary."""
        self.by_key.pop(key, None)
        self.changed = self.states = None
        del self.uncertain[key]

    def begin(
        self, batch: EncodedBatch, new_heads: Mapping[SessionKey, Head], *, epoch: int, now: float
    ) -> Head:
        """Build the summary of a new session, which has no records yet.

        Its parent session summary must be in the cache or among `new_heads`.
        """
        above = find_parent(batch)
        parent = None if above is None else new_heads.get(above) or self.by_key.get(above)
        return begin_head(batch, name_series(epoch, next(self._numbers)), parent, now=now)
