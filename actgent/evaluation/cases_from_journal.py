"""Evaluation cases made from recorded sessions: user messages as input, the recorded answer as the expected one."""

from collections.abc import Iterable
from typing import Any

from actgent.errors import JournalDamaged, WireError
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import MessageAcceptedRecord, RatingRecord, Record
from actgent.journal.session_list_queries import SessionFilter
from actgent.messages import Message
from actgent.sessions.restore import rebuild

PASSING_RATING = 0.5
"""Rating from which a recorded answer is expected again."""
CRITERIA = "The answer says in substance what the expected answer says, and contradicts it nowhere."
"""Judge criteria of cases made from sessions."""


async def cases_from_journal(
    journal: Journal, *, agent: str | None = None, session: str | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    """Return up to `limit` cases as dictionaries, latest sessions first: user messages, expected answer, and called tools.

    A rating with a corrected answer replaces the recorded answer. Sessions without an answer, with a bad rating but no
    corrected answer, child sessions, and unreadable sessions are skipped.
    """
    cases: list[dict[str, Any]] = []
    wanted, after = SessionFilter(agent=agent, roots=True), None
    while len(cases) < limit and (page := await journal.page(wanted, after=after, limit=100)):
        after = page[-1].cursor
        for summary in page:
            if session in (None, summary.session_id) and len(cases) < limit:
                case = await case_of_session(journal, summary.agent, summary.session_id)
                cases += [] if case is None else [case]
    return cases


async def case_of_session(journal: Journal, agent: str, session_id: str) -> dict[str, Any] | None:
    """Return the case of one session; None if the session has no answer that can be expected. See `cases_from_journal`."""
    try:
        records: tuple[Record, ...] = await journal.load(session_id, agent=agent)
        history = (await rebuild(records)).history
    except (JournalDamaged, WireError):
        return None
    asked = [message.text for message in history if message.sender.kind == "user" and message.text.strip()]
    answer = _last_answer(history)
    if not asked or not answer:
        return None
    rating = _last_rating(records)
    if rating is not None and rating.expected:
        answer = rating.expected
    elif rating is not None and rating.score < PASSING_RATING:
        return None  # a bad answer without a correction gives no expected answer
    case: dict[str, Any] = {"name": session_id, "input": asked, "expected": answer, "judge": CRITERIA}
    if rating is not None:
        case["tags"] = ["good" if rating.score >= PASSING_RATING else "bad"]
        case["judge"] += (
            f" A reviewer commented on the recorded answer: {rating.comment}" if rating.comment else ""
        )
    if names := list(dict.fromkeys(call.name for message in history for call in message.tool_calls)):
        case["calls"] = names
    return case


def _last_rating(records: Iterable[Record]) -> RatingRecord | None:
    """Return the latest rating of the last message; None without a rating."""
    rating, last = None, None
    for record in records:
        if isinstance(record, MessageAcceptedRecord):
            rating, last = None, record.message.id
        elif isinstance(record, RatingRecord) and record.message_id == last:
            rating = record
    return rating


def _last_answer(history: Iterable[Message]) -> str:
    """Return the agent's last answer. Empty if no answer follows the user's last message."""
    last = ""
    for message in history:
        if message.sender.kind in ("assistant", "agent") and not message.tool_calls:
            last = message.text.strip()
        elif message.sender.kind == "user":
            last = ""
    return last
