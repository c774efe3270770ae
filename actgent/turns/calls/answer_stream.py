"""Streaming of a model answer: text deltas are filtered by the protocol and emitted to stream readers and handlers."""

import time

import attrs

from actgent.messages import make_token
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn
from actgent.turns.dispatcher import Dispatcher


@attrs.define(eq=False)
class AnswerStream:
    """Receives the text deltas of one model answer and emits the part that the protocol shows to users."""

    _dispatcher: Dispatcher
    _context: SessionContext
    _turn: Turn
    _attempt: int = 0

    async def add(self, text: str, attempt: int) -> None:
        """Process the next text delta. A new attempt number discards the text of earlier attempts."""
        turn = self._turn
        if attempt != self._attempt or turn.growth is None:
            self._attempt, turn.growth = attempt, turn.options.protocol.partial_answer()
            turn.first_at = time.monotonic()
        for listener in turn.listeners:
            await listener.receive_partial(text, attempt)
        said = turn.growth.add(text)
        for attached in self._context.handlers.get("growing", ()):
            attached.handler(self._attempt)
        if said:
            await self._show(said)

    async def finish(self, text: str) -> None:
        """Emit the remaining text after the last delta. Does nothing if the model did not stream the answer."""
        growth = self._turn.growth
        if growth is not None and growth.text.size == len(text) and (said := growth.finish()):
            await self._show(said)

    async def _show(self, said: str) -> None:
        turn = self._turn
        for listener in turn.listeners:
            await listener.wait_capacity()
            turn.check()
        turn.cover()  # an interruption waits for the handler
        await self._dispatcher.dispatch(self._context, make_token(said, turn.answer_id, self._attempt))
        turn.expose()
