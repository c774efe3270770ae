"""Journals that wrap another journal: all methods pass through, commits are not waited for, or records are redacted.

Redaction removes sensitive text from records before they are written. The running conversation keeps the original text. After a
restart the conversation has the redacted text. Tool calls with redacted arguments never run again: their arguments are then a
text, not an object.
"""

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from actgent.approvals import Approval, Decision, Edit, Reject, Respond, Withdraw
from actgent.errors import ConfigurationError
from actgent.journal.journal_interface import Backup, Entry, Journal, SessionSummary, SessionTail, Snapshot
from actgent.journal.record_feed_readers import FeedReader, WrittenBatch
from actgent.journal.record_types import (
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    CallFinishedRecord,
    CallsStartedRecord,
    MessageAcceptedRecord,
    OutcomeRecord,
    Record,
    StateChangeRecord,
)
from actgent.journal.session_list_queries import ALL, Cursor, SessionFilter, SessionKey, State
from actgent.messages import Message, Part, Text, Thinking, ToolCall, ToolResult
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import convert_user_error


class WrappedJournal(Journal):
    """Journal that forwards all calls to the journal that it wraps."""

    def __init__(self, inner: Journal) -> None:
        self.inner = inner
        self.statistics, self.identity = inner.statistics, inner.identity

    async def acquire(self) -> int:
        epoch = await self.inner.acquire()
        self.identity = self.inner.identity
        return epoch

    def epoch_of(self, session_id: str) -> int:
        return self.inner.epoch_of(session_id)

    @property
    def is_shared(self) -> bool:
        return self.inner.is_shared

    @property
    def is_relaxed(self) -> bool:
        return self.inner.is_relaxed

    def owns(self, session_id: str) -> bool:
        return self.inner.owns(session_id)

    def have_same_owner(self, session_id: str, other_id: str) -> bool:
        return self.inner.have_same_owner(session_id, other_id)

    def sibling_url(self, name: str) -> str | None:
        return self.inner.sibling_url(name)

    def new_session_id(self) -> str:
        return self.inner.new_session_id()

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        await self.inner.commit(entry, epoch=epoch, durable=durable)

    def enqueue_write(self, entry: Entry, *, epoch: int) -> None:
        self.inner.enqueue_write(entry, epoch=epoch)

    async def load(self, session_id: str, *, agent: str | None = None) -> tuple[Record, ...]:
        return await self.inner.load(session_id, agent=agent)

    async def read(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        return await self.inner.read(session_id, agent=agent, after=after, limit=limit)

    async def read_batches(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[WrittenBatch, ...]:
        return await self.inner.read_batches(session_id, agent=agent, after=after, limit=limit)

    def feed(
        self, session: SessionKey | None = None, *, capacity: int = 1000, records: bool = True
    ) -> AbstractAsyncContextManager[FeedReader]:
        return self.inner.feed(session, capacity=capacity, records=records)

    def read_blocking(
        self, session_id: str, *, agent: str, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        return self.inner.read_blocking(session_id, agent=agent, after=after, limit=limit)

    async def load_tail(self, session_id: str, *, agent: str) -> SessionTail:
        return await self.inner.load_tail(session_id, agent=agent)

    async def find_snapshot(self, session_id: str, *, agent: str) -> Snapshot | None:
        return await self.inner.find_snapshot(session_id, agent=agent)

    async def keep_snapshot(self, session_id: str, snapshot: Snapshot, *, agent: str, epoch: int) -> bool:
        return await self.inner.keep_snapshot(session_id, snapshot, agent=agent, epoch=epoch)

    async def drop_snapshots(self, session_id: str, *, agent: str, epoch: int) -> None:
        await self.inner.drop_snapshots(session_id, agent=agent, epoch=epoch)

    async def unfinished(self, agent: str) -> list[str]:
        return await self.inner.unfinished(agent)

    async def waiting(self) -> dict[str, int]:
        return await self.inner.waiting()

    async def due(self, agent: str) -> list[tuple[str, float]]:
        return await self.inner.due(agent)

    async def suspended(self, agent: str, *, after: str = "", limit: int = 100) -> list[str]:
        return await self.inner.suspended(agent, after=after, limit=limit)

    async def sessions(self, agent: str | None = None) -> list[SessionSummary]:
        return await self.inner.sessions(agent)

    async def to_erase(self, limit: int = 100) -> list[SessionKey]:
        return await self.inner.to_erase(limit)

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        return await self.inner.erase_trees(roots, unchanged_since=unchanged_since)

    async def backup(self, target: Path) -> Backup:
        return await self.inner.backup(target)

    async def agents_with_session(self, session_id: str) -> list[str]:
        return await self.inner.agents_with_session(session_id)

    async def head(self, agent: str, session_id: str) -> SessionSummary | None:
        return await self.inner.head(agent, session_id)

    def cached_head(self, agent: str, session_id: str) -> SessionSummary | None:
        return self.inner.cached_head(agent, session_id)

    async def children(self, agent: str, session_id: str) -> list[SessionSummary]:
        return await self.inner.children(agent, session_id)

    async def children_of(self, keys: Sequence[SessionKey]) -> list[SessionSummary]:
        return await self.inner.children_of(keys)

    async def page(
        self, session_filter: SessionFilter = ALL, *, after: Cursor | None = None, limit: int = 100
    ) -> list[SessionSummary]:
        return await self.inner.page(session_filter, after=after, limit=limit)

    async def counts(self, agent: str | None = None) -> dict[State, int]:
        return await self.inner.counts(agent)

    async def delete(self, session_id: str, *, agent: str | None = None) -> None:
        await self.inner.delete(session_id, agent=agent)


class AsyncCommitJournal(WrappedJournal):
    """Journal wrapper for `durability="relaxed"`: confirms batches when they are queued. They are written in order within about 50 ms.

    A crash loses all batches that were confirmed after one moment, in all sessions. Before a tool call may have an
    effect, its `CallsStartedRecord` record and everything before it are on the disk.
    """

    @property
    def is_relaxed(self) -> bool:
        return True

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        waits = not entry.records or any(type(record) is CallsStartedRecord for record in entry.records)
        await self.inner.commit(entry, epoch=epoch, durable=durable and waits)


Redact = Callable[[str], str]
"""A function that returns a text without its sensitive parts."""
FAILED = "[not written: redact= failed]"
"""Text that is written in place of a text for which the redaction function failed."""
_log = logger_of(__name__)


def check_redact(value: object) -> None:
    """Validate the `redact=` argument.

    Raises:
        ConfigurationError: The value is not None and not a synchronous function.
    """
    if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise ConfigurationError(f"redact= must be a synchronous function of a string, not {value!r:.200}")


class RedactedJournal(WrappedJournal):
    """Journal wrapper that applies the `redact` function to the texts of records before they are written."""

    def __init__(self, inner: Journal, redact: Redact) -> None:
        super().__init__(inner)
        self._redact = redact

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        await self.inner.commit(self._redacted(entry), epoch=epoch, durable=durable)

    def enqueue_write(self, entry: Entry, *, epoch: int) -> None:
        self.inner.enqueue_write(self._redacted(entry), epoch=epoch)

    def _redacted(self, entry: Entry) -> Entry:
        whole: Iterable[Record] = entry.records
        if any(type(record) is OutcomeRecord for record in whole):
            from .group_commit.record_reference_resolver import resolve  # noqa: PLC0415 - loads 12 modules, for journals alone

            whole = resolve(whole)
        records = tuple([redact_record(record, self._take_out) for record in whole])
        return attrs.evolve(entry, records=records)

    def _take_out(self, text: str) -> str:
        try:
            left: object = self._redact(text)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - user code may raise anything
            convert_user_error(raised, "redact=", "of the journal")
            _log.error("redact= failed, so a text was not written to the journal: %s", type(raised).__name__)
            return FAILED  # noqa: ASYNC104 - nothing is cancelled here; the text must not be written
        if not isinstance(left, str):
            _log.error(
                "redact= returned %s instead of a text, so a text was not written to the journal",
                type(left).__name__,
            )
            return FAILED
        return left


def redact_record(record: Record, redact: Redact) -> Record:
    """Apply `redact` to all texts of a record. Records without texts are returned unchanged."""
    kind: Any = type(record)
    if (change := _CHANGES.get(kind)) is not None:
        changed: Record = change(record, redact)
        return changed
    texts = {name: value for name in _marked_fields(kind) if (value := getattr(record, name))}
    changes = {name: _value(value, redact) for name, value in texts.items()}
    return attrs.evolve(record, **changes) if changes else record


def _said(record: AgentMessageRecord, redact: Redact) -> AgentMessageRecord:
    message = _message(record.message, redact)
    last_call = None if record.last_call is None else _call(record.last_call, redact)
    called = tuple([_call(call, redact) for call in record.called])
    return attrs.evolve(
        record,
        message=message,
        last_call=last_call,
        called=called,
        redacted=message.text != record.message.text,
    )


def _message(message: Message, redact: Redact) -> Message:
    parts = [_part(part, redact) for part in message.parts]
    kept = tuple([part for part in parts if part is not None])
    metadata = _value(message.metadata, redact) if message.metadata else message.metadata
    return attrs.evolve(message, parts=kept, metadata=metadata)


def _part(part: Part, redact: Redact) -> Part | None:
    """Return a redacted message part; None for thinking whose text changed.

    Thinking is signed as a whole and cannot be changed.
    """
    match part:
        case Text(text):
            return Text(redact(text))
        case Thinking(text=text):
            return part if redact(text) == text else None
        case ToolCall():
            return _call(part, redact)
        case ToolResult():
            return _result(part, redact)
    return part


def _call(call: ToolCall, redact: Redact) -> ToolCall:
    """Redact the arguments of a tool call. Changed arguments become a text, which no tool accepts, so that the call cannot run."""
    arguments = _value(call.arguments, redact)
    if arguments == call.arguments:
        return call
    if not isinstance(arguments, str):
        arguments = f"(redacted) {json.dumps(arguments, ensure_ascii=False, default=repr)}"
    return attrs.evolve(call, arguments=arguments)


def _result(result: ToolResult, redact: Redact) -> ToolResult:
    error = None if result.error is None else redact(result.error)
    return attrs.evolve(result, content=redact(result.content), error=error)


def _value(value: Any, redact: Redact) -> Any:
    """Apply `redact` to all strings of plain data. Keys of mappings stay."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: _value(item, redact) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return type(value)([_value(item, redact) for item in value])  # type: ignore[call-arg]
    return value


def _patches(patches: Mapping[str, Any], redact: Redact) -> Mapping[str, Any]:
    """Apply `redact` to the values in state differences. Their paths consist of keys and stay unchanged."""
    return {
        key: [[operation[0], *_value(operation[1:], redact)] for operation in patch]
        for key, patch in patches.items()
    }


def _json_text(data: str | None, redact: Redact) -> str | None:
    """Apply `redact` to the strings in a JSON text. None stays None."""
    return None if data is None else json.dumps(_value(json.loads(data), redact), ensure_ascii=False)


def _approval(approval: Approval, redact: Redact) -> Approval:
    arguments = _value(approval.arguments, redact)
    return attrs.evolve(approval, arguments=arguments, question=redact(approval.question))


def _decision(decision: Decision, redact: Redact) -> Decision:
    match decision:
        case Reject(reason):
            return Reject(redact(reason))
        case Respond(content):
            return Respond(_value(content, redact))
        case Edit(arguments, reason):
            if _value(arguments, redact) != arguments:
                return Withdraw()  # the approver did not approve the redacted arguments
            return Edit(arguments, redact(reason))
    return decision


def _fields(**changes: Callable[[Any, Redact], Any]) -> Callable[[Any, Redact], Any]:
    """Return a function `(record, redact)` that applies one change to each named field of a record."""
    return lambda record, redact: attrs.evolve(
        record, **{name: change(getattr(record, name), redact) for name, change in changes.items()}
    )


_CHANGES: Mapping[type, Callable[[Any, Redact], Any]] = {
    MessageAcceptedRecord: _fields(message=_message, baggage=_value),
    AgentMessageRecord: _said,
    CallFinishedRecord: _fields(result=_result),
    StateChangeRecord: _fields(changes=_value, patches=_patches),
    ApprovalRequestRecord: _fields(approval=_approval),
    ApprovalDecisionRecord: _fields(decision=_decision),
    OutcomeRecord: _fields(text=_value, data=_json_text, reasoning=_json_text),
}
"""Redaction of records whose fields are not plain data."""


@cache
def _marked_fields(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a record class that are marked as `REDACTED`."""
    return tuple(each.name for each in attrs.fields(kind) if "redacted" in each.metadata)
