"""Which sessions change, for a list that is looked at: no contents and no numbers to come back to, only what is new of each.

What changed is told at most once a second for each session; who missed something is told to ask for the list again.
"""

import attrs
import trio

from actgent.errors import FeedLagged
from actgent.journal.feed import Erased, FeedReader
from actgent.journal.listing import SessionKey
from actgent.web.reach import Reach
from actgent.web.streaming.streams import ALIVE, ALIVE_FRAME, RETRY, Write, bye, frame
from actgent.web.tokens import Caller

from .views import of_head

EVERY = 1.0
"""Seconds for which changes are collected."""
CAPACITY = 10_000
"""Steps that may wait for a reader."""
AT_ONCE = 1000
"""Sessions that are told one by one; of more the list is asked for again."""


@attrs.frozen(kw_only=True)
class Watching:
    """One client that watches the sessions that it reaches."""

    reach: Reach
    caller: Caller
    closing: trio.Event

    async def run(self, write: Write) -> None:
        """Write what changes, until the gateway closes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, write)
            await self.closing.wait()
            nursery.cancel_scope.cancel()
        await write(bye())

    async def _watch(self, write: Write) -> None:
        async with self.reach.journal.feed(capacity=CAPACITY, records=False) as feed:
            await write(f"retry: {RETRY}\n\n".encode())
            while True:
                changed = await self._collect(feed)
                await write(ALIVE_FRAME if changed == {} else await self._told(changed))

    async def _collect(self, feed: FeedReader) -> dict[SessionKey, None] | None:
        """The sessions that changed; none where nothing did for long, None where some were missed."""
        changed: dict[SessionKey, None] = {}
        try:
            with trio.move_on_after(ALIVE) as limit:
                while True:
                    item = await feed.receive()
                    if isinstance(item, Erased):
                        return None
                    changed[item.key] = None
                    if len(changed) == 1:
                        limit.deadline = min(limit.deadline, trio.current_time() + EVERY)
        except FeedLagged:
            return None
        except trio.EndOfChannel:
            await self.closing.wait()
        return changed

    async def _told(self, changed: dict[SessionKey, None] | None) -> bytes:
        if changed is None or len(changed) > AT_ONCE:
            return frame("resync", {})
        heads = [await self.reach.journal.head(*key) for key in changed]
        seen = [head for head in heads if head is not None and await self.reach.sees(self.caller, head)]
        return b"".join(frame("head", of_head(head)) for head in seen) or ALIVE_FRAME
