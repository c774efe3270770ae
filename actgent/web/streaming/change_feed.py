"""Stream of changes in all sessions that a client may access, for the dashboard.

Each session is reported at most once a second. The events have no cursor: a client that missed events receives `resync` and
reads the lists again.
"""

from collections.abc import Iterator, Set as AbstractSet

import attrs
import trio

from actgent.errors import FeedLagged
from actgent.journal.journal_interface import SessionSummary
from actgent.journal.record_feed_readers import Erased, FeedReader, WrittenBatch
from actgent.journal.record_types import (
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    MessageEndRecord,
    Record,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.runtime.introspection import AgentStatistics
from actgent.web.access_control import AccessFilter
from actgent.web.access_tokens import Caller
from actgent.web.routes.json_serializers import of_head, to_date

from .session_event_types import Data, to_event
from .sse import ALIVE_FRAME, ALIVE_INTERVAL_SECONDS, RETRY_MILLISECONDS, Write, bye, frame

WATCHED = ("heads", "agents", "approvals", "errors")
"""Kinds of changes that a client can subscribe to."""
BATCH_SECONDS = 1.0
"""Seconds for which changes are collected before they are sent together."""
AGENTS_INTERVAL_SECONDS = 5.0
"""Seconds between two reads of the agents' statistics if the journal does not change."""
FEED_CAPACITY = 10_000
"""Maximum number of journal batches (records written together) queued for one client."""
MAX_BATCH_CHANGES = 1000
"""Maximum number of changes in a batch; a larger batch is replaced by `resync`."""


@attrs.define
class _ChangeBatch:
    """Changes of sessions that were collected during about one second."""

    changed: dict[SessionKey, None] = attrs.field(factory=dict)
    events: list[tuple[SessionKey, str, Data]] = attrs.field(factory=list)
    is_complete: bool = True
    """False if changes were lost, because the reader of the journal feed was too slow."""

    @property
    def needs_resync(self) -> bool:
        return not self.is_complete or len(self.changed) + len(self.events) > MAX_BATCH_CHANGES


@attrs.define(kw_only=True)
class ChangeStream:
    """Event stream of the changes in all sessions that one client may access."""

    access: AccessFilter
    caller: Caller
    kinds: AbstractSet[str]
    """Kinds of changes that the client wants, from `WATCHED`."""
    closing: trio.Event
    _agents: dict[str, AgentStatistics] = attrs.field(factory=dict)
    """Statistics of each agent that were last sent to the client, by agent name."""

    async def run(self, write: Write) -> None:
        """Write an event for each change until the gateway closes, then the event `bye`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, write)
            await self.closing.wait()
            nursery.cancel_scope.cancel()
        await write(bye())

    async def _watch(self, write: Write) -> None:
        reads_records = not self.kinds.isdisjoint({"approvals", "errors"})
        async with self.access.journal.feed(capacity=FEED_CAPACITY, records=reads_records) as feed:
            await write(f"retry: {RETRY_MILLISECONDS}\n\n".encode() + b"".join(self._of_agents()))
            written = trio.current_time()
            while True:
                data = await self._encode(await self._collect(feed))
                if data or trio.current_time() >= written + ALIVE_INTERVAL_SECONDS:
                    await write(data or ALIVE_FRAME)
                    written = trio.current_time()

    async def _collect(self, feed: FeedReader) -> _ChangeBatch:
        """Collect the next changes from the journal feed. Return an empty batch after an interval without changes.

        The interval is `AGENTS_INTERVAL_SECONDS` or `ALIVE_INTERVAL_SECONDS`.
        """
        batch = _ChangeBatch()
        try:
            with trio.move_on_after(
                AGENTS_INTERVAL_SECONDS if "agents" in self.kinds else ALIVE_INTERVAL_SECONDS
            ) as limit:
                while True:
                    self._add(batch, await feed.receive())
                    limit.deadline = min(limit.deadline, trio.current_time() + BATCH_SECONDS)
        except FeedLagged:
            batch.is_complete = False
        except trio.EndOfChannel:
            await self.closing.wait()
        return batch

    def _add(self, batch: _ChangeBatch, item: WrittenBatch | Erased) -> None:
        if isinstance(item, Erased):
            batch.is_complete = False
        if isinstance(item, Erased) or batch.needs_resync:
            return
        batch.changed[item.key] = None
        for record in item.records:
            if (kind := _kind_of(record)) in self.kinds:
                name, data = to_event(record)
                about = {"agent": item.agent, "session_id": item.session_id, "at": to_date(item.at or 0.0)}
                batch.events.append((item.key, "error" if kind == "errors" else name, {**about, **data}))

    async def _encode(self, batch: _ChangeBatch) -> bytes:
        if batch.needs_resync:
            return frame("resync", {}) + b"".join(self._of_agents())
        heads: dict[SessionKey, SessionSummary] = {}
        for key in batch.changed if "heads" in self.kinds else dict.fromkeys(key for key, *_ in batch.events):
            head = await self.access.journal.head(*key)
            if head is not None and await self.access.may_access(self.caller, head):
                heads[key] = head
        changed = [frame("head", of_head(head)) for head in heads.values()] if "heads" in self.kinds else []
        events = [frame(name, data) for key, name, data in batch.events if key in heads]
        return b"".join([*changed, *events, *self._of_agents()])

    def _of_agents(self) -> Iterator[bytes]:
        """Yield an encoded event for each agent whose statistics have changed since they were last sent."""
        if "agents" not in self.kinds:
            return
        for each in self.access.statistics(self.caller):
            if self._agents.get(each.agent) != each:
                self._agents[each.agent] = each
                yield frame("agent", attrs.asdict(each))


def _kind_of(record: Record) -> str:
    """Return the kind of change that a record reports: `approvals` or `errors`; empty for other records."""
    if isinstance(record, ApprovalRequestRecord | ApprovalDecisionRecord):
        is_for_caller = isinstance(record, ApprovalRequestRecord) and record.approval.for_caller
        return "" if is_for_caller else "approvals"
    return "errors" if isinstance(record, MessageEndRecord) and record.failed is not None else ""
