"""What the pipeline knows of a session that was handed over: somebody else answers its user."""

from typing import Protocol

from actgent.messages import Reply
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn


class Receivers(Protocol):
    """Agents that sessions may be handed over to."""

    def are_due(self, context: SessionContext, turn: Turn) -> bool:
        """Return True if another agent is to answer what the turn is about."""
        ...

    async def answer(self, context: SessionContext, turn: Turn) -> Reply | None:
        """Have it answer, and write its answer into the record; None where nobody has the session any more."""
        ...
