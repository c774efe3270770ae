"""What changes in all sessions that a client reaches, for pages that are looked at: no numbers to come back to.

What changed is told at most once a second for each session; who missed something is told to ask for the lists again.
"""

from collections.abc import Iterator, Set as AbstractSet

import attrs
import trio

from actgent.errors import FeedLagged
from actgent.journal.base import SessionSummary
from actgent.journal.feed import Erased, FeedReader, Written
from actgent.journal.listing import SessionKey
from actgent.journal.records import Decided, Ended, PersonAsked, Record
from actgent.runtime.insight import AgentStatistics
from actgent.web.reach import Reach
from actgent.web.routes.views import of_head, to_date
from actgent.web.tokens import Caller

from .happenings import Data, to_event
from .streams import ALIVE, ALIVE_FRAME, RETRY, Write, bye, frame

WATCHED = ("heads", "agents", "approvals", "errors")
"""What can be watched."""
EVERY = 1.0
"""Seconds for which changes are collected."""
AGENTS_EVERY = 5.0
"""Seconds after which agents are looked at where nothing is written."""
CAPACITY = 10_000
"""Steps that may wait for a reader."""
AT_ONCE = 1000
"""Changes that are told one by one; of more the lists are asked for again."""


@attrs.define
class _News:
    """What came in about a second."""

    changed: dict[SessionKey, None] = attrs.field(factory=dict)
    told: list[tuple[SessionKey, str, Data]] = attrs.field(factory=list)
    is_whole: bool = True
    """False: something was missed."""

    @property
    def is_too_much(self) -> bool:
        return not self.is_whole or len(self.changed) + len(self.told) > AT_ONCE


@attrs.define(kw_only=True)
class Watching:
    """One client that watches what it reaches."""

    reach: Reach
    caller: Caller
    kinds: AbstractSet[str]
    """Of `WATCHED`."""
    closing: trio.Event
    _agents: dict[str, AgentStatistics] = attrs.field(factory=dict)
    """As they were told last."""

    async def run(self, write: Write) -> None:
        """Write what changes, until the gateway closes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, write)
            await self.closing.wait()
            nursery.cancel_scope.cancel()
        await write(bye())

    async def _watch(self, write: Write) -> None:
        reads_records = not self.kinds.isdisjoint({"approvals", "errors"})
        async with self.reach.journal.feed(capacity=CAPACITY, records=reads_records) as feed:
            await write(f"retry: {RETRY}\n\n".encode() + b"".join(self._of_agents()))
            written = trio.current_time()
            while True:
                data = await self._told(await self._collect(feed))
                if data or trio.current_time() >= written + ALIVE:
                    await write(data or ALIVE_FRAME)
                    written = trio.current_time()

    async def _collect(self, feed: FeedReader) -> _News:
        """Return what came; nothing where nothing did for long."""
        news = _News()
        try:
            with trio.move_on_after(AGENTS_EVERY if "agents" in self.kinds else ALIVE) as limit:
                while True:
                    self._take(news, await feed.receive())
                    limit.deadline = min(limit.deadline, trio.current_time() + EVERY)
        except FeedLagged:
            news.is_whole = False
        except trio.EndOfChannel:
            await self.closing.wait()
        return news

    def _take(self, news: _News, item: Written | Erased) -> None:
        if isinstance(item, Erased):
            news.is_whole = False
        if isinstance(item, Erased) or news.is_too_much:
            return
        news.changed[item.key] = None
        for record in item.records:
            if (kind := _kind_of(record)) in self.kinds:
                name, data = to_event(record)
                about = {"agent": item.agent, "session_id": item.session_id, "at": to_date(item.at or 0.0)}
                news.told.append((item.key, "error" if kind == "errors" else name, {**about, **data}))

    async def _told(self, news: _News) -> bytes:
        if news.is_too_much:
            return frame("resync", {}) + b"".join(self._of_agents())
        heads: dict[SessionKey, SessionSummary] = {}
        for key in news.changed if "heads" in self.kinds else dict.fromkeys(key for key, *_ in news.told):
            head = await self.reach.journal.head(*key)
            if head is not None and await self.reach.sees(self.caller, head):
                heads[key] = head
        changed = [frame("head", of_head(head)) for head in heads.values()] if "heads" in self.kinds else []
        told = [frame(name, data) for key, name, data in news.told if key in heads]
        return b"".join([*changed, *told, *self._of_agents()])

    def _of_agents(self) -> Iterator[bytes]:
        """The agents that are otherwise than they were told last."""
        if "agents" not in self.kinds:
            return
        for each in self.reach.statistics(self.caller):
            if self._agents.get(each.agent) != each:
                self._agents[each.agent] = each
                yield frame("agent", attrs.asdict(each))


def _kind_of(record: Record) -> str:
    """Return what a record is to those who watch; empty where it is nothing."""
    if isinstance(record, PersonAsked | Decided):
        return "approvals"
    return "errors" if isinstance(record, Ended) and record.failed is not None else ""
