"""Totals and failures from before the gateway was opened, as the records of the journal have them.

They are read when they are asked for the first time, in the background and session by session, about 100,000 records a second.
Nodes of a cluster share a journal and would each count all of it, so they count from their start alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import trio

from actgent.errors import JournalError, WireError
from actgent.events import MessageFailed, ToolFailed
from actgent.journal.base import Journal
from actgent.journal.listing import SessionFilter, SessionKey
from actgent.journal.records import NOT_KEPT, REFUSED, Appended, Ended, Finished, Record, Said
from actgent.messages import ToolResult
from actgent.sessions.owner_accounts import is_holder
from actgent.support.logs import Each, logger_of

MAX_FAILURES = 1000
"""Failures of each kind that are kept, the newest."""
PATIENCE = 5.0
"""Seconds that the first requests wait for the totals; then they are answered without them."""
_PAGE, _RECORDS = 100, 500
_UNTOLD = (REFUSED, NOT_KEPT, "interrupted", "stopped", "moved")
"""Kinds of ends that are no failures to look after."""
_ALL = SessionFilter()
_log = logger_of(__name__)


@attrs.define(eq=False)
class JournalTotals:
    """What the journal has from before a time."""

    journal: Journal
    until: float
    """Unix time in seconds: records that were written later are counted as they come."""
    turns: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Turns that ended, by agent and outcome."""
    tool_calls: Counter[tuple[str, str, str]] = attrs.field(factory=Counter)
    """By agent, tool and status."""
    spent: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """US dollars, by agent and model."""
    failures: dict[tuple[str, str, str], MessageFailed] = attrs.field(factory=dict)
    """By agent, session and message."""
    tool_failures: dict[tuple[str, str, str], ToolFailed] = attrs.field(factory=dict)
    """By agent, session and call."""
    known: trio.Event = attrs.field(factory=trio.Event)
    """Set when all of it was read."""
    _begun_at: float | None = None
    """By trio's clock."""

    async def wait(self, nursery: trio.Nursery) -> bool:
        """Begin to read the journal in a nursery, and wait up to `PATIENCE` seconds from then; returns whether it was read."""
        if self._begun_at is None:
            self._begun_at = trio.current_time()
            nursery.start_soon(self._read_all)
        with trio.move_on_at(self._begun_at + PATIENCE):
            await self.known.wait()
        return self.known.is_set()

    async def _read_all(self) -> None:
        after = None
        while not self.journal.is_shared and (
            page := await self.journal.page(_ALL, after=after, limit=_PAGE)
        ):
            for head in page:
                if not is_holder(head) and head.created_at < self.until:
                    await self._read_session(head.key)
            after = page[-1].cursor
        self.known.set()

    async def _read_session(self, key: SessionKey) -> None:
        """Count what a session has; of one that is damaged, up to the damage."""
        tally, number = _SessionTally(self, key), 0
        try:
            while steps := await self.journal.read_steps(
                key.session_id, agent=key.agent, after=number, limit=_RECORDS
            ):
                for step in steps:
                    if (step.at or 0.0) >= self.until:
                        return
                    for record in step.records:
                        tally.add(record, step.at or 0.0)
                number = steps[-1].last
        except (JournalError, WireError) as error:
            _log.warning("session %s is not counted whole: %s", Each(key.session_id), error)

    def counters(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """The totals as figures, with their labels by plain names."""
        for (agent, outcome), number in self.turns.items():
            yield "actgent_turns_total", {"agent": agent, "outcome": outcome}, number
        for (agent, tool, status), number in self.tool_calls.items():
            yield "actgent_tool_calls_total", {"agent": agent, "tool": tool, "status": status}, number
        for (agent, model), dollars in self.spent.items():
            yield "actgent_spent_usd_total", {"agent": agent, "model": model}, dollars


@attrs.define(eq=False)
class _SessionTally:
    """Counts the records of one session, in their order."""

    totals: JournalTotals
    key: SessionKey
    turn: str = ""
    calls: set[str] = attrs.field(factory=set)
    """Calls whose results were counted: each may stand in two records."""

    def add(self, record: Record, at: float) -> None:
        match record:
            case Appended():
                self.turn = record.message_id
            case Said():
                self._add_said(record, at)
            case Finished():
                self._add_result(record.result, at)
            case Ended():
                self._add_end(record, at)

    def _add_said(self, said: Said, at: float) -> None:
        if said.usage.cost:
            self.totals.spent[self.key.agent, said.model] += said.usage.cost  # type: ignore[assignment] # dollars
        for result in said.message.tool_results:
            self._add_result(result, at)

    def _add_result(self, result: ToolResult, at: float) -> None:
        if result.call_id in self.calls:
            return
        self.calls.add(result.call_id)
        self.totals.tool_calls[self.key.agent, result.tool_name, result.status] += 1
        if (failed := failed_call(self.key, self.turn, result, at)) is not None:
            _keep(self.totals.tool_failures, (*self.key, result.call_id), failed)

    def _add_end(self, end: Ended, at: float) -> None:
        if end.message_id == self.turn:  # others were answered with it, or never had a turn
            self.totals.turns[self.key.agent, end.failed or "answered"] += 1
            self.turn = ""
        if end.failed is not None and end.failed not in _UNTOLD:
            failed = MessageFailed(
                at=at,
                agent=self.key.agent,
                session_id=self.key.session_id,
                turn=end.message_id,
                message_id=end.message_id,
                kind=end.failed,
                error=end.error,
                words=end.words,
            )
            _keep(self.totals.failures, (*self.key, end.message_id), failed)


def failed_call(key: SessionKey, turn: str, result: ToolResult, at: float) -> ToolFailed | None:
    """Return the failure that a result tells of; None if the tool has not failed."""
    if result.status not in ("error", "outcome_unknown"):
        return None
    return ToolFailed(
        at=at,
        agent=key.agent,
        session_id=key.session_id,
        turn=turn,
        call_id=result.call_id,
        tool_name=result.tool_name,
        raised=result.raised,
        words=result.error or "",
    )


def _keep(kept: dict[Any, Any], key: Any, failed: Any) -> None:
    """Keep a failure; of more than twice as many as are kept, the oldest go."""
    kept[key] = failed
    if len(kept) > 2 * MAX_FAILURES:
        newest = sorted(kept.items(), key=lambda each: each[1].at)[MAX_FAILURES:]
        kept.clear()
        kept.update(newest)
