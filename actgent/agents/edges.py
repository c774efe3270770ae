"""How a turn begins, waits for people, goes on and ends, whatever its passes do in between."""

import time
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from actgent.actors.timer import Timer
from actgent.control.budget import Account, Budget
from actgent.control.limits import Limits
from actgent.errors import SessionClosed, Stopped
from actgent.journal.records import Resumed
from actgent.messages import Message
from actgent.tools.execution import time_limits

from .call_options import restored_options
from .context import SessionContext
from .dispatcher import Dispatcher
from .failures import kind_of
from .ledger import Ledger
from .observer import Observer
from .tasks import outcome_of, reports_due
from .turn import Resume, Suspension, Turn, running_turn
from .waiters import CallOptions

LAST_WORDS = 1.0
"""Seconds that all handlers together have to hear that their agent stops."""


@attrs.define(eq=False, kw_only=True)
class TurnEdges:
    """Opens and closes the turns of one agent."""

    agent: str
    limits: Limits
    options: CallOptions
    """What each turn gets that was not started with options of its own."""
    dispatcher: Dispatcher
    observer: Observer
    timer: Timer
    ledger: Ledger
    give_up: Callable[[SessionContext, Turn], Awaitable[object]]
    """Leaves the record of a turn that fails complete, and lets everyone hear of it."""
    _silence: float | None = None
    """When the time for last words is over."""

    def begin(self) -> None:
        """Be ready for turns, at the start and after each restart."""
        self._silence = None

    # --- begin ---------------------------------------------------------------------------

    def begin_turn(self, context: SessionContext, message: Message, joined: tuple[Message, ...] = ()) -> Turn:
        """Claim a session for an outside message; from now on it can be interrupted. `joined` are answered with it."""
        waiter = context.waiter_of(message)
        options = self._restored_options(context, message) if waiter is None else waiter.options
        told = len(context.record)
        limits = options.limits or self.limits
        turn = context.turn = Turn(
            message, options, time.monotonic(), waiter=waiter, limits=limits, told=told, joined=joined
        )
        if context.resume is not None:
            self._take_up(context, turn, context.resume)
        if limits.is_shared or turn.resume is not None or context.is_bounded:
            self.ledger.begin(context, turn, self.agent)
        if context.closed:  # it came in while the session was closing
            turn.stop_with(SessionClosed(context.id))
        if waiter is not None:
            waiter.turn = turn
            if waiter.abandoned:
                waiter.abandon()
        return turn

    def _restored_options(self, context: SessionContext, message: Message) -> CallOptions:
        told = context.take_options(message.id)
        return self.options if told is None else restored_options(self.options, told)

    def _take_up(self, context: SessionContext, turn: Turn, resume: Resume) -> None:
        """Go on with the counts that the turn had before the restart."""
        turn.resume, context.resume = resume, None
        turn.joined = resume.joined
        turn.calls, turn.repairs, turn.usage = resume.calls, resume.repairs, resume.usage
        turn.last_call, turn.identical = resume.last_call, resume.identical

    def enter(self, turn: Turn, scope: trio.CancelScope) -> None:
        """The turn runs from now on in the calling task, within reach of an interruption through `scope`."""
        turn.task = trio.lowlevel.current_task()
        turn.scope = scope
        running_turn.set(turn)
        time_limits.set(())
        if turn.budget is not None:
            self._start_clock(turn, turn.budget)

    # --- wait for people -----------------------------------------------------------------

    def suspend_turn(self, context: SessionContext, turn: Turn) -> None:
        """The turn's task ends, and what it needs to go on stays."""
        context.turn = turn.task = turn.scope = None
        turn.exposed = False
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        context.suspension = Suspension(turn.message, turn, messages=1 + len(turn.joined))

    def continue_turn(self, context: SessionContext, suspension: Suspension) -> Turn:
        """The turn is to go on; from now on it can be interrupted."""
        context.suspension = None
        turn = suspension.turn
        if turn is None:
            turn = self.begin_turn(context, suspension.message)
        context.turn = turn
        turn.on_stop = None
        if suspension.waiter is not None:
            turn.waiter = suspension.waiter
            turn.waiter.turn = turn
        return turn

    # --- end -----------------------------------------------------------------------------

    async def fail_turn(self, context: SessionContext, turn: Turn, error: Exception) -> None:
        """What a turn failed with goes to the handlers, out of an interruption's reach; then the turn is over."""
        turn.exposed = False
        turn.error = error
        try:
            await self._fail(context, turn, error)
        finally:
            self.end_turn(context, turn)

    async def _fail(self, context: SessionContext, turn: Turn, error: Exception) -> None:
        try:
            await self.give_up(context, turn)
        finally:  # also in a crash, or when the time for last words is over: sync handlers can still be told
            for message in turn.joined:
                await self.dispatcher.fail(context, message.id, error, blame=turn.blame)  # noqa: ASYNC102
            await self.dispatcher.fail(context, turn.message.id, error, waiter=turn.waiter, blame=turn.blame)  # noqa: ASYNC102 - the callers shield

    async def say_stopped(self, context: SessionContext, turn: Turn) -> None:
        turn.error = Stopped(self.agent)
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        if context.log is not None:  # what follows is told, and not written: the next start goes on from here
            context.log.flush_soon()
            context.log = None
        heard = turn.waiter is not None and turn.waiter.hears
        try:
            if heard or context.handlers.any_of("exception", "tool_result"):
                with self.last_words():
                    await self._fail(context, turn, turn.error)
            else:  # a shield is dear where thousands stop
                await self._fail(context, turn, turn.error)
        finally:
            self.end_turn(context, turn)

    def last_words(self) -> trio.CancelScope:
        """A shield for handlers that have to hear that their agent stops: one second for all of them together."""
        if self._silence is None:
            self._silence = trio.current_time() + LAST_WORDS
        return trio.CancelScope(deadline=self._silence, shield=True)

    async def fail_unstarted(self, context: SessionContext, message: Message, error: Exception) -> None:
        """End a message that never had its turn."""
        waiter = context.waiter_of(message)
        try:
            await self.dispatcher.fail(context, message.id, error, waiter=waiter)
        finally:
            context.settle()
            if context.log is not None and not isinstance(error, Stopped):
                self._write_end(context, message, error=error)
            if waiter is not None:
                waiter.finish()

    def end_turn(self, context: SessionContext, turn: Turn) -> None:
        """The turn is over, and its session free for the next one."""
        context.turn = turn.waiting = None
        if turn.budget is not None:
            self._stop_clock(turn, turn.budget)
        if turn.waiter is not None:
            turn.waiter.finish()
        if turn.ended is not None:
            turn.ended.set()
        context.settle(1 + len(turn.joined))
        if context.approvals is not None and context.approvals.is_suspended:
            context.note(Resumed())
        if context.log is not None:
            self._write_end(context, *turn.joined, turn.message, error=turn.error, blame=turn.blame)
        self.observer.end_turn(context, turn)

    def _write_end(
        self, context: SessionContext, *messages: Message, error: Exception | None, blame: str = "internal"
    ) -> None:
        """Messages were dealt with; a session that ends with them is closed in the same step."""
        if context.task is not None and context.task.message_id == messages[-1].id:
            context.log.note(outcome_of(context.task, error, blame))
        failed = None if error is None else kind_of(error, blame)
        closes = context.transient and not context.pending and not reports_due(context)
        context.log.end(*[message.id for message in messages], failed=failed, closes=closes)

    # --- the seconds that it may take ------------------------------------------------------

    def _start_clock(self, turn: Turn, budget: Budget) -> None:
        now = trio.current_time()
        over, account = budget.start_clock(now)
        if account is None:
            return
        if over <= now:
            turn.stop_with(account.reached("seconds"))
        else:
            turn.alarm = self.timer.call_at(over, partial(self._run_out, turn, budget, account))

    def _run_out(self, turn: Turn, budget: Budget, account: Account) -> None:
        budget.tick(trio.current_time())
        turn.stop_with(account.reached("seconds"))

    def _stop_clock(self, turn: Turn, budget: Budget) -> None:
        if turn.alarm is not None:
            turn.alarm.cancel()
        budget.stop_clock(trio.current_time())
