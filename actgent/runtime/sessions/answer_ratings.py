"""Ratings of answers by users, recorded in the journal and read by evaluations."""

from collections.abc import Mapping

import attrs

from actgent.errors import ConfigurationError, Fenced, SessionNotFound, UsageError
from actgent.journal.journal_interface import Entry, Journal, only_session_key
from actgent.journal.record_types import (
    MessageAcceptedRecord,
    MessageEndRecord,
    RatingRecord,
    Record,
    SessionCreatedRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.limits_and_schedules.clock import Clock
from actgent.limits_and_schedules.id_and_number_validation import check_id

from .remote_session_interface import RemoteSessions

_PAGE = 200
MAX_TEXT = 10_000
"""Maximum characters of a comment or of the expected answer."""


def check_rating(score: object, comment: object, expected: object) -> None:
    """Raise if the score, the comment or the expected answer of a rating is invalid.

    Raises:
        ConfigurationError: The score is not from 0 to 1, or a text is too long.
    """
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        raise ConfigurationError(f"score must be a number from 0 (bad) to 1 (good), not {score!r:.200}")
    for name, text in (("comment", comment), ("expected", expected or "")):
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ConfigurationError(f"{name} must be a string of at most {MAX_TEXT:,} characters")


async def read_ratings(journal: Journal, key: SessionKey, message_id: str) -> Mapping[str, RatingRecord]:
    """Return the latest rating of each user for the answer to a message, by user name.

    Raises:
        SessionNotFound: The session does not exist.
        UsageError: The session has no such message, or the message has no answer yet.
    """
    head = await journal.head(*key)
    if head is None:
        raise SessionNotFound(key.agent, key.session_id)
    found: dict[str, RatingRecord] = {}
    has_ended, last = False, head.records
    while last > 0:
        start = max(0, last - _PAGE)
        page = await journal.read(key.session_id, agent=key.agent, after=start, limit=last - start)
        for record in reversed(page):
            if isinstance(record, RatingRecord) and record.message_id == message_id:
                found.setdefault(record.by, record)
            elif isinstance(record, MessageEndRecord):
                has_ended = has_ended or record.message_id == message_id
            elif isinstance(record, MessageAcceptedRecord) and record.message.id == message_id and has_ended:
                return found
        last = start
    raise UsageError(
        f"the session has no answered message {message_id!r:.200}: pass the id of a message that has an answer"
    )


class Ratings:
    """Mixin of the runtime that records ratings of answers."""

    journal: Journal | None
    clock: Clock
    remote_sessions: RemoteSessions | None

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
        """Record a user's rating of the answer to a message, for `actgent eval --from-journal`.

        A later rating of the same user replaces the previous one. Returns False if it equals the previous one. The
        session may be closed, and its agent need not be running.

        Args:
            session_id: Id of the session.
            message_id: Id of the answered message.
            agent: Name of the session's agent; required if several agents have a session with this id.
            score: Rating from 0 (bad) to 1 (good).
            comment: Free text; empty for none.
            expected: Expected answer; None for none.
            by: Name of the user who rates.

        Raises:
            ConfigurationError: The runtime has no journal, the rating is invalid, or several agents have a session with
                this id.
            SessionNotFound: The journal has no such session.
            UsageError: The session has no such message, or the message has no answer yet.
            JournalError: The rating could not be recorded.
            ServerUnreachable: In a cluster, the node that owns the session did not answer; the rating may be recorded or
                not.
        """
        check_rating(score, comment, expected)
        check_id("by", by)
        if self.journal is None:
            raise ConfigurationError(
                "ratings are stored in the journal, and this runtime has no journal: pass journal= to open_runtime()"
            )
        agents = await self.journal.agents_with_session(session_id)
        key = only_session_key(agents if agent is None else [agent], session_id)
        if key is None:
            raise SessionNotFound(agent or "", session_id)
        now = self.clock.now()
        rating = RatingRecord(
            message_id=message_id, score=score, comment=comment, expected=expected, by=by, at=now
        )
        try:
            return await _record_rating(self.journal, key, rating)
        except Fenced:
            if self.remote_sessions is None:
                raise
        return await self.remote_sessions.record_rating(key, rating)


async def _record_rating(journal: Journal, key: SessionKey, rating: RatingRecord) -> bool:
    """Record a rating in the journal, unless it equals the last rating of the same user.

    Return True if the rating was recorded.

    Raises:
        SessionNotFound: The session does not exist.
        UsageError: The session has no such message, or the message has no answer yet.
        JournalError: The rating could not be written.
    """
    epoch = journal.epoch_of(key.session_id)
    known = (await read_ratings(journal, key, rating.message_id)).get(rating.by)
    if known is not None and attrs.evolve(known, at=rating.at) == rating:
        return False
    await write_outside_session(journal, key, rating, epoch)
    return True


async def write_outside_session(journal: Journal, key: SessionKey, record: Record, epoch: int) -> None:
    """Write a record of a session durably to the journal without loading the session.

    `epoch` is the ownership epoch (fencing number) under which this process may write the session.

    Raises:
        SessionNotFound: The session does not exist, or was erased during the write.
        JournalError: The record could not be written.
    """
    entry = Entry(session_id=key.session_id, agent=key.agent, records=(record,), follows=True)
    await journal.commit(entry, epoch=epoch)
    first = await journal.read(key.session_id, agent=key.agent, limit=1)
    if not first or not isinstance(
        first[0], SessionCreatedRecord
    ):  # the session was erased during the commit: no record of it may remain
        await journal.delete(key.session_id, agent=key.agent)
        raise SessionNotFound(key.agent, key.session_id)
