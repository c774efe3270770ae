"""Comparisons of what a journal has twice: its summaries and snapshots repeat what the records say."""

from collections.abc import Iterator, Sequence

from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.record_types import MessageAcceptedRecord, Record
from actgent.journal.session_list_queries import SessionKey
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import Sender
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.restore import LoadedSession, digest_of, load_session, restore_loaded
from actgent.sessions.session_context import SessionContext
from actgent.testing.journal_history_checks import message_marks


def check_summary(summary: SessionSummary, records: Sequence[Record]) -> Iterator[str]:
    """Yield each difference between the summary of a session, by which a start finds its work, and its records."""
    marks = message_marks(records).values()
    unfinished = sum(each[-1] == "accepted" for each in marks)
    if summary.unfinished != unfinished:
        yield f"its summary has {summary.unfinished} unfinished messages, its records have {unfinished}"
    if summary.records != len(records):
        yield f"its summary has {summary.records} records, it has {len(records)}"
    if summary.suspended and not unfinished:
        yield "its summary is suspended, but all messages have ended"


async def check_snapshot(journal: Journal, key: SessionKey, records: Sequence[Record]) -> list[str]:
    """Return each difference between a session that is restored from its snapshot and from all its records."""
    memory = ShortTermMemory()
    loaded = await load_session(journal, key, memory, lookback=0)
    if loaded.beginning is None:
        return []
    facts = [await _restore(journal, key, each, records) for each in (loaded, LoadedSession(records))]
    return [
        f"its {name} from the snapshot is {facts[0][name]}, from the records {facts[1][name]}"
        for name in facts[0]
        if facts[0][name] != facts[1][name]
    ]


async def _restore(
    journal: Journal, key: SessionKey, loaded: LoadedSession, records: Sequence[Record]
) -> dict[str, object]:
    """Return what a restored session knows. `records` are all its records."""
    context = SessionContext(
        key.session_id, Sender("nobody"), SessionConversation(ShortTermMemory().open_view()), key.agent
    )
    restored = await restore_loaded(loaded, context, journal)
    sent = {each.message.id for each in records if isinstance(each, MessageAcceptedRecord)}
    ledger = context.ledger()
    return {
        "history": digest_of(list(context.conversation.messages), dict(context.seen_state)),
        "accepted messages": sorted(each for each in sent if context.has_accepted(each)),
        "waiting messages": [message.id for message in restored.waiting],
        "schedules": sorted(context.schedules.scheduled),
        "timers": sorted(context.timers),
        "open approvals": sorted(ledger.open),
        "suspension": ledger.is_suspended,
        "usage": restored.spent,
    }
