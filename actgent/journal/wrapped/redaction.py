"""Redaction: what is not to stand in a journal is taken out of each record before it is written.

Memory keeps what was said. After a restart the conversation is what the journal has, so what acts on words must not act
on redacted ones: arguments of tool calls that were redacted are no longer an object, and such a call never runs again.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from actgent.approvals import Approval, Decision, Edit, Reject, Respond, Withdraw
from actgent.errors import ConfigurationError
from actgent.journal.base import Entry, Journal
from actgent.journal.grouped import resolve
from actgent.journal.records import (
    Accepted,
    ActionFailed,
    Answered,
    Changed,
    Decided,
    Ended,
    Failed,
    Finished,
    Guarded,
    PersonAsked,
    Rated,
    Record,
    Said,
    Scheduled,
    Told,
    Unwanted,
)
from actgent.messages import Message, Part, Text, Thinking, ToolCall, ToolResult
from actgent.support.foreign import failure_of
from actgent.support.logs import logger_of

from .wrapper import WrappedJournal

Redact = Callable[[str], str]
"""A text without what is not to be written; the same text where there is nothing of that."""
FAILED = "[not written: redact= failed]"
"""What is written instead of a text that could not be redacted."""
_log = logger_of(__name__)


def check_redact(value: object) -> None:
    """Refuse what cannot redact a text at once.

    Raises:
        ConfigurationError: it is given, and no function, or an async one.
    """
    if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise ConfigurationError(f"redact= is a function of a text that does not wait, not {value!r:.200}")


class RedactedJournal(WrappedJournal):
    """Writes records without what a function takes out of their texts."""

    def __init__(self, inner: Journal, redact: Redact) -> None:
        super().__init__(inner)
        self._redact = redact

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        await self.inner.commit(self._redacted(entry), epoch=epoch, durable=durable)

    def write_soon(self, entry: Entry, *, epoch: int) -> None:
        self.inner.write_soon(self._redacted(entry), epoch=epoch)

    def _redacted(self, entry: Entry) -> Entry:
        whole = (
            resolve(entry.records) if any(type(record) is Told for record in entry.records) else entry.records
        )
        records = tuple([redacted(record, self._take_out) for record in whole])
        return attrs.evolve(entry, records=records)

    def _take_out(self, text: str) -> str:
        try:
            left: object = self._redact(text)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            failure_of(raised, "redact=", "of the journal")
            _log.error("redact= failed, so a text is not in the journal: %s", type(raised).__name__)
            return FAILED  # noqa: ASYNC104 - nothing is cancelled here; the text must not be written
        if not isinstance(left, str):
            _log.error(
                "redact= returned no text, but %s, so a text is not in the journal", type(left).__name__
            )
            return FAILED
        return left


def redacted(record: Record, redact: Redact) -> Record:
    """A record with its texts redacted; what has none is the record itself."""
    change = _CHANGES.get(type(record))
    return record if change is None else change(record, redact)


def _said(said: Said, redact: Redact) -> Said:
    message = _message(said.message, redact)
    last_call = None if said.last_call is None else _call(said.last_call, redact)
    called = tuple([_call(call, redact) for call in said.called])
    return attrs.evolve(
        said,
        message=message,
        last_call=last_call,
        called=called,
        redacted=message.text != said.message.text,
    )


def _message(message: Message, redact: Redact) -> Message:
    parts = [_part(part, redact) for part in message.parts]
    kept = tuple([part for part in parts if part is not None])
    metadata = _value(message.metadata, redact) if message.metadata else message.metadata
    return attrs.evolve(message, parts=kept, metadata=metadata)


def _part(part: Part, redact: Redact) -> Part | None:
    """A part, redacted; thoughts are signed as a whole, so they go as a whole."""
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
    """A call, redacted: arguments that are not what was called for are a text, which no tool takes."""
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
    """Plain data with its texts redacted, names of members left out."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: _value(item, redact) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return type(value)([_value(item, redact) for item in value])  # type: ignore[call-arg]
    return value


def _patches(patches: Mapping[str, Any], redact: Redact) -> Mapping[str, Any]:
    """Differences of the state with the texts in their values redacted; their paths are names of members."""
    return {
        key: [[operation[0], *_value(operation[1:], redact)] for operation in patch]
        for key, patch in patches.items()
    }


def _json_text(data: str | None, redact: Redact) -> str | None:
    """JSON with the texts in it redacted."""
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
                return Withdraw()  # nobody said that the tool may run with what is left of them
            return Edit(arguments, redact(reason))
    return decision


def _field(name: str, change: Callable[[Any, Redact], Any]) -> Callable[[Any, Redact], Any]:
    """Return the change of one field of a record."""
    return lambda record, redact: attrs.evolve(record, **{name: change(getattr(record, name), redact)})


def _fields(**changes: Callable[[Any, Redact], Any]) -> Callable[[Any, Redact], Any]:
    """Return the change of several fields of a record."""
    return lambda record, redact: attrs.evolve(
        record, **{name: change(getattr(record, name), redact) for name, change in changes.items()}
    )


_CHANGES: Mapping[type, Callable[[Any, Redact], Any]] = {
    Accepted: _fields(message=_message, baggage=_value),
    Said: _said,
    Finished: _field("result", _result),
    Changed: _fields(changes=_value, patches=_patches),
    ActionFailed: _field("error", _value),
    Answered: _field("text", _value),
    PersonAsked: _field("approval", _approval),
    Decided: _field("decision", _decision),
    Guarded: _fields(refused=_value, text=_value),
    Told: _fields(text=_value, data=_json_text, reasoning=_json_text),
    Failed: _fields(words=_value, fields=_value),
    Ended: _fields(words=_value),
    Rated: _fields(comment=_value, expected=_value),
    Unwanted: _fields(reason=_value),
    Scheduled: _fields(description=_value, baggage=_value, metadata=_value),
}
