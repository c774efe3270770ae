"""Checks of a journal's summaries and snapshots, which must agree with its records."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs

from actgent.journal.group_commit.row_format import Head
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.record_types import MessageAcceptedRecord, NextTimerRecord, Record
from actgent.journal.session_list_queries import SessionKey
from actgent.limits_and_schedules.durable_timer import first_time
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import Sender
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.pending.approval_ledger import ApprovalLedger, restore_ledger
from actgent.sessions.pending.delegated_tasks import TASK_TIMER
from actgent.sessions.restore.record_replayer import RecordReplayer, creation_record_of
from actgent.sessions.restore.session_loader import LoadedSession, digest_of, load_session, restore_loaded
from actgent.sessions.session_context import SessionContext
from actgent.testing.session_history_consistency import message_marks

from .caller_observations import TASK_PREFIX


def check_summary(summary: SessionSummary, records: Sequence[Record]) -> Iterator[str]:
    """Yield each difference between the stored summary of a session and its records. A start finds unfinished work by summaries."""
    marks = message_marks(records).values()
    unfinished = sum(each[-1] == "accepted" for each in marks)
    if summary.unfinished != unfinished:
        yield f"its summary has {summary.unfinished} unfinished messages, its records have {unfinished}"
    if summary.records != len(records):
        yield f"its summary has {summary.records} records, it has {len(records)}"
    if summary.suspended and not unfinished:
        yield "its summary is suspended, but all messages have ended"
    if unfinished == 1 and not summary.suspended and restore_ledger(records).is_suspended:
        yield "its only unfinished message is suspended, but its summary is not"


def check_stored_trees(
    heads: Mapping[SessionKey, Head], left_open: Collection[tuple[str, str]]
) -> Iterator[str]:
    """Yield a problem for each stored session without its first record, without its parent, or with a closed parent.

    `heads` are the newest stored rows of all sessions. The sessions `left_open` may be open below a closed parent.

    Only child sessions for tasks of callers must be closed before their parent. A restart closes those of a turn.
    """
    for head in heads.values():
        if not head.owner:
            yield f"a crash now would leave {head.session_id} without its first record"
        if not head.parent_id:
            continue
        parent = heads.get(SessionKey(head.parent_agent or "", head.parent_id))
        if parent is None:
            yield f"a crash now would leave {head.session_id} without its parent {head.parent_id}"
        elif (
            parent.closed
            and not head.closed
            and head.session_id.startswith(TASK_PREFIX)
            and head.key not in left_open
        ):
            yield f"a crash now would leave {head.session_id} open below its closed parent {head.parent_id}"


async def check_snapshot(journal: Journal, key: SessionKey, records: Sequence[Record]) -> list[str]:
    """Return how a session that is restored from its snapshot differs from the session that is restored from all records."""
    memory = ShortTermMemory()
    loaded = await load_session(journal, key, memory, lookback=0)
    if loaded.snapshot is None:
        return []
    facts = [await _restore(journal, key, each, records) for each in (loaded, LoadedSession(records))]
    return [
        f"its {name} from the snapshot is {facts[0][name]}, from the records {facts[1][name]}"
        for name in facts[0]
        if facts[0][name] != facts[1][name]
    ]


async def check_loaded(journal: Journal, context: SessionContext) -> list[str]:
    """Return the differences between an idle session in memory and the session restored from its records."""
    records = await journal.load(context.id, agent=context.agent)
    return compare_loaded(context, records, await journal.head(*context.key))


def compare_loaded(
    context: SessionContext, records: Sequence[Record], summary: SessionSummary | Head | None
) -> list[str]:
    """Return the differences between an idle session in memory and its stored records and summary.

    Only the next time of its timers may wait for a write; then it is not compared.
    """
    opened = creation_record_of(records)
    if opened is None or summary is None:
        return ["it is in memory, but the journal does not have it"]
    restored = SessionContext(
        context.id,
        Sender("nobody"),
        SessionConversation(ShortTermMemory().open_view()),
        context.agent,
        reducers=context.reducers,
    )
    replayer = RecordReplayer(restored)
    for record in records:
        replayer.read(record)
    replayer.result(opened)
    stored = _facts_of(restored) | {"suspended turn": summary.suspended, "next timer": summary.due}
    loaded = _facts_of(context) | _work_of(context)
    if context.log is not None and not context.log.is_idle:
        del loaded["next timer"]
    return [
        f"its {name} in memory is {loaded[name]}, in the journal {stored[name]}"
        for name in loaded
        if loaded[name] != stored[name]
    ]


def has_unwritten_records(context: SessionContext) -> bool:
    """Return True if records other than the next time of the session's timers wait for the next batch."""
    pending = () if context.log is None else context.log._pending
    return not all(isinstance(each, NextTimerRecord) for each in pending)


def state_mark(context: SessionContext, head: Head) -> tuple[object, ...]:
    """Return a value that changes when a session changes in memory or in the journal. It is cheaper than a full comparison."""
    ledger = context.approvals or ApprovalLedger()
    return (
        head.series,
        head.records,
        len(context.conversation.messages),
        tuple(context.timers),
        tuple(ledger.open),
        ledger.is_suspended,
        context.suspension is None,
    )


async def _restore(
    journal: Journal, key: SessionKey, loaded: LoadedSession, records: Sequence[Record]
) -> dict[str, object]:
    """Restore a session from the loaded data, and return its fields for a comparison. `records` are all its records."""
    context = SessionContext(
        key.session_id, Sender("nobody"), SessionConversation(ShortTermMemory().open_view()), key.agent
    )
    restored = await restore_loaded(loaded, context, journal)
    sent = {each.message.id for each in records if isinstance(each, MessageAcceptedRecord)}
    return _facts_of(context) | {
        "accepted messages": sorted(each for each in sent if context.has_accepted(each)),
        "waiting messages": [message.id for message in restored.waiting],
        "usage": restored.spent,
    }


def _work_of(context: SessionContext) -> dict[str, object]:
    """Return the fields about unfinished work that the summary of a session in memory would have.

    The next start selects sessions by these fields.
    """
    return {"suspended turn": context.suspension is not None, "next timer": first_time(context.timers)}


def _facts_of(context: SessionContext) -> dict[str, object]:
    ledger, unwritten = context.approvals or ApprovalLedger(), context.unwritten_turn
    # The record has the time that was left when it was written. The next process counts this time from its start.
    history = [attrs.evolve(each, deadline=None) for each in context.conversation.messages]
    return {
        "history": digest_of(history, dict(context.state_values)),
        "schedules": sorted(context.schedules.scheduled),
        # The tree of sessions sets the timer of a task.
        "timers": sorted(context.timers.keys() - {TASK_TIMER}),
        "open approvals": sorted(ledger.open),
        "suspension": ledger.is_suspended,
        "unwritten turn": None if unwritten is None else unwritten.message_id,
    }
