"""Rules that actgent promises, checked against the journal and the notes of callers after the last life.

The journal is the witness: the order of its records is claimed to be the order of everything that happened, so each promise
is a comparison, not a search. Sources: docs/concepts/guarantees.md and docs/durability.md.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import attrs

from actgent.journal.records import (
    AgentMessageRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
)
from actgent.messages import ToolResult
from actgent.testing.history_checks import ClientCall, calls_and_results, check_order, is_sound, message_marks

from .run_story import SessionStory, Story
from .simulated_world import START

CLOCK_SLACK_SECONDS = 0.001
"""Maximum difference between the simulated time and the time in a record: two readings of the clock are never equal."""


@attrs.define
class Notes:
    """Observations of callers and handlers in a simulation. They survive simulated crashes and are compared with the journal."""

    sent: dict[str, str] = attrs.field(factory=dict)
    """Session ids by the ids of messages that were sent."""
    first_sent: dict[str, int] = attrs.field(factory=dict)
    """Number of the events before the first call that sent a message, by message id."""
    accepted: dict[str, str] = attrs.field(factory=dict)
    """Session ids by the ids of messages whose call returned."""
    order: list[tuple[int, int, str, str]] = attrs.field(factory=list)
    """Calls of `chat()` that returned: numbers of the events before and after, message id and session id."""
    results: dict[tuple[str, str], set[tuple[str, str]]] = attrs.field(factory=dict)
    """Delivery ids and statuses of the tool results that handlers received, by session and call id."""
    final: dict[str, str] = attrs.field(factory=dict)
    """Kinds of final failures that handlers received, by message id."""
    stopped: dict[str, float] = attrs.field(factory=dict)
    """Times at which `interrupt()` returned, by message id."""
    closing: set[str] = attrs.field(factory=set)
    """Ids of sessions that a caller tried to close."""
    closed: set[str] = attrs.field(factory=set)
    """Ids of sessions whose `aclose()` returned."""
    closed_in_journal: set[str] = attrs.field(factory=set)
    """Ids of sessions that are closed in the journal at the end."""
    is_stopping: bool = False
    """True while the runtime stops in a regular way."""


def check_run(story: Story, notes: Notes, effects: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Yield a description of each violated guarantee of a simulated run.

    Args:
        story: The run, with the journal's records.
        notes: Observations of callers and handlers.
        effects: Declared effects (`pure`, `idempotent`, `once`) of the tools, by agent and tool.
    """
    for session in story.sessions():
        yield from _check_messages(session, notes)
        yield from _check_acceptance_order(session, notes)
        yield from _check_stopped(session, notes)
        yield from _check_calls(session, effects)
    yield from _check_delivery(notes)
    yield from _check_closed(notes)
    accepted = {
        each.message.id
        for session in story.sessions()
        for each in session.records
        if isinstance(each, MessageAcceptedRecord)
    }
    for message_id in notes.accepted:
        if message_id not in accepted:
            yield f"{message_id} was accepted, but the journal does not have it"


def _check_messages(session: SessionStory, notes: Notes) -> Iterator[str]:
    """Check that each accepted message ends exactly once.

    It may be accepted again only after an end that allows it.
    """
    for message_id, found in message_marks(session.records).items():
        if not is_sound(found):
            yield f"message {message_id} of {session.id} has the records {' '.join(found)}"
        if message_id in notes.sent and notes.sent[message_id] != session.id:
            yield f"message {message_id} of {notes.sent[message_id]} is in {session.id}"
        final = notes.final.get(message_id)
        if final is not None and found[-1] != final:
            yield f"{message_id} was reported as failed ({final}), but the journal has {found[-1]}"


def _check_acceptance_order(session: SessionStory, notes: Notes) -> Iterator[str]:
    """Check that a message whose `chat()` returned before another call began comes first in the journal."""
    places = {
        each.message.id: n
        for n, each in enumerate(session.records)
        if isinstance(each, MessageAcceptedRecord)
    }
    yield from check_order(
        (
            ClientCall(session_id=session.id, message_id=message_id, began=began, ended=returned)
            for began, returned, message_id, session_id in notes.order
            if session_id == session.id
        ),
        places,
    )


def _check_stopped(session: SessionStory, notes: Notes) -> Iterator[str]:
    """Check that no model answers a message whose turn begins after its `interrupt()` has returned."""
    current = ""
    for record in session.records:
        if isinstance(record, MessageAppendedRecord):
            stopped = notes.stopped.get(record.message_id)
            is_late = stopped is not None and record.at > START + stopped + CLOCK_SLACK_SECONDS
            current = record.message_id if is_late else ""
        elif current and isinstance(record, AgentMessageRecord) and record.stop:
            yield f"{current} was stopped at {notes.stopped[current]:.3f}, but a model answered it later"
            current = ""


def _check_calls(session: SessionStory, effects: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Check that each tool call has exactly one result, and its status agrees with the effect."""
    calls, results = calls_and_results(session.records)
    counts = Counter(each.call_id for each in results)
    for call in calls.values():
        if counts[call.id] != 1:
            yield f"call {call.id} of {call.name} in {session.id} has {counts[call.id]} results"
    began, done = Counter(run.call_id for run in session.began), Counter(run.call_id for run in session.done)
    for result in results:
        called = calls.get(result.call_id)
        effect = "pure" if called is None else effects.get((session.agent, called.name), "pure")
        if effect != "pure":
            yield from _check_result(session, result, effect, began[result.call_id], done[result.call_id])
    keys = dict[str, set[str]]()
    for run in session.began:
        keys.setdefault(run.call_id, set()).add(run.idempotency_key)
        if effects.get((session.agent, run.tool)) == "once" and began[run.call_id] > 1:
            yield f"{run.tool} in {session.id} is declared once, but began {began[run.call_id]} times for one call"
    for call_id, found in keys.items():
        if len(found) > 1:
            yield f"call {call_id} in {session.id} ran with {len(found)} idempotency keys"


def _check_result(
    session: SessionStory, result: ToolResult, effect: str, began: int, done: int
) -> Iterator[str]:
    """Compare the status of a result with how often the tool began and took effect.

    `effect` is the declared effect.
    """
    name = f"{result.tool_name} in {session.id}"
    if result.status == "success" and not done:
        yield f"{name} is reported as success, but took no effect"
    if effect == "once" and result.status == "success" and done > 1:
        yield f"{name} took effect {done} times"
    if effect == "once" and result.status == "cancelled" and began:
        yield f"{name} is reported as cancelled, but began"


def _check_delivery(notes: Notes) -> Iterator[str]:
    """Check that handlers never receive two different outcomes for one call."""
    for (session_id, call_id), outcomes in notes.results.items():
        if len(outcomes) > 1:
            yield f"handlers of {session_id} received {len(outcomes)} outcomes of call {call_id}: {sorted(outcomes)}"


def _check_closed(notes: Notes) -> Iterator[str]:
    for session_id in notes.closed - notes.closed_in_journal:
        yield f"aclose() of {session_id} returned, but the session is open in the journal"
