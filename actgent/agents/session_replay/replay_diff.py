"""Comparison of a replay with its recording, up to the first difference."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from actgent.journal.record_types import (
    ActionFailureRecord,
    AgentMessageRecord,
    DeliveryRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    Record,
    StateChangeRecord,
    StateRollbackRecord,
)
from actgent.messages import Message, ToolCall, ToolResult
from actgent.state.session_state import Store

from .recorded_summaries import is_summary

State = Mapping[str, Any]
_Line = tuple[int, str]
"""Pair of a record's number and its text."""


@attrs.frozen
class Difference:
    """First difference between a replay and its recording."""

    step: int
    """Number of the differing record in the recording, from 1.

    If the replay has additional records, it is the number after the last record.
    """
    recorded: str
    """Text of the recorded record; "nothing more" if the recording has ended."""
    replayed: str
    """Text of the replayed record; "nothing more" if the replay has ended."""

    def __str__(self) -> str:
        return f"record {self.step}: recorded {self.recorded}, replayed {self.replayed}"


def first_difference(
    records: Sequence[Record], replayed: Sequence[Record], states: Sequence[State], *, prompts: bool
) -> Difference | None:
    """Return the first difference between recorded and replayed records; None if they are equal.

    `states` has the session state after each replayed turn. With `prompts`, also compare system prompts and tools. If the last turn
    of the recording is unfinished, the replay may have additional records.
    """
    has_prompts = prompts and all(r.prompt for r in records if isinstance(r, AgentMessageRecord) and r.stop)
    waiting = range(0) if _is_unfinished(records) else _records_after_last_turn(records)
    recorded_lines = _lines(records, _states_after_turns(records), with_prompts=has_prompts)
    recorded = [
        (step, line)
        for step, line in recorded_lines
        if step not in waiting or not _is_note(records[step - 1])
    ]
    lines = list(_lines(replayed, states, with_prompts=has_prompts))
    for (step, line), (_, other) in zip(recorded, lines, strict=False):
        if line != other:
            return Difference(step, line, other)
    if len(recorded) > len(lines):
        return Difference(*recorded[len(lines)], "nothing more")
    if len(lines) > len(recorded) and not _is_unfinished(records):
        return Difference(len(records) + 1, "nothing more", lines[len(recorded)][1])
    return None


def _is_unfinished(records: Sequence[Record]) -> bool:
    begun = [record.message_id for record in records if isinstance(record, MessageAppendedRecord)]
    ended = {record.message_id for record in records if isinstance(record, MessageEndRecord)}
    return bool(begun) and begun[-1] not in ended


def _records_after_last_turn(records: Sequence[Record]) -> range:
    """Return the numbers of the records after the last ended turn. The next turn would read these records."""
    ends = [number for number, record in enumerate(records, 1) if isinstance(record, MessageEndRecord)]
    return range(ends[-1] + 1 if ends else 1, len(records) + 1)


def _is_note(record: Record) -> bool:
    return isinstance(record, AgentMessageRecord) and not record.stop


def _lines(records: Sequence[Record], states: Sequence[State], *, with_prompts: bool) -> Iterator[_Line]:
    """Yield the number and a comparable text for each record that the agent's code determines.

    `states` has the session state after each turn. Ids and times are removed from the text, because they differ in each
    run. Truncated answers and summaries are omitted.
    """
    accepted: dict[str, Message] = {}
    reported: set[str] = set()
    after = iter(states)
    begun: set[str] = set()
    answer = ""
    for step, record in enumerate(records, 1):
        match record:
            case MessageAcceptedRecord(message=message):
                accepted[message.id] = message
            case MessageAppendedRecord(message_id=message_id):
                begun.add(message_id)
                yield step, f"message {_message_text(accepted[message_id])}"
            case AgentMessageRecord(message=message) if record.stop or not (
                message.cut or is_summary(message)
            ):
                if record.prompt and with_prompts:
                    yield step, f"system prompt and tools {record.prompt}"
                answer = message.id if record.stop else answer
                yield step, f"{record.stop or 'note'} {_message_text(message)}"
            case DeliveryRecord(ids=ids):
                for each in ids:
                    if each.startswith(answer) and each not in reported:
                        reported.add(each)
                        yield step, f"outcome {each.removeprefix(answer).strip('/') or 'reply'}"
            case MessageEndRecord(message_id=message_id, failed=failed) if message_id in begun:
                ending = "answered" if failed is None else f"failed ({_normalize_failure(failed)})"
                state = dict(sorted(next(after, {}).items()))
                yield step, f"turn {ending}, state {_VOLATILE.sub('...', repr(state))}"


_VOLATILE = re.compile(r"\b[0-9a-f]{12}-[0-9a-f]{8}\b|\b[12]\d{9}\.\d+")
"""Pattern of message ids and times in the state, which differ in each run."""


def _normalize_failure(failed: str) -> str:
    return "interrupted" if failed == "stopped" else failed


def _message_text(message: Message) -> str:
    parts = [_without_ids(part) for part in message.parts]
    stage = "" if message.stage is None else f" at stage {message.stage!r}"
    return f"of {message.sender.kind} {message.sender.name!r}{stage}: {parts!r}"


def _without_ids(part: object) -> object:
    match part:
        case ToolCall():
            return ("call", part.name, part.arguments)
        case ToolResult():
            return ("result", part.tool_name, part.status, part.text)
    return part


def _states_after_turns(records: Sequence[Record]) -> Sequence[State]:
    store, begun, states = Store(), set[str](), list[State]()
    for record in records:
        match record:
            case StateChangeRecord() | ActionFailureRecord() | StateRollbackRecord():
                store.restore(record)
            case MessageAppendedRecord(message_id=message_id):
                begun.add(message_id)
            case MessageEndRecord(message_id=message_id) if message_id in begun:
                states.append(dict(store))
    return states
