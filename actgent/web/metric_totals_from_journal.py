"""Totals and failures from before the gateway was opened, computed from the records of the journal.

The first request starts reading the journal in the background, session by session, at about 100,000 records a second. Nodes of
a cluster share a journal and would each count all records, so they count only from their start.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import trio

from actgent.errors import JournalError, WireError
from actgent.events import MessageFailed, ToolFailed
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import (
    NOT_KEPT,
    REFUSED,
    AgentMessageRecord,
    CallFinishedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    Record,
)
from actgent.journal.session_list_queries import SessionFilter, SessionKey, is_internal
from actgent.messages import ToolResult
from actgent.support.safe_logging import LogVariable, logger_of

MAX_FAILURES = 1000
"""Maximum number of failures of each kind in memory; the oldest are dropped."""
WAIT_SECONDS = 5.0
"""Seconds for which the first requests wait for the totals; after that they are answered without them."""
_PAGE, _RECORDS = 100, 500
_NOT_COUNTED = (REFUSED, NOT_KEPT, "interrupted", "stopped", "moved")
"""Failure kinds that are no errors: the message was rejected or stopped on purpose."""
_ALL = SessionFilter()
_log = logger_of(__name__)


@attrs.define(eq=False)
class JournalTotals:
    """Counts of turns and tool calls, costs, and the single failures in the journal up to the time `until`."""

    journal: Journal
    until: float
    """Unix time in seconds up to which the journal was scanned. Later records are counted when they are written."""
    turns: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Number of ended turns, by agent and outcome."""
    tool_calls: Counter[tuple[str, str, str]] = attrs.field(factory=Counter)
    """Number of tool calls, by agent, tool and status."""
    spent: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Cost in US dollars, by agent and model."""
    failures: dict[tuple[str, str, str], MessageFailed] = attrs.field(factory=dict)
    """Failures of messages, by agent, session id and message id."""
    tool_failures: dict[tuple[str, str, str], ToolFailed] = attrs.field(factory=dict)
    """Failures of tool calls, by agent, session id and call id."""
    is_complete: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set after the whole journal was read."""
    _begun_at: float | None = None
    """Start time of the scan in seconds of trio's clock; None before the first request."""

    async def wait(self, nursery: trio.Nursery) -> bool:
        """Wait for the totals. Return True if they are complete, False after a timeout.

        The first call starts a task in `nursery` that reads the journal. Waits end `WAIT_SECONDS` after this start.
        """
        if self._begun_at is None:
            self._begun_at = trio.current_time()
            nursery.start_soon(self._read_all)
        with trio.move_on_at(self._begun_at + WAIT_SECONDS):
            await self.is_complete.wait()
        return self.is_complete.is_set()

    async def _read_all(self) -> None:
        after = None
        while not self.journal.is_shared and (
            page := await self.journal.page(_ALL, after=after, limit=_PAGE)
        ):
            for head in page:
                if not is_internal(head) and head.created_at < self.until:
                    await self._read_session(head.key)
            after = page[-1].cursor
        self.is_complete.set()

    async def _read_session(self, key: SessionKey) -> None:
        """Read the records of a session and add them to the totals. Reading stops at the first damaged record."""
        tally, number = _SessionTally(self, key), 0
        try:
            while steps := await self.journal.read_batches(
                key.session_id, agent=key.agent, after=number, limit=_RECORDS
            ):
                for step in steps:
                    if (step.at or 0.0) >= self.until:
                        return
                    for record in step.records:
                        tally.add(record, step.at or 0.0)
                number = steps[-1].last
        except (JournalError, WireError) as error:
            _log.warning(
                "session %s: its totals are incomplete, because a record is damaged: %s",
                LogVariable(key.session_id),
                error,
            )

    def counters(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Yield the totals of the journal as Prometheus counters: metric name, labels and value."""
        for (agent, outcome), number in self.turns.items():
            yield "actgent_turns_total", {"agent": agent, "outcome": outcome}, number
        for (agent, tool, status), number in self.tool_calls.items():
            yield "actgent_tool_calls_total", {"agent": agent, "tool": tool, "status": status}, number
        for (agent, model), dollars in self.spent.items():
            yield "actgent_spent_usd_total", {"agent": agent, "model": model}, dollars


@attrs.define(eq=False)
class _SessionTally:
    """Adds the records of one session to the totals. Records must be added in order."""

    totals: JournalTotals
    key: SessionKey
    turn: str = ""
    calls: set[str] = attrs.field(factory=set)
    """Ids of the counted tool calls. A result may be in two records, but is counted once."""

    def add(self, record: Record, at: float) -> None:
        match record:
            case MessageAppendedRecord():
                self.turn = record.message_id
            case AgentMessageRecord():
                if record.usage.cost:
                    self.totals.spent[self.key.agent, record.model] += record.usage.cost  # type: ignore[assignment] # dollars
                for result in record.message.tool_results:
                    self._add_result(result, at)
            case CallFinishedRecord():
                self._add_result(record.result, at)
            case MessageEndRecord():
                self._add_end(record, at)

    def _add_result(self, result: ToolResult, at: float) -> None:
        if result.call_id in self.calls:
            return
        self.calls.add(result.call_id)
        self.totals.tool_calls[self.key.agent, result.tool_name, result.status] += 1
        if (failed := failed_call(self.key, self.turn, result, at)) is not None:
            _add_failure(self.totals.tool_failures, (*self.key, result.call_id), failed)

    def _add_end(self, end: MessageEndRecord, at: float) -> None:
        if end.message_id == self.turn:  # other messages joined this turn or never had a turn
            self.totals.turns[self.key.agent, end.failed or "answered"] += 1
            self.turn = ""
        if end.failed is not None and end.failed not in _NOT_COUNTED:
            failed = MessageFailed(
                at=at,
                agent=self.key.agent,
                session_id=self.key.session_id,
                turn=end.message_id,
                message_id=end.message_id,
                kind=end.failed,
                error=end.error,
                error_text=end.error_text,
            )
            _add_failure(self.totals.failures, (*self.key, end.message_id), failed)


def failed_call(key: SessionKey, turn: str, result: ToolResult, at: float) -> ToolFailed | None:
    """Return the failure of a tool call for the error list; None if the call succeeded."""
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
        error_text=result.error or "",
    )


def _add_failure(failures: dict[Any, Any], key: Any, failed: Any) -> None:
    """Add a failure to the map `failures`. Above `2 * MAX_FAILURES` entries, drop all but the newest `MAX_FAILURES`."""
    failures[key] = failed
    if len(failures) > 2 * MAX_FAILURES:
        newest = sorted(failures.items(), key=lambda each: each[1].at)[MAX_FAILURES:]
        failures.clear()
        failures.update(newest)
