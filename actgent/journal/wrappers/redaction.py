"""Redaction: remove sensitive text from records before they are written.

The running conversation keeps the original text. After a restart the conversation has the redacted text. Tool calls
with redacted arguments never run again: their arguments are then a text, not an object.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import attrs

from actgent.approvals import Approval, Decision, Edit, Reject, Respond, Withdraw
from actgent.errors import ConfigurationError
from actgent.journal.journal_interface import Entry, Journal
from actgent.journal.record_types import (
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    CallFinishedRecord,
    MessageAcceptedRecord,
    OutcomeRecord,
    Record,
    StateChangeRecord,
)
from actgent.messages import Message, Part, Text, Thinking, ToolCall, ToolResult
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import convert_user_error

from .journal_wrapper import WrappedJournal

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
            from actgent.journal.group_commit import resolve  # noqa: PLC0415 - loads 12 modules, for journals alone

            whole = resolve(whole)
        records = tuple([redacted(record, self._take_out) for record in whole])
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


def redacted(record: Record, redact: Redact) -> Record:
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
    """Return a redacted tool call. If its arguments change, they become a text, which no tool accepts."""
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
