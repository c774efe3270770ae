"""An agent while its block is open: its inbox, its sessions, and the tasks that carry their turns."""

from collections.abc import Awaitable, Callable

import trio

from actgent.actors.inbox import PriorityInbox
from actgent.actors.supervision import Supervision, supervise
from actgent.errors import (
    ConfigurationError,
    Interrupted,
    NotRunning,
    SessionClosed,
    SessionNotFound,
    Stopped,
    WouldDeadlock,
)
from actgent.events import EventStream, MessageAccepted, SessionEnded, SessionOpened
from actgent.messages import Message, Priority

from .context import SessionContext, Turn, TurnWaiter, is_inside
from .core import AgentCore

CLEANUP = 1.0
"""Seconds to close connections when the agent stops."""


class RunningAgent:
    """The actor. A message that may go out starts its turn at once, in a task of its own; an idle session has none."""

    def __init__(
        self,
        name: str,
        *,
        core: AgentCore,
        inbox: PriorityInbox[Message],
        events: EventStream,
        on_stop: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = name
        self.core = core
        self.inbox = inbox
        self.events = events
        self.sessions: dict[str, SessionContext] = {}
        self._on_stop = on_stop
        self._accepts = True
        self._draining = False
        self._turns: trio.Nursery | None = None
        self._scope = trio.CancelScope()

    # --- life ----------------------------------------------------------------------------

    async def live(self, supervision: Supervision) -> None:
        """Serve until stopped; whatever was accepted and not answered ends as a Failure then."""
        with self._scope:
            try:
                await supervise(self._serve, name=self.name, policy=supervision, events=self.events)
            finally:
                self._accepts = self._draining = False
                self._turns = None
                await self._fail_rest()
                with trio.move_on_after(CLEANUP, shield=True):
                    await self._on_stop()

    async def drain(self, grace: float) -> None:
        """Take no more messages but from handlers; give what is accepted `grace` seconds to end, then stop."""
        self._accepts = False
        self._draining = True
        with trio.move_on_after(grace):
            await self.inbox.wait_idle()
        self._scope.cancel()

    async def _serve(self) -> None:
        async with trio.open_nursery() as self._turns:
            self._pump()
            await trio.sleep_forever()

    def _pump(self) -> None:
        """Start the turns of all messages that may go out."""
        if self._turns is None:
            return
        while (message := self.inbox.poll()) is not None:
            context = self.sessions[message.session_id]
            self._turns.start_soon(self._take, context, self.core.begin_turn(context, message))

    async def _take(self, context: SessionContext, turn: Turn) -> None:
        """The turn of a claimed session, and those of the URGENT messages that came meanwhile."""
        try:
            await self.core.run_turn(context, turn)
            while (urgent := self.inbox.next_urgent(context.id)) is not None:
                await self.core.run_turn(context, self.core.begin_turn(context, urgent))
        finally:
            self.inbox.release(context.id)
            if context.closed or (context.transient and not context.pending):
                self.forget(context)
        self._pump()

    async def _fail_rest(self) -> None:
        with self.core.last_words():
            for session_id in self.inbox.sessions():
                waiting = self.inbox.withdraw(session_id)
                await self._fail_all(self.sessions[session_id], waiting, Stopped(self.name))

    async def _fail_all(self, context: SessionContext, messages: list[Message], error: Exception) -> None:
        for message in messages:
            await self.core.fail_unstarted(context, message, error)

    # --- sessions ------------------------------------------------------------------------

    def open(self, context: SessionContext) -> None:
        """Enter a new session.

        Raises:
            NotRunning: the agent takes no more.
            ConfigurationError: its id is taken.
        """
        if not self._accepts:
            raise NotRunning(self.name)
        if context.id in self.sessions:
            raise ConfigurationError(
                f"agent {self.name!r} has a session {context.id!r} already: open it with open_session(), or choose another id"
            )
        self.sessions[context.id] = context
        if context.parent is not None:
            context.parent.add_child(context)
        if self.events.watched:
            parent_id = context.parent.id if context.parent is not None else None
            self.events.publish(
                SessionOpened(
                    agent=self.name, session_id=context.id, owner=context.owner.name, parent_id=parent_id
                )
            )

    def find(self, session_id: str) -> SessionContext:
        """The open session of this id.

        Raises:
            SessionNotFound: there is none.
        """
        context = self.sessions.get(session_id)
        if context is None:
            raise SessionNotFound(self.name, session_id)
        return context

    async def close(self, context: SessionContext) -> None:
        """Close a session and its children."""
        for child in list((context.children or {}).values()):
            await child.session.aclose()
        if context.closed:
            await trio.lowlevel.checkpoint()
            return
        context.closed = True
        waiting = self.inbox.withdraw(context.id)
        await self._stop_turn(context, "the session was closed")
        await self._fail_all(context, waiting, SessionClosed(context.id))
        if context.turn is None:
            self.forget(context)

    def forget(self, context: SessionContext) -> None:
        """Let go of a session that is over."""
        context.closed = True
        if self.sessions.pop(context.id, None) is None:
            return
        if context.parent is not None:
            context.parent.remove_child(context)
        if self.events.watched:
            self.events.publish(SessionEnded(agent=self.name, session_id=context.id))

    # --- messages ------------------------------------------------------------------------

    async def accept(
        self,
        context: SessionContext,
        message: Message,
        *,
        once: bool = False,
        waiter: TurnWaiter | None = None,
    ) -> None:
        """Take a message in, waiting for room; on return it is in the inbox.

        `once` drops a message whose id the session has seen; `waiter` is told what comes of it.
        """
        self._check_open(context)
        if once and not context.accept_once(message.id):
            await trio.lowlevel.checkpoint()
            return
        context.pending += 1
        if waiter is not None:
            context.wait_for(message.id, waiter)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            if not self.inbox.try_put(message, now=trio.current_time()):
                await self._wait_for_room(context, message)
        except BaseException:
            context.forget_message(message.id)
            raise
        self._announce(context, message)
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def release(self, context: SessionContext, message: Message) -> None:
        """Take a session's first message in. Where there is room nothing pauses, and never after it is in."""
        context.pending += 1
        try:
            if not self.inbox.try_put(message, now=trio.current_time()):
                await self._wait_for_room(context, message)
        except BaseException:
            context.forget_message(message.id)
            raise
        self._announce(context, message)

    async def _wait_for_room(self, context: SessionContext, message: Message) -> None:
        if is_inside(context.turn):
            self.inbox.put_nowait(message, now=trio.current_time())  # raises: it would wait for itself
        await self.inbox.put(message)
        if not self._accepts or context.closed:
            self.inbox.withdraw(context.id)  # it came in while the agent or the session was closing
            self._check_open(context)

    def _announce(self, context: SessionContext, message: Message) -> None:
        turn = context.turn
        if message.priority is Priority.URGENT and turn and turn.message.priority is not Priority.URGENT:
            turn.interrupt("an urgent message came")
        if self.events.watched:
            self.events.publish(
                MessageAccepted(
                    agent=self.name, session_id=context.id, message_id=message.id, priority=message.priority
                )
            )
        self._pump()

    def _check_open(self, context: SessionContext) -> None:
        if context.closed:
            raise SessionClosed(context.id)
        if not self._accepts and not (self._draining and is_inside(context.turn)):
            raise NotRunning(self.name)

    # --- stopping and waiting ------------------------------------------------------------

    async def interrupt(self, context: SessionContext, reason: str, *, drop_queued: bool) -> None:
        """Stop a session's turn, and with `drop_queued` end what waits for its turn."""
        waiting = self.inbox.withdraw(context.id) if drop_queued else []
        await self._stop_turn(context, reason)
        await self._fail_all(context, waiting, Interrupted(reason))

    async def _stop_turn(self, context: SessionContext, reason: str) -> None:
        """Interrupt the turn and wait for its end, unless that is where we are called from."""
        turn = context.turn
        if turn is not None:
            turn.interrupt(reason)
        if turn is None or is_inside(turn):
            await trio.lowlevel.checkpoint()
            return
        if turn.ended is None:
            turn.ended = trio.Event()
        await turn.ended.wait()

    async def wait_idle(self, context: SessionContext) -> None:
        """Wait until a session has nothing queued or running."""
        if is_inside(context.turn):
            raise WouldDeadlock("wait_idle()", context.id)
        await context.wait_idle()
