"""A replay beside its recording: where the two first say something else."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from actgent.journal.records import (
    Accepted,
    ActionFailed,
    Appended,
    Changed,
    Delivered,
    Ended,
    Record,
    RolledBack,
    Said,
)
from actgent.messages import Message, ToolCall, ToolResult
from actgent.state.store import Store

from .recorded_views import is_summary

State = Mapping[str, Any]
_Line = tuple[int, str]
"""The number of a record, and what it says."""


@attrs.frozen
class Difference:
    """Where a replay first says something else than the recording."""

    step: int
    """The number of the record in the recording; one more than it has, where the replay goes on."""
    recorded: str
    """What the recording has there, in words; "nothing more" where it has ended."""
    replayed: str
    """What the replay has there, in the same words."""

    def __str__(self) -> str:
        return f"record {self.step}: recorded {self.recorded}, replayed {self.replayed}"


def first_difference(
    records: Sequence[Record], replayed: Sequence[Record], states: Sequence[State], *, prompts: bool
) -> Difference | None:
    """The first difference of a replay; a recording that is unfinished may go on."""
    told = prompts and all(r.prompt for r in records if isinstance(r, Said) and r.stop)
    waiting = range(0) if _is_unfinished(records) else _behind_last_turn(records)
    told_lines = _lines(records, _states_after_turns(records), with_prompts=told)
    recorded = [
        (step, line) for step, line in told_lines if step not in waiting or not _is_note(records[step - 1])
    ]
    lines = list(_lines(replayed, states, with_prompts=told))
    for (step, line), (_, other) in zip(recorded, lines, strict=False):
        if line != other:
            return Difference(step, line, other)
    if len(recorded) > len(lines):
        return Difference(*recorded[len(lines)], "nothing more")
    if len(lines) > len(recorded) and not _is_unfinished(records):
        return Difference(len(records) + 1, "nothing more", lines[len(recorded)][1])
    return None


def _is_unfinished(records: Sequence[Record]) -> bool:
    begun = [record.message_id for record in records if isinstance(record, Appended)]
    ended = {record.message_id for record in records if isinstance(record, Ended)}
    return bool(begun) and begun[-1] not in ended


def _behind_last_turn(records: Sequence[Record]) -> range:
    """The numbers of the records in which notes wait for a turn that is still to come: a replay makes them when it begins."""
    ends = [number for number, record in enumerate(records, 1) if isinstance(record, Ended)]
    return range(ends[-1] + 1 if ends else 1, len(records) + 1)


def _is_note(record: Record) -> bool:
    return isinstance(record, Said) and not record.stop


def _lines(records: Sequence[Record], states: Sequence[State], *, with_prompts: bool) -> Iterator[_Line]:
    """Render a conversation without ids and times; what was cut off on the way is left out."""
    accepted: dict[str, Message] = {}
    told: set[str] = set()
    after = iter(states)
    begun: set[str] = set()
    answer = ""
    for step, record in enumerate(records, 1):
        match record:
            case Accepted(message=message):
                accepted[message.id] = message
            case Appended(message_id=message_id):
                begun.add(message_id)
                yield step, f"message {_words(accepted[message_id])}"
            case Said(message=message) if record.stop or not (message.cut or is_summary(message)):
                if record.prompt and with_prompts:
                    yield step, f"system prompt and tools {record.prompt}"
                answer = message.id if record.stop else answer
                yield step, f"{record.stop or 'note'} {_words(message)}"
            case Delivered(ids=ids):
                for each in ids:
                    if each.startswith(answer) and each not in told:
                        told.add(each)
                        yield step, f"outcome {each.removeprefix(answer).strip('/') or 'reply'}"
            case Ended(message_id=message_id, failed=failed) if message_id in begun:
                ending = "answered" if failed is None else f"failed ({_same(failed)})"
                state = dict(sorted(next(after, {}).items()))
                yield step, f"turn {ending}, state {_PASSING.sub('...', repr(state))}"


_PASSING = re.compile(r"\b[0-9a-f]{12}-[0-9a-f]{8}\b|\b[12]\d{9}\.\d+")
"""Ids of messages and times, which a protocol may keep in the state: they are others in each run."""


def _same(failed: str) -> str:
    return "interrupted" if failed == "stopped" else failed


def _words(message: Message) -> str:
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
            case Changed() | ActionFailed() | RolledBack():
                store.restore(record)
            case Appended(message_id=message_id):
                begun.add(message_id)
            case Ended(message_id=message_id) if message_id in begun:
                states.append(dict(store))
    return states
