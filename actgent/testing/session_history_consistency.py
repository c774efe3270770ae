"""Checks of the records of sessions against each other and against the logs of clients.

The records of a session must be in the order of the events. So the checks compare the log of a client with this order, in
O(n log n). Without this rule, a check would have to search for a possible order.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.journal.record_types import (
    AgentMessageRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    OutcomeRecord,
    Record,
    SessionCreatedRecord,
)
from actgent.messages import ToolCall, ToolResult

REPEATABLE_ENDS = ("refused", "journal", "stopped", "moved")
"""Kinds of ends after which the same message may be sent, and accepted, again."""


@attrs.frozen(kw_only=True)
class ClientCall:
    """A call of a client that sent a message and returned."""

    session_id: str
    """Id of the session to which the message was sent."""
    message_id: str
    """Id of the sent message."""
    began: float
    """Time at which the call began, in any unit of the client's clock."""
    ended: float
    """Time at which the call returned, on the same clock."""
    agent: str = ""
    """Name of the session's agent; empty if only one agent has a session with this id."""
    reply: str | None = None
    """Text of the reply that the call returned; None if the call did not wait for a reply."""


def find_contradictions(
    records: Sequence[Record], calls: Iterable[ClientCall] = (), *, is_finished: bool = False
) -> Iterator[str]:
    """Yield a description of each contradiction in the records of a session, and between them and the calls of clients.

    Args:
        records: All records of the session, oldest first.
        calls: Calls of clients that sent messages to the session, in any order. They must have returned without an error.
        is_finished: True if no work may be left: each accepted message must have ended.
    """
    if records and not isinstance(records[0], SessionCreatedRecord):
        yield f"the first record is {type(records[0]).__name__}, expected SessionCreatedRecord"
    yield from _check_messages(records, is_finished=is_finished)
    yield from _check_results(records)
    yield from _check_client_calls(records, list(calls))


def message_marks(records: Iterable[Record]) -> dict[str, list[str]]:
    """Return the acceptances and ends of each message in the order of the records, by message id.

    An acceptance is the text `accepted`. An end is the text `answered` or the kind of a failure.
    """
    marks = dict[str, list[str]]()
    for record in records:
        if isinstance(record, MessageAcceptedRecord):
            marks.setdefault(record.message.id, []).append("accepted")
        elif isinstance(record, MessageEndRecord):
            marks.setdefault(record.message_id, []).append(record.failed or "answered")
    return marks


def _check_messages(records: Sequence[Record], *, is_finished: bool) -> Iterator[str]:
    """Check that each accepted message ends at most once.

    Another acceptance may follow only an end that allows it. Yield contradictions.
    """
    for message_id, found in message_marks(records).items():
        if not is_sound(found, is_finished=is_finished):
            yield f"message {message_id} has the records {' '.join(found)}"
    accepted: set[str] = set()
    for step, record in enumerate(records, 1):
        if isinstance(record, MessageAcceptedRecord):
            accepted.add(record.message.id)
        elif isinstance(record, MessageAppendedRecord) and record.message_id not in accepted:
            yield f"record {step}: the turn of message {record.message_id} begins before the message was accepted"


def is_sound(marks: Sequence[str], *, is_finished: bool = True) -> bool:
    """Return True if the recorded acceptances and ends of one message alternate, and only the last end is final.

    Args:
        marks: Acceptances and ends of the message, as `message_marks` returns them.
        is_finished: False if the last acceptance may be without an end.
    """
    kept = [
        mark for n, mark in enumerate(marks) if mark != "refused" or (n > 0 and marks[n - 1] == "accepted")
    ]
    accepted, ends = kept[::2], kept[1::2]
    return (
        (len(kept) % 2 == 0 or not is_finished)
        and all(mark == "accepted" for mark in accepted)
        and "accepted" not in ends
        and all(end in REPEATABLE_ENDS for end in ends[: len(accepted) - 1])
    )


def calls_and_results(records: Iterable[Record]) -> tuple[dict[str, ToolCall], list[ToolResult]]:
    """Return the tool calls in complete answers by call id, and all tool results in the order of the records.

    Calls of truncated answers are left out.
    """
    calls, results = dict[str, ToolCall](), list[ToolResult]()
    for record in records:
        if isinstance(record, AgentMessageRecord):
            if not record.message.cut:
                calls.update({call.id: call for call in record.message.tool_calls})
            results += record.message.tool_results
    return calls, results


def _check_results(records: Sequence[Record]) -> Iterator[str]:
    """Check that each call has at most one result, and exactly one before the next answer of the model.

    Yield contradictions.
    """
    calls, results = calls_and_results(records)
    counts = Counter(each.call_id for each in results)
    for call in calls.values():
        if counts[call.id] > 1:
            yield f"call {call.id} of {call.name} has {counts[call.id]} results"
    open_calls: dict[str, ToolCall] = {}
    for step, record in enumerate(records, 1):
        if not isinstance(record, AgentMessageRecord):
            continue
        for result in record.message.tool_results:
            open_calls.pop(result.call_id, None)
        if record.stop and open_calls:
            names = ", ".join(call.name for call in open_calls.values())
            yield f"record {step}: the model answers while calls have no result: {names}"
            open_calls.clear()
        if not record.message.cut:
            open_calls.update({call.id: call for call in record.message.tool_calls})


# --- calls of clients -----------------------------------------------------------------------


def _check_client_calls(records: Sequence[Record], calls: Sequence[ClientCall]) -> Iterator[str]:
    """Check that each message of a client is recorded, in order if calls did not overlap.

    Replies to clients must be those of the records.
    """
    places = {
        each.message.id: place
        for place, each in enumerate(records)
        if isinstance(each, MessageAcceptedRecord)
    }
    for call in calls:
        if call.message_id not in places:
            yield f"{call.message_id} was accepted, but the journal does not have it"
    yield from check_order(calls, places)
    if any(call.reply is not None for call in calls):
        replies = _replies(records)
        for call in calls:
            found = replies.get(call.message_id)
            if call.reply is not None and call.message_id in places and call.reply != found:
                yield f"{call.message_id} was answered with {call.reply!r}, but the journal has {found!r}"


def check_order(calls: Iterable[ClientCall], places: Mapping[str, int]) -> Iterator[str]:
    """Yield a description for each call whose message precedes, in the journal, the message of an earlier call.

    A call is earlier if it ended before the other call began.

    Args:
        calls: Calls of clients to one session.
        places: Positions of the acceptances in the journal, by message id. Calls of other messages are ignored.
    """
    known = [each for each in calls if each.message_id in places]
    by_end = sorted(known, key=lambda each: each.ended)
    latest: ClientCall | None = None
    done = 0
    for call in sorted(known, key=lambda each: each.began):
        while done < len(by_end) and by_end[done].ended < call.began:
            ended = by_end[done]
            if latest is None or places[ended.message_id] > places[latest.message_id]:
                latest = ended
            done += 1
        if latest is not None and places[latest.message_id] > places[call.message_id]:
            yield (
                f"{latest.message_id} was accepted before {call.message_id} was sent, but comes after it in the journal"
            )


def _replies(records: Sequence[Record]) -> dict[str, str]:
    """Return the text of the last reply to each message, by message id."""
    replies: dict[str, str] = {}
    current, text = "", ""
    for record in records:
        match record:
            case MessageAppendedRecord(message_id=message_id):
                current, text = message_id, ""
            case AgentMessageRecord() if record.stop:
                text = record.message.text
            case OutcomeRecord(kind="reply"):
                text = record.text or ""
            case MessageEndRecord(message_id=message_id, failed=None) if message_id == current:
                replies[message_id] = text
    return replies


_CALL_KEYS = {"session": "session_id", "message": "message_id", "began": "began", "ended": "ended"}


def load_client_calls(path: str | Path) -> list[ClientCall]:
    """Read the log of a client: JSON lines with the keys `session`, `message`, `began`, `ended`, and perhaps `agent` and `reply`.

    Raises:
        ConfigurationError: The file cannot be read, or a line is not such an object; the message names the line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read as a log of calls: {error}") from None
    return [_call_of(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _call_of(line: str, place: str) -> ClientCall:
    try:
        found: Any = json.loads(line)
        fields = {field: found[key] for key, field in _CALL_KEYS.items()}
        return ClientCall(
            session_id=str(fields["session_id"]),
            message_id=str(fields["message_id"]),
            began=float(fields["began"]),
            ended=float(fields["ended"]),
            agent=str(found.get("agent", "")),
            reply=None if found.get("reply") is None else str(found["reply"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"{place} must be an object with session, message, began and ended ({error!r})"
        ) from None
