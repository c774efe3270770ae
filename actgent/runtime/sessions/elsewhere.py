"""What a runtime needs of other processes that have sessions of its agents, and `actgent.cluster` gives it."""

from typing import Any, Protocol

from actgent.journal.base import SessionSummary
from actgent.journal.listing import SessionKey
from actgent.journal.records import Rated


class Elsewhere(Protocol):
    """The way to sessions that other processes have: agents and sessions by the words that they have here."""

    way: Any
    """What hands on requests of a gateway."""

    def agent(self, name: str) -> Any:
        """The agent of this name, wherever a session of it lives."""

    def session(self, agent: str, session_id: str, *, owner: str) -> Any:
        """A session that is known to be there."""

    async def delete_session(self, session_id: str, *, agent: str) -> None:
        """Close a session where it lives, and erase it."""

    async def fork_session(
        self, head: SessionSummary, *, to: int | None, session_id: str | None
    ) -> SessionSummary:
        """Write a session's copy where the new id lives."""

    async def keep_rating(self, key: SessionKey, rated: Rated) -> bool:
        """Keep a judgement where its session lives; False if just this was said before."""

    def id_of(self, session: object) -> str | None:
        """The id of such a session; None for what is none."""
