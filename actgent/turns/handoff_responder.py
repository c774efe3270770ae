"""Interface for handed-off sessions, in which another agent answers the user."""

from typing import Protocol

from actgent.messages import Reply
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn


class HandoffResponder(Protocol):
    """Answers messages of sessions that are handed off to another agent."""

    def must_answer(self, context: SessionContext, turn: Turn) -> bool:
        """Return True if another agent has to answer the turn's message."""
        ...

    async def answer(self, context: SessionContext, turn: Turn) -> Reply | None:
        """Let the other agent answer, and record its reply. Return None if the session is no longer handed off."""
        ...
