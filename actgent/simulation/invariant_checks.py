"""Checks of the guarantees of actgent after a simulation, by the journal and the observations of callers.

The journal claims that the order of its records is the order of all events. So each guarantee is checked by a comparison,
not by a search. Sources: docs/concepts/guarantees.md and docs/durability.md.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from actgent.journal.record_types import (
    REFUSED,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    CallsStartedRecord,
    CancellationRecord,
    FailureRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    OutcomeRecord,
    Record,
    ScheduleRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    UsageRecord,
)
from actgent.messages import Message, Priority, Text, ToolResult
from actgent.runtime.sessions.session_lifecycle import CLOSED_REASON
from actgent.testing.session_history_consistency import (
    REPEATABLE_ENDS,
    ClientCall,
    calls_and_results,
    check_order,
    find_contradictions,
    is_sound,
    message_marks,
)

from .caller_observations import COPY_PREFIX, CallerObservations, ObservationKind
from .run_report import SessionStory, Story
from .simulated_world import START

PUNCTUAL_SECONDS = 30.0
"""Time after which a schedule must have fired in a simulated process in which nothing prevents it."""
CLOCK_SLACK_SECONDS = 0.001
"""Maximum difference between the simulated time and the time in a record: two readings of the clock are never equal."""


def check_run(
    story: Story, notes: CallerObservations, effects: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    """Yield a description of each violated guarantee of a simulated run.

    Args:
        story: The run, with the journal's records.
        notes: Observations of callers and handlers.
        effects: Declared effects (`pure`, `idempotent`, `once`) of the tools, by agent and tool.
    """
    for session in story.sessions():
        if _is_unsupervised((session.agent, session.id), notes):
            yield from (f"{session.id}: {problem}" for problem in find_contradictions(session.records))
            if COPY_PREFIX in session.id and any(
                isinstance(each, ScheduleRecord) and each.description in notes.timed_states
                for each in session.records
            ):  # a tool may set other schedules in a copy
                yield f"{session.id} is a copy, but it has schedules"
            continue
        yield from _check_messages(session, notes)
        yield from _check_acceptance_order(session, notes)
        yield from _check_stopped(session, notes)
        yield from _check_calls(session, effects)
        yield from _check_decisions(session, notes)
        yield from _check_requests_after_effect(session, effects)
        yield from _check_replies(session, notes)
        yield from _check_timed(session, notes)
        yield from _check_given_up(session, notes)
        yield from _check_turn_order(session, notes)
        yield from _check_told_results(session, notes)
        yield from _check_stored_first(session, notes)
    yield from _check_delivery(notes)
    yield from _check_closed(notes)
    yield from _check_trees(notes)
    yield from _check_limits(notes)
    accepted = {
        each.message.id
        for session in story.sessions()
        for each in session.records
        if isinstance(each, MessageAcceptedRecord)
    }
    for message_id in notes.accepted:
        if message_id not in accepted:
            yield f"{message_id} was accepted, but the journal does not have it"


def _is_unsupervised(key: tuple[str, ...], notes: CallerObservations) -> bool:
    """Return True if the last simulated process does not wait for the work of a session.

    Such a session, or one of its ancestors, is a copy, or stayed open when its parent was closed.
    """
    above: tuple[str, ...] | None = key
    while above is not None and COPY_PREFIX not in above[1] and above not in notes.children_left_open:
        above = notes.parents.get((above[0], above[1]))
    return above is not None


def _check_messages(session: SessionStory, notes: CallerObservations) -> Iterator[str]:
    """Check that each accepted message ends exactly once. Yield a description of each violation.

    A message may be accepted again only after an end that allows it.
    """
    if session.records and not isinstance(session.records[0], SessionCreatedRecord):
        yield f"the first record of {session.id} is {type(session.records[0]).__name__}"
    for record in itertools.dropwhile(_is_not_close, session.records):
        if isinstance(record, MessageAcceptedRecord | MessageAppendedRecord | AgentMessageRecord):
            yield f"{session.id} has a {type(record).__name__} after its close"
    for message_id, found in message_marks(session.records).items():
        if not is_sound(found):
            yield f"message {message_id} of {session.id} has the records {' '.join(found)}"
        if message_id in notes.sent and not _is_below(
            (session.agent, session.id), notes.sent[message_id], notes
        ):
            yield f"message {message_id} of {notes.sent[message_id]} is in {session.id}"
        final = notes.final_failures.get((session.id, message_id))
        if final is not None and not (found[-1] == final or (final in REPEATABLE_ENDS and final in found)):
            yield f"{message_id} was reported as failed ({final}), but the journal has {found[-1]}"


def _is_below(key: tuple[str, ...], session_id: str, notes: CallerObservations) -> bool:
    """Return True if the session `key` is the session `session_id`, or a child session to which a handoff forwards its messages."""
    above: tuple[str, ...] | None = key
    while above is not None and above[1] != session_id:
        above = notes.parents.get((above[0], above[1]))
    return above is not None


def _is_not_close(record: Record) -> bool:
    return not isinstance(record, SessionClosedRecord)


def _check_acceptance_order(session: SessionStory, notes: CallerObservations) -> Iterator[str]:
    """Check that a message whose `chat()` returned before another call began comes first in the journal."""
    accepted = [each.message.id for each in session.records if isinstance(each, MessageAcceptedRecord)]
    counts = Counter(accepted)  # a message that was accepted twice has no single place
    places = {message_id: n for n, message_id in enumerate(accepted) if counts[message_id] == 1}
    yield from check_order(_calls_to(session, notes), places)


def _calls_to(session: SessionStory, notes: CallerObservations) -> Iterator[ClientCall]:
    """Yield the calls of `chat()` to a session that have returned."""
    for began, returned, message_id, session_id in notes.chat_calls:
        if session_id == session.id:
            yield ClientCall(session_id=session.id, message_id=message_id, began=began, ended=returned)


def _check_stopped(session: SessionStory, notes: CallerObservations) -> Iterator[str]:
    """Check that no model answers a message whose turn begins after its `interrupt()` has returned."""
    counts = Counter(
        each.message.id for each in session.records if isinstance(each, MessageAcceptedRecord)
    )  # a dropped message that was accepted twice may have ended before, so that it may be answered
    stops = {each: at for each, at in notes.dropped_at.items() if counts[each] == 1} | notes.interrupted_at
    current = ""
    for record in session.records:
        if isinstance(record, MessageAppendedRecord):
            stopped = stops.get(record.message_id)
            is_late = stopped is not None and record.at > START + stopped + CLOCK_SLACK_SECONDS
            current = record.message_id if is_late else ""
        elif current and isinstance(record, AgentMessageRecord) and record.stop:
            yield f"{current} was stopped at {stops[current]:.3f}, but a model answered it later"
            current = ""


def _check_calls(session: SessionStory, effects: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Yield a problem for each tool call without exactly one result, or with a status that contradicts its tool's effect."""
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


def _check_requests_after_effect(
    session: SessionStory, effects: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    """Check that no approval was requested for a call after its tool took effect. A rejection would say that it never ran."""
    effective = {
        run.call_id: run.began_at
        for run in reversed(session.done)
        if effects.get((run.agent, run.tool), "pure") != "pure"
    }
    for record in session.records:
        if isinstance(record, ApprovalRequestRecord):
            call_id, asked_at = record.approval.call_id, record.approval.created_at - START
            if effective.get(call_id, asked_at) + CLOCK_SLACK_SECONDS < asked_at:
                yield f"an approval was requested for the call {call_id} of {session.id}, but its tool had taken effect"


def _check_result(
    session: SessionStory, result: ToolResult, effect: str, began: int, done: int
) -> Iterator[str]:
    """Check that the status of a tool result agrees with the runs of the tool.

    `effect` is the declared effect of the tool, `began` the number of its runs, and `done` the number of runs that took
    effect.
    """
    name = f"{result.tool_name} in {session.id}"
    if result.status == "success" and not done:
        yield f"{name} is reported as success, but took no effect"
    if effect == "once" and result.status == "success" and done > 1:
        yield f"{name} took effect {done} times"
    if effect == "once" and result.status == "cancelled" and began:
        yield f"{name} is reported as cancelled, but began"


def _check_stored_first(session: SessionStory, notes: CallerObservations) -> Iterator[str]:
    """Check that the journal stored each record before a caller observed its content, so that no crash can undo it."""
    series = notes.series.get((session.agent, session.id))
    for each in notes.stored_first:
        if (each.agent, each.session_id, each.series) != (session.agent, session.id, series):
            continue  # of another session, or of one that was erased
        if not _is_stored(each.kind, each.name, session.records[: each.records]):
            yield f"the {each.kind} {each.name} of {session.id} was observed before the journal had it"


def _is_stored(kind: ObservationKind, name: str, records: Sequence[Record]) -> bool:  # noqa: PLR0911 - a case for each kind
    """Return True if the records contain the record of an observation: of this kind and id."""
    match kind:
        case "reply":
            return any(
                (isinstance(each, AgentMessageRecord) and each.message.id == name)
                or (isinstance(each, OutcomeRecord) and each.id == name)
                for each in records
            )
        case "result":
            return any(each.call_id == name for each in calls_and_results(records)[1])
        case "failure":
            has_ended = message_marks(records).get(name, ["accepted"])[-1] != "accepted"
            return has_ended or any(
                isinstance(each, FailureRecord) and each.message_id == name for each in records
            )
        case "acceptance":
            return name in message_marks(records)
        case "decision":
            return any(
                isinstance(each, ApprovalDecisionRecord) and each.approval_id == name for each in records
            )
        case "close":
            return any(isinstance(each, SessionClosedRecord) for each in records)
        case "interrupt":
            has_ended = message_marks(records).get(name, ["accepted"])[-1] != "accepted"
            return has_ended or any(
                isinstance(each, CancellationRecord | FailureRecord) and each.message_id == name
                for each in records
            )
        case "tool":
            return any(isinstance(each, CallsStartedRecord) and name in each.call_ids for each in records)
        case "request":
            counted = sum(
                each.model_calls for each in records if isinstance(each, UsageRecord) and not each.turn
            )
            return counted >= int(name)


def _check_delivery(notes: CallerObservations) -> Iterator[str]:
    """Check that handlers never receive two different outcomes of one tool call."""
    for (session_id, call_id), outcomes in notes.received_statuses.items():
        if len(outcomes) > 1:
            yield f"handlers of {session_id} received {len(outcomes)} outcomes of call {call_id}: {sorted(outcomes)}"


def _check_closed(notes: CallerObservations) -> Iterator[str]:
    """Check that each session that a caller closed or deleted is closed or deleted in the journal.

    A close whose caller was cancelled, or whose write failed, must be complete at the end of the process if there was no other
    fault.
    """
    is_open = {session_id for _, session_id in notes.open_in_journal}
    for session_id in sorted(notes.closed - notes.closed_in_journal):
        yield f"aclose() of {session_id} returned, but the session is open in the journal"
    for session_id, life in notes.close_processes.items():
        if life in notes.settled_processes and session_id in is_open - notes.closed:
            yield f"aclose() of {session_id} began in life {life}, but the session is open in the journal"
    for session_id in sorted(notes.deleted_sessions):
        if any(known == session_id for _, known in notes.parents):
            yield f"delete_session() of {session_id} returned, but the session is in the journal"


def _check_trees(notes: CallerObservations) -> Iterator[str]:
    """Check that each open session has an open parent, and that the journal has the parent of each session."""
    for key, parent in notes.parents.items():
        if parent is None:
            continue
        if parent not in notes.parents:
            yield f"{key[1]} is in the journal, but its parent {parent[1]} was deleted"
        elif key in notes.open_in_journal - notes.children_left_open and parent not in notes.open_in_journal:
            yield f"{key[1]} is open in the journal, but its parent {parent[1]} is closed"


def _check_limits(notes: CallerObservations) -> Iterator[str]:
    """Check that no session has exceeded its limit of model calls over all simulated processes."""
    for session_id, limit in notes.limits.items():
        if (count := notes.requests.get(session_id, 0)) > limit:
            yield f"{session_id} has a limit of {limit} model calls, but made {count}"


def _check_replies(session: SessionStory, notes: CallerObservations) -> Iterator[str]:
    """Check that the journal has each reply that handlers received."""
    recorded = set[str]()
    for record in session.records:
        if isinstance(record, AgentMessageRecord):
            recorded.add(record.message.id)
        elif isinstance(record, OutcomeRecord):
            recorded.add(record.id)
    for reply_id, session_id in notes.replies.items():
        if session_id == session.id and reply_id not in recorded:
            yield f"handlers of {session_id} received the reply {reply_id}, but the journal does not have it"


def _check_decisions(session: SessionStory, notes: CallerObservations) -> Iterator[str]:
    """Check that each approval has exactly one decision: the decision of the `answer()` call that returned."""
    recorded = dict[str, set[str]]()
    for record in session.records:
        if isinstance(record, ApprovalDecisionRecord):
            recorded.setdefault(record.approval_id, set()).add(type(record.decision).__name__)
    for approval_id, names in recorded.items():
        if len(names) > 1:
            yield f"the approval {approval_id} has the decisions {' and '.join(sorted(names))} in the journal"
    began = {run.call_id for run in session.began}
    for approval_id, decisions in notes.decisions.items():
        own = [(call_id, name) for session_id, call_id, name in decisions if session_id == session.id]
        if len(own) > 1:
            yield f"{len(own)} decisions of the approval {approval_id} returned"
        for call_id, name in own:
            if name not in recorded.get(approval_id, ()):
                yield f"answer() of {approval_id} with {name} returned, but the journal does not have the decision"
            if name == "Reject" and call_id in began:
                yield f"the call {call_id} of {session.id} was rejected, but it began"


def _check_given_up(session: SessionStory, notes: CallerObservations) -> Iterator[str]:
    """Check that no turn answers a message whose call was refused or cancelled, unless the caller has repeated the call."""
    for record in session.records:
        if not isinstance(record, MessageAppendedRecord) or record.message_id not in notes.abandoned_messages:
            continue
        at, life, is_certain = notes.abandoned_messages[record.message_id]
        is_late = record.at > START + at + CLOCK_SLACK_SECONDS
        if is_late and (is_certain or life in notes.undisturbed_processes):
            yield f"{record.message_id} was refused or cancelled at {at:.3f}, but its turn began later"


def _check_turn_order(session: SessionStory, notes: CallerObservations) -> Iterator[str]:
    """Check that turns begin in the order of the calls that sent the messages, even after a restart."""
    found = [each.message for each in session.records if isinstance(each, MessageAcceptedRecord)]
    counts = Counter(message.id for message in found)
    plain = {each.id for each in found if each.priority is Priority.NORMAL and each.on_busy == "queue"}
    begun = [each.message_id for each in session.records if isinstance(each, MessageAppendedRecord)]
    places = {
        message_id: place
        for place, message_id in reversed([*enumerate(begun)])
        if message_id in plain and counts[message_id] == 1
    }
    for problem in check_order(_calls_to(session, notes), places):
        yield f"{problem}, by the beginnings of the turns"


def _check_told_results(session: SessionStory, notes: CallerObservations) -> Iterator[str]:
    """Check that the journal has each tool result that handlers received."""
    recorded = {each.call_id: each.status for each in calls_and_results(session.records)[1]}
    for call_id, (session_id, status) in notes.last_statuses.items():
        if session_id == session.id and recorded.get(call_id) != status:
            yield (
                f"handlers of {session_id} received a result of {call_id} with the status {status}, "
                f"but the journal has {recorded.get(call_id)}"
            )


def _check_timed(session: SessionStory, notes: CallerObservations) -> Iterator[str]:
    """Check that each schedule has sent one message and each task one report, unless a caller has removed it."""
    marks = message_marks(session.records)
    accepted = [each.message for each in session.records if isinstance(each, MessageAcceptedRecord)]
    found = [message for message in accepted if marks[message.id][-1] != REFUSED]
    for key, (session_id, state) in notes.timed_states.items():
        if session_id != session.id:
            continue
        count = len({message.id for message in found if _is_from(message, key)})
        is_repaired = notes.removal_ends.get(key, (0.0, 0))[1] in notes.repaired_processes
        is_kept = state == "kept" and is_repaired
        yield from _check_removal([each for each in found if _is_from(each, key)], key, notes)
        if count and key in notes.schedule_times and session.id not in notes.closing:
            yield from _check_punctual(session, notes, key)
        if count > 1:
            yield f"{key} has {count} messages in {session.id}"
        elif count and (state == "removed" or (state == "failed" and is_repaired)):
            yield f"{key} was {'removed' if state == 'removed' else 'not set'}, but sent a message to {session.id}"
        elif count and state == "cancelled" and notes.removal_ends[key][1] in notes.undisturbed_processes:
            yield f"the call that set {key} was cancelled, but it sent a message to {session.id}"
        elif not count and (state in ("set", "sent") or is_kept) and session.id not in notes.closing:
            yield f"{key} was set, but sent no message to {session.id}"


def _check_removal(sent: Sequence[Message], key: str, notes: CallerObservations) -> Iterator[str]:
    """Check that a schedule or task whose removal returned False had already sent its message.

    The message must not be a report of the removal itself.

    Args:
        sent: Messages of the schedule or task.
        key: Text of the schedule, or id of the task.
        notes: Observations of callers.
    """
    session_id, state = notes.timed_states[key]
    if not sent or state != "sent":
        return
    at, life = notes.removal_ends[key]
    if life in notes.undisturbed_processes and sent[0].created_at > START + at + CLOCK_SLACK_SECONDS:
        yield f"the removal of {key} found nothing at {at:.3f}, but its message was sent later"
    is_cancellation = any(isinstance(part, Text) and CLOSED_REASON in part.text for part in sent[0].parts)
    # A crash may interrupt the close of the session after the close of its task, which then reports this close.
    if is_cancellation and session_id not in notes.closing:
        yield f"{key} was cancelled, and its report says so"


def _check_punctual(session: SessionStory, notes: CallerObservations, key: str) -> Iterator[str]:
    """Check that a schedule has fired in the first simulated process that was able to fire it."""
    due, set_at = notes.schedule_times[key]
    sent = [each.message for each in session.records if isinstance(each, MessageAcceptedRecord)]
    fired_at = min(each.created_at for each in sent if _is_from(each, key)) - START
    for number, (ready, end) in notes.settled_processes.items():
        if max(due, set_at, ready) + PUNCTUAL_SECONDS < min(end, fired_at):
            yield f"{key} was due at {due:.3f}, but life {number} did not send its message to {session.id}"
            return


def _is_from(message: Message, key: str) -> bool:
    """Return True if a schedule with the text `key`, or a task with the id `key`, sent the message."""
    if message.sender.kind == "system":
        return any(isinstance(part, Text) and part.text.endswith(f" {key}") for part in message.parts)
    return message.sender.kind == "agent" and message.id.endswith(f"{key}/result")
