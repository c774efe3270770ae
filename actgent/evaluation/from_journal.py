"""Cases made from what was said: the questions of recorded sessions, with their answers as what is expected."""

from collections.abc import Iterable
from typing import Any

from actgent.errors import JournalDamaged, WireError
from actgent.journal.base import Journal
from actgent.journal.listing import SessionFilter
from actgent.journal.records import Accepted, Rated, Record
from actgent.messages import Message
from actgent.sessions.restore import rebuild

GOOD = 0.5
"""From which score on a recorded answer is what is expected."""
CRITERIA = "The answer says in substance what the expected answer says, and contradicts it nowhere."


async def cases_from_journal(
    journal: Journal, *, agent: str | None = None, session: str | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    """At most `limit` plain cases, the latest sessions first: what users said, the last answer, and the tools that were called.

    What a reader said to be right is expected instead of the answer; an answer that was judged bad without that makes none.
    Sessions without an answer, below others, or that cannot be read are left out.
    """
    cases: list[dict[str, Any]] = []
    wanted, after = SessionFilter(agent=agent, roots=True), None
    while len(cases) < limit and (page := await journal.page(wanted, after=after, limit=100)):
        after = page[-1].cursor
        for summary in page:
            if session in (None, summary.session_id) and len(cases) < limit:
                cases += await _case(journal, summary.agent, summary.session_id)
    return cases


async def _case(journal: Journal, agent: str, session_id: str) -> list[dict[str, Any]]:
    try:
        records: tuple[Record, ...] = await journal.load(session_id, agent=agent)
        history = (await rebuild(records)).history
    except (JournalDamaged, WireError):
        return []
    asked = [message.text for message in history if message.sender.kind == "user" and message.text.strip()]
    answer = _last_answer(history)
    if not asked or not answer:
        return []
    rating = _last_rating(records)
    if rating is not None and rating.expected:
        answer = rating.expected
    elif rating is not None and rating.score < GOOD:
        return []  # nobody knows what would have been right
    case: dict[str, Any] = {"name": session_id, "input": asked, "expected": answer, "judge": CRITERIA}
    if rating is not None:
        case["tags"] = ["good" if rating.score >= GOOD else "bad"]
        case["judge"] += f" A reader said of the recorded one: {rating.comment}" if rating.comment else ""
    if names := list(dict.fromkeys(call.name for message in history for call in message.tool_calls)):
        case["calls"] = names
    return [case]


def _last_rating(records: Iterable[Record]) -> Rated | None:
    """The latest judgement of the last message, if there is one."""
    rating, last = None, None
    for record in records:
        if isinstance(record, Accepted):
            rating, last = None, record.message.id
        elif isinstance(record, Rated) and record.message_id == last:
            rating = record
    return rating


def _last_answer(history: Iterable[Message]) -> str:
    """Return what the agent said last, if it had the last word."""
    last = ""
    for message in history:
        if message.sender.kind in ("assistant", "agent") and not message.tool_calls:
            last = message.text.strip()
        elif message.sender.kind == "user":
            last = ""
    return last
