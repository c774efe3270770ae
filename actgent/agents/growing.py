"""An answer that is still growing: what of it may be shown, and what is kept if it is cut."""

import attrs

from actgent.messages import Token

from .context import SessionContext
from .dispatcher import Dispatcher
from .turn import Turn


@attrs.define(eq=False)
class GrowingAnswer:
    """Takes the pieces of an answer and hands on what the protocol shows of them."""

    _dispatcher: Dispatcher
    _context: SessionContext
    _turn: Turn
    _attempt: int = 0
    _shown: int = 0

    async def add(self, text: str, attempt: int) -> None:
        """The next piece. A new attempt voids what the former ones said."""
        turn = self._turn
        if attempt != self._attempt:
            self._attempt, self._shown, turn.partial = attempt, 0, ""
        if turn.waiter is not None:
            await turn.waiter.grow(text, attempt)
        turn.partial += text
        visible = turn.options.protocol.partial(turn.partial)
        if visible is None or len(visible) <= self._shown:
            return
        token = Token(visible[self._shown :], turn.answer_id, attempt)
        self._shown = len(visible)
        if turn.waiter is not None:
            await turn.waiter.wait_room()
            turn.check()
        turn.exposed = False  # an interruption waits for the handler
        await self._dispatcher.dispatch(self._context, token)
        turn.exposed = True
        turn.check()
