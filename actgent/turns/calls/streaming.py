"""An answer that is still growing: what of it may be shown, and what is kept if it is cut."""

import time

import attrs

from actgent.messages import make_token
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn
from actgent.turns.dispatcher import Dispatcher


@attrs.define(eq=False)
class AnswerStream:
    """Takes the pieces of an answer and hands on what the protocol shows of them."""

    _dispatcher: Dispatcher
    _context: SessionContext
    _turn: Turn
    _attempt: int = 0

    async def add(self, text: str, attempt: int) -> None:
        """The next piece. A new attempt voids what the former ones said."""
        turn = self._turn
        if attempt != self._attempt or turn.answer.growth is None:
            self._attempt, turn.answer.growth = attempt, turn.options.protocol.growth()
            turn.answer.first_at = time.monotonic()
        for listener in turn.listeners:
            await listener.grow(text, attempt)
        said = turn.answer.growth.add(text)
        for attached in self._context.handlers.of("growing"):
            attached.handler(self._attempt)
        if said:
            await self._show(said)

    async def finish(self, text: str) -> None:
        """All pieces of this answer are there; none of them, if it did not come in pieces."""
        growth = self._turn.answer.growth
        if growth is not None and growth.text.size == len(text) and (said := growth.finish()):
            await self._show(said)

    async def _show(self, said: str) -> None:
        turn = self._turn
        for listener in turn.listeners:
            await listener.wait_room()
            turn.check()
        turn.control.cover()  # an interruption waits for the handler
        await self._dispatcher.dispatch(self._context, make_token(said, turn.answer.id, self._attempt))
        turn.control.expose()
