"""What readers think of answers: judged, kept beside the messages, and read again for evaluations."""

from collections.abc import Mapping

import attrs

from actgent.control.arguments import check_id
from actgent.control.clock import Clock
from actgent.errors import ConfigurationError, Fenced, SessionNotFound, UsageError
from actgent.journal.base import Entry, Journal, one_of
from actgent.journal.listing import SessionKey
from actgent.journal.records import Accepted, Ended, Opened, Rated

from .elsewhere import Elsewhere

_PAGE = 200
MAX_TEXT = 10_000
"""Characters of a comment, or of what would have been right."""


def check_rating(score: object, comment: object, expected: object) -> None:
    """Refuse what is no judgement.

    Raises:
        ConfigurationError: the score is not from 0 to 1, or a text is too long.
    """
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        raise ConfigurationError(f"score is a number from 0 (bad) to 1 (good), not {score!r:.200}")
    for name, text in (("comment", comment), ("expected", expected or "")):
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ConfigurationError(f"{name} is a text of at most {MAX_TEXT:,} characters")


async def read_ratings(journal: Journal, key: SessionKey, message_id: str) -> Mapping[str, Rated]:
    """Return what each reader thinks of the answer to a message: the latest word of each, by name.

    Raises:
        SessionNotFound: there is no such session.
        UsageError: it has no such message, or one that is not answered yet.
    """
    head = await journal.head(*key)
    if head is None:
        raise SessionNotFound(key.agent, key.session_id)
    found: dict[str, Rated] = {}
    has_ended, last = False, head.records
    while last > 0:
        start = max(0, last - _PAGE)
        page = await journal.read(key.session_id, agent=key.agent, after=start, limit=last - start)
        for record in reversed(page):
            if isinstance(record, Rated) and record.message_id == message_id:
                found.setdefault(record.by, record)
            elif isinstance(record, Ended):
                has_ended = has_ended or record.message_id == message_id
            elif isinstance(record, Accepted) and record.message.id == message_id and has_ended:
                return found
        last = start
    raise UsageError(
        f"the session has no message {message_id!r:.200} that was dealt with: only answers are judged"
    )


class Ratings:
    """What readers think of answers, as a runtime keeps it."""

    journal: Journal | None
    clock: Clock
    elsewhere: Elsewhere | None

    async def rate(
        self,
        session_id: str,
        message_id: str,
        *,
        agent: str | None = None,
        score: float,
        comment: str = "",
        expected: str | None = None,
        by: str,
    ) -> bool:
        """Keep what a reader thinks of the answer to a message, for `actgent eval --from-journal`.

        A later word of the same reader replaces the one before; returns False if just this was said before. The session may
        be closed, and its agent need not run.

        Args:
            session_id: The session.
            message_id: The message that was answered.
            agent: Whose session, where several agents have one of this id.
            score: From 0, which is bad, to 1.
            comment: For people.
            expected: What would have been right.
            by: The reader.

        Raises:
            ConfigurationError: there is no journal, this is no judgement, or several agents have a session of this id.
            SessionNotFound: the journal has no such session.
            UsageError: the session has no such message, or it is not answered yet.
            JournalError: it could not be written.
            BrokerLost: in a cluster, the node where the session lives did not answer; it may be kept or not.
        """
        check_rating(score, comment, expected)
        check_id("by", by)
        if self.journal is None:
            raise ConfigurationError(
                "feedback stands in the journal, and this runtime has none: open_runtime(journal=...)"
            )
        agents = await self.journal.agents_of(session_id)
        key = one_of(agents if agent is None else [agent], session_id)
        if key is None:
            raise SessionNotFound(agent or "", session_id)
        now = self.clock.now()
        rating = Rated(message_id=message_id, score=score, comment=comment, expected=expected, by=by, at=now)
        try:
            return await _keep(self.journal, key, rating)
        except Fenced:
            if self.elsewhere is None:
                raise
        return await self.elsewhere.keep_rating(key, rating)


async def _keep(journal: Journal, key: SessionKey, rating: Rated) -> bool:
    """Write a judgement, unless its reader has said just this before; returns whether it was new.

    Raises:
        SessionNotFound, UsageError: see `read_ratings`.
        JournalError: it could not be written.
    """
    epoch = journal.epoch_of(key.session_id)
    known = (await read_ratings(journal, key, rating.message_id)).get(rating.by)
    if known is not None and attrs.evolve(known, at=rating.at) == rating:
        return False
    entry = Entry(session_id=key.session_id, agent=key.agent, records=(rating,), follows=True)
    await journal.commit(entry, epoch=epoch)
    first = await journal.read(key.session_id, agent=key.agent, limit=1)
    if not first or not isinstance(first[0], Opened):  # erased meanwhile: nothing of it is to come back
        await journal.delete(key.session_id, agent=key.agent)
        raise SessionNotFound(key.agent, key.session_id)
    return True
