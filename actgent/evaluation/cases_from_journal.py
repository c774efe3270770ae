"""Evaluation cases made from recorded sessions: user messages as input, the recorded answer as the expected one."""

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from actgent.errors import JournalDamaged, WireError
from actgent.information_flow_labels import TRUSTED
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import MessageAcceptedRecord, MessageEndRecord, RatingRecord, Record
from actgent.journal.session_list_queries import SessionFilter
from actgent.messages import Message
from actgent.sessions.restore.session_loader import rebuild

PASSING_RATING = 0.5
"""Rating from which a recorded answer is expected again."""
CRITERIA = "The answer says in substance what the expected answer says, and contradicts it nowhere."
"""Judge criteria of cases made from sessions."""


async def cases_from_journal(
    journal: Journal, *, agent: str | None = None, session: str | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    """Make cases from the sessions of a journal: user messages, expected answer, and called tools.

    Return at most `limit` cases as dictionaries, latest sessions first. None as `agent` or `session` selects all.

    A case has the label (sources and readers) of all its user messages. A rating with a corrected answer replaces the recorded answer. Sessions without an answer, with a bad rating but no
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


async def case_of_session(
    journal: Journal, agent: str, session_id: str, *, message_id: str = "", expected: str = ""
) -> dict[str, Any] | None:
    """Make a case from one session, as `cases_from_journal` does.

    Return None if the session does not end with an answer that can be expected.

    Args:
        journal: Journal of the session.
        agent: Name of the session's agent.
        session_id: Id of the session.
        message_id: Id of the last message of the case; empty uses the whole session.
        expected: Expected answer; empty uses the recorded answer, or the corrected answer of its rating.
    """
    try:
        records: tuple[Record, ...] = await journal.load(session_id, agent=agent)
        end = _end_of_turn(records, message_id) if message_id else len(records)
        history = () if end is None else (await rebuild(records, to=end)).history
    except (JournalDamaged, WireError):
        return None
    given = [message for message in history if message.sender.kind == "user" and message.text.strip()]
    asked = [message.text for message in given]
    label = functools.reduce(operator.or_, (message.label for message in given), TRUSTED)
    rating, expected = _last_rating(records, message_id), expected.strip()
    if not expected and rating is not None and rating.expected:
        expected = rating.expected
    elif not expected and (rating is None or rating.score >= PASSING_RATING):
        expected = _last_answer(history)  # a bad answer without a correction is not expected
    if not asked or not expected:
        return None
    case: dict[str, Any] = {
        "name": f"{session_id}/{message_id}" if message_id else session_id,
        "session": {"agent": agent, "id": session_id},
        "input": asked,
        "expected": expected,
        "judge": CRITERIA,
    }
    if rating is not None:
        case["tags"] = ["good" if rating.score >= PASSING_RATING else "bad"]
        case["judge"] += (
            f" A reviewer commented on the recorded answer: {rating.comment}" if rating.comment else ""
        )
    if label.sources:
        case["sources"] = sorted(label.sources)
    if label.readers is not None:
        case["readers"] = sorted(label.readers)
    if names := list(dict.fromkeys(call.name for message in history for call in message.tool_calls)):
        case["calls"] = names
    return case


def _end_of_turn(records: Sequence[Record], message_id: str) -> int | None:
    """Return the number of the record that ends the turn of a message; None if the turn has no end."""
    for number, record in enumerate(records, 1):
        if isinstance(record, MessageEndRecord) and record.message_id == message_id:
            return number
    return None


def _last_rating(records: Iterable[Record], message_id: str) -> RatingRecord | None:
    """Return the latest rating of a message, or of the last message if the id is empty; None without a rating."""
    rating, wanted = None, message_id
    for record in records:
        if isinstance(record, MessageAcceptedRecord) and not message_id:
            rating, wanted = None, record.message.id
        elif isinstance(record, RatingRecord) and record.message_id == wanted:
            rating = record
    return rating


def _last_answer(history: Iterable[Message]) -> str:
    """Return the text of the agent's answer to the user's last message; empty if there is no answer."""
    last = ""
    for message in history:
        if message.sender.kind in ("assistant", "agent") and not message.tool_calls:
            last = message.text.strip()
        elif message.sender.kind == "user":
            last = ""
    return last
