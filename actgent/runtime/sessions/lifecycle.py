"""How sessions of an agent begin, come back, are interrupted, end, and leave memory."""

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import trio

from actgent.actors.actor import calling_actor
from actgent.actors.dead_letters import DeadLetter
from actgent.actors.inbox import PriorityInbox
from actgent.control.durable_timer import DueIndex
from actgent.errors import (
    Interrupted,
    JournalSlow,
    NotRunning,
    SessionClosed,
    Stopped,
    WouldDeadlock,
)
from actgent.errors.restored import restored_failure
from actgent.events import EventStream, SessionEnded, SessionOpened
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.journal.records import Unwanted
from actgent.memory.base import Memory
from actgent.messages import Message, Priority
from actgent.runtime.slots import slot_lent, would_wait_for_itself
from actgent.runtime.turn_runner import TurnRunner
from actgent.sessions.context import SessionContext, SessionHost, host_of
from actgent.sessions.propagation import run_with
from actgent.sessions.restore import SnapshotKeeper
from actgent.sessions.session_log import SessionLog
from actgent.sessions.turn import Turn, is_inside, running_turn
from actgent.turns.lifecycle import LAST_WORDS, TurnLifecycle

from .leaving import IsLeft, Leaving

RESTORED_AGE_SECONDS = 1e9
"""Seconds that messages restored from the journal are older than all others."""


class SessionLifecycle:
    """Opens, interrupts, closes and forgets the sessions of one agent."""

    def __init__(
        self,
        runner: TurnRunner,
        *,
        events: EventStream,
        timers: DueIndex,
        journal: Journal | None,
        memory: Memory,
        drains: Sequence[IsLeft],
        on_ended: Callable[[SessionKey], object],
    ) -> None:
        """Args: `on_ended` hears of sessions that are to leave the journal; `drains` tell which are about to leave this process."""
        self.name = runner.name
        self.runner = runner
        self.sessions = runner.sessions
        self.inbox = runner.inbox
        self.events = events
        self.journal = journal
        self.accepts = True
        """True if the agent takes messages and sessions, whoever they come from."""
        self.is_draining = False
        """True if it takes them from turns and actors that still run."""
        self.openers: dict[str, trio.lowlevel.Task] = {}
        """Calls the handlers of a session that comes back, before what waits in it goes on."""
        self.leaving = Leaving(runner, journal, timers, drains)
        self.resumed = 0
        """Sessions that the journal brought back in the middle of something, but for people who are waited for."""
        self._turn_lifecycle = runner.turn_lifecycle
        self._timers = timers
        self._keeper = (
            None if journal is None else SnapshotKeeper(journal, self.name, memory, runner.start_soon)
        )
        self._on_ended = on_ended

    @property
    def is_stopping(self) -> bool:
        """True if nothing of the agent goes on in this process."""
        return self.runner.is_stopping

    @property
    def has_ended(self) -> bool:
        """True if the agent was stopped, and has ended."""
        return self.is_stopping and not self.runner.is_running

    @property
    def is_durable(self) -> bool:
        """True if a journal has its sessions, so that they survive the process."""
        return self.journal is not None

    def bury(self, letter: DeadLetter) -> None:
        """Keep a message that nobody will deal with."""
        self.runner.bury(letter)

    # --- what it takes -----------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more messages but from turns that still run."""
        self.accepts = False
        self.is_draining = True

    def refuse_all(self) -> None:
        """Take nothing any more."""
        self.accepts = self.is_draining = False

    def check_open(self, context: SessionContext) -> None:
        if context.closed:
            raise context.refusal
        self.check_accepts()

    def check_reachable(self, context: SessionContext) -> None:
        """Refuse a message that has been on its way since the agent took messages, if nothing can end it any more."""
        if context.closed:
            raise context.refusal
        if self.is_stopping or not (self.accepts or self.is_draining):
            raise NotRunning(self.name)

    def check_accepts(self) -> None:
        """While the block is left, only turns and actors that still run may have something to say, in any session.

        Raises:
            NotRunning: the agent takes nothing more.
        """
        is_heard = self.is_draining and (is_inside(running_turn.get()) or calling_actor())
        if self.is_stopping or not (self.accepts or is_heard):
            raise NotRunning(self.name)

    # --- open and go on ----------------------------------------------------------------------

    def open(self, context: SessionContext) -> None:
        """Enter a new session.

        Raises:
            NotRunning: the agent takes no more.
            SessionClosed: its parent was closed.
            SessionMoved: another process goes on with its parent.
            ConfigurationError: its id is taken.
        """
        self.check_accepts()
        parent = context.parent
        if parent is not None and parent.closed:
            raise parent.refusal
        self.sessions.add(context)
        context.due_index = self._timers
        if parent is not None:
            parent.add_child(context)
        if self.events.watched:
            above = context.parent_key
            self.events.publish(
                SessionOpened(
                    agent=self.name,
                    session_id=context.id,
                    owner=context.owner.name,
                    parent_id=None if above is None else above.session_id,
                    parent_agent=None if above is None else above.agent,
                )
            )

    def new_log(self, session_id: str, epoch: int, *, due: float = 0.0, grown: int = 0) -> SessionLog | None:
        """A session's end of the journal, where there is one, which has its earliest date at `due`.

        `epoch` is that under which it was read, and `grown` the number of its records that no snapshot covers.
        """
        if self.journal is None or self._keeper is None:
            return None
        log = SessionLog(session_id, self.name, self.journal, epoch, grown=grown, due=due)
        log.on_long = self._keeper.keep_soon
        log.on_fenced = self.leaving.leave_tree if self.journal.is_shared else None
        return log

    def leave(self, context: SessionContext) -> None:
        """Let another process go on with a session: whatever runs in it is stopped, and nothing more is written or told."""
        if not context.has_moved:
            self.leaving.begin(context)
            self.forget_if_over(context)

    def resume_restored(self, context: SessionContext, messages: Sequence[Message]) -> None:
        """Take what was accepted before a restart, for which the session is claimed; a turn that had begun goes on first.

        Raises:
            SessionMoved: another process goes on with it by now.
        """
        _check_not_moved(context)
        context.mail.pending += len(messages)
        if messages:
            self.sessions.mark_active(context)
        waiting, checkpoint, approvals = list(messages), context.checkpoint, context.approvals
        is_suspended = checkpoint is not None and approvals is not None and approvals.is_suspended
        self.resumed += bool(messages) and not is_suspended
        if checkpoint is not None and is_suspended:
            context.mail.pending += len(checkpoint.joined)
            self.runner.restore(context, waiting.pop(0))
        elif checkpoint is not None:
            context.mail.pending += len(checkpoint.joined)
            acceptance = context.mail.take(waiting.pop(0))
            self.runner.hold_up(context, self._turn_lifecycle.begin_turn(context, acceptance))
        _bring_back(self.inbox, context, waiting)
        if context.log is not None:
            context.log.tell_long()
        if messages and context.turn is None and context.suspension is None:
            self.inbox.release(context.id)
        self.runner.resume_if_superseded(context)
        self.sessions.mark_idle(context)
        turn = context.turn
        is_exposed = turn is not None and turn.message.priority is not Priority.URGENT
        if turn is not None and is_exposed and (newer := self.runner.superseded_by(turn.message)):
            turn.interrupt(newer)
        for message in messages:
            _end_failed(self, context, message.id)
        if context.mail.unwanted is not None:
            for message in messages:
                stop_if_unwanted(self, context, message.id)
        self.runner.pump()

    def drop(self, context: SessionContext, *, is_claimed: bool) -> None:
        """Let a session leave memory whose handlers could not be attached: the journal has it, and all that waits in it."""
        self.inbox.withdraw(context.id)
        if is_claimed:
            self.inbox.release(context.id)
        self.sessions.remove(context)
        if context.parent is not None:
            context.parent.remove_child(context)

    # --- keep and forget ---------------------------------------------------------------------

    @contextmanager
    def kept(self, context: SessionContext) -> Iterator[SessionContext]:
        """Keep a loaded session in memory for the block."""
        self.pin(context)
        try:
            yield context
        finally:
            self.unpin(context)

    def pin(self, context: SessionContext) -> None:
        """Keep a loaded session in memory until it is unpinned as often."""
        context.mail.pins += 1
        self.sessions.mark_active(context)

    def unpin(self, context: SessionContext) -> None:
        context.mail.pins -= 1
        self.forget_if_over(context)
        self.sessions.mark_idle(context)

    def let_go(self, context: SessionContext) -> None:
        """Forget a session as soon as nothing is queued or running in it."""
        context.mail.is_transient = True
        self.forget_if_over(context)

    def forget_if_over(self, context: SessionContext) -> None:
        """Forget a session that was closed, let go or has moved, once nothing is on its way in, queued or running."""
        if not (context.closed or context.mail.is_transient):
            return
        if context.mail.has_moved:
            if not context.mail.pending:
                self.leaving.end(context)
        elif _is_over(context):
            self.note_closed(context)
            self.discard(context)

    def note_closed(self, context: SessionContext) -> None:
        """Have the journal know that a session is over."""
        if context.log is not None and self.sessions.get(context.id) is context:
            context.log.note_closed()
            context.log.flush_soon()

    def erase(self, context: SessionContext) -> None:
        """Forget a session that the journal has no more."""
        context.closed = True
        self.sessions.forget_unloaded(context.id)
        self.discard(context)

    def discard(self, context: SessionContext) -> None:
        """Forget a session, whatever the journal has of it, and let go of its children, and those of theirs that are over."""
        _let_go(self, self.remove(context))

    def remove(self, context: SessionContext) -> list[SessionContext]:
        """Let a session leave memory; returns those that may have stayed for it alone."""
        if context.has_moved:
            self.leaving.end(context)
            return []
        context.closed = True
        if not self.sessions.remove(context):
            return []
        if context.conversation.recent is not None:
            context.conversation.recent.close()
        if context.log is not None and context.log.is_temporary:
            self._on_ended(SessionKey(self.name, context.id))
        context.due_index = None
        self._timers.set(context.id, 0)
        if self.events.watched:
            self.events.publish(SessionEnded(agent=self.name, session_id=context.id))
        around = [*reversed((context.children or {}).values())]
        context.let_face_go()
        if context.parent is not None:
            context.parent.remove_child(context)
            context.parent.let_face_go()
            if context.parent.mail.is_transient:  # it may have stayed for this one's result alone
                around.insert(0, context.parent)
        return around

    # --- interrupt, end and close ------------------------------------------------------------

    async def interrupt(self, context: SessionContext, reason: str, *, drop_queued: bool) -> None:
        """Stop a session's turn, and with `drop_queued` end what waits for its turn."""
        error = Interrupted(reason)
        await self._stop(context, error, drop=error if drop_queued else None)
        _check_not_moved(context)
        if drop_queued:
            self.leaving.check_stays(context.id)  # what waits is the next owner's already, and stopped there

    async def interrupt_message(self, context: SessionContext, message_id: str, reason: str) -> None:
        """Stop what answers one message, or end it where it waits for its turn or when it is in; nothing if it has ended."""
        error, acceptance = Interrupted(reason), context.mail.find(message_id)
        if message_id in context.answered_ids:
            await self._stop(context, error, drop=None)
        elif acceptance is not None and acceptance.ending is not None:  # another caller stopped it
            await acceptance.ending.wait()
        elif acceptance is None or acceptance.place is None or not acceptance.is_in:
            self.leaving.check_stays(context.id)  # as above
            if context.mail.stop_later(message_id, reason) and context.log is not None:
                context.log.add(Unwanted(message_id=message_id, reason=reason))
            await trio.lowlevel.checkpoint()
        else:
            self.inbox.take_out(acceptance.place)
            ended = trio.Event()
            end_it = self.ending(context, [acceptance.message], error, ended)
            if not self.runner.start_soon(end_it):  # the agent is about to restart
                await end_it()
            await ended.wait()
        _check_not_moved(context)

    def ending(
        self,
        context: SessionContext,
        messages: list[Message],
        error: Exception,
        ended: trio.Event,
        *,
        after: trio.Event | None = None,
    ) -> Callable[[], Awaitable[None]]:
        """Return the function that ends messages which are not in the inbox any more, `after` the turn that runs."""
        recorded = trio.Event()
        for message in messages:
            if (acceptance := context.mail.find(message.id)) is not None:
                acceptance.ending = recorded
        return functools.partial(
            self._end_queued, context, messages, error, after=after, recorded=recorded, ended=ended
        )

    async def end(self, context: SessionContext, error: Exception) -> None:
        """End all that runs or waits in a session with an error, and close it and its children."""
        await self._stop(context, error, drop=error)
        await self.close(context)

    async def close(self, context: SessionContext) -> list[SessionContext]:
        """Close a session and all below it, at once; returns them, also those that somebody else is just closing."""
        with ExitStack() as kept:
            family = [kept.enter_context(host_of(each).kept(each)) for each in _family_of(context)]
            for each in family:
                each.closed = True
            async with trio.open_nursery() as nursery:
                for each in reversed(family):
                    nursery.start_soon(host_of(each).stop_for_good, each)
        _check_not_moved(context)
        return family

    def resume_if_superseded(self, context: SessionContext) -> None:
        """End a suspended turn whose answer nobody wants any more."""
        self.runner.resume_if_superseded(context)

    async def stop_for_good(self, context: SessionContext) -> None:
        """End what runs or waits in a session that was closed."""
        reason = Interrupted("the session was closed")
        await self._stop(context, reason, drop=SessionClosed(context.id))

    async def _stop(self, context: SessionContext, error: Exception, *, drop: Exception | None) -> None:
        """End the turn with an error, and what is queued with the error `drop`; a cancelled caller changes nothing of that.

        Waits until all this has happened, unless the turn is where we are called from, or waits for that.
        """
        self.runner.resume(context, error)
        turn = context.turn
        inside = is_inside(turn) or would_wait_for_itself(context)
        ended = _stopped(turn, error)
        others = () if drop is None else _endings(context)
        if drop is not None and (messages := _withdraw(self.inbox, context.id)):
            after, ended = ended, trio.Event()
            end_queued = self.ending(context, messages, drop, ended, after=after)
            if not self.runner.start_soon(end_queued):  # the agent is about to restart
                await end_queued()
        for each in others:
            await each.wait()
        if ended is None or inside:
            await trio.lowlevel.checkpoint()
        else:
            await ended.wait()

    async def _end_queued(
        self,
        context: SessionContext,
        messages: list[Message],
        error: Exception,
        *,
        after: trio.Event | None,
        recorded: trio.Event,
        ended: trio.Event,
    ) -> None:
        """Write that messages without a turn failed, then notify their handlers and callers, after the turn that runs."""
        try:
            error = await self._turn_lifecycle.record_unstarted(context, messages, error)
            recorded.set()
            if after is not None:
                await after.wait()
            while messages:
                if context.task is not None and messages[0].id == context.task.message_id:
                    acceptance = context.mail.find(messages[0].id)
                    assert acceptance is not None  # noqa: S101 - it has not ended
                    await run_with(acceptance.variables, self.runner.report_task(context, error))
                await self._turn_lifecycle.end_unstarted(context, messages.pop(0), error)
        except trio.Cancelled:
            reports = context.task is not None and context.task.reports and not context.closed
            last_error = Stopped(self.name) if reports else error  # the next start has to report
            with trio.CancelScope(shield=True):
                await _end_at_last(self._turn_lifecycle, context, messages, last_error)
            raise
        finally:
            recorded.set()
            ended.set()
            self.forget_if_over(context)

    async def end_rest(self) -> None:
        """End what was accepted and has not begun; senders without room too, who come in as others are taken out."""
        inbox = self.inbox
        with trio.CancelScope(shield=True):
            await self.runner.stop_suspended()
            while left := [(each, inbox.withdraw(each)) for each in inbox.sessions() if inbox.waiting(each)]:
                async with trio.open_nursery() as nursery:
                    for session_id, waiting in left:
                        context, error = self.sessions[session_id], Stopped(self.name)
                        self.runner.bury_all(context, waiting)
                        nursery.start_soon(_end_at_last, self._turn_lifecycle, context, waiting, error)

    # --- wait --------------------------------------------------------------------------------

    async def wait_idle(self, context: SessionContext) -> None:
        """Wait until a session has nothing queued or running."""
        self.check_not_inside(context, "wait_idle()")
        with slot_lent(context):
            await context.wait_idle()

    def check_not_inside(self, context: SessionContext, what: str) -> None:
        """Refuse to wait for a session where it waits for us.

        Raises:
            WouldDeadlock: we are in its turn, or in a handler that it is opened with.
        """
        if is_inside(context.turn) or self.openers.get(context.id) is trio.lowlevel.current_task():
            raise WouldDeadlock(what, context.id)


def stop_if_unwanted(lifecycle: SessionLifecycle, context: SessionContext, message_id: str) -> None:
    """End a message that is in now, and that somebody stopped before, as one that is stopped now.

    The journal forgets the stop with the end of its message: what a crash cuts is done by the next start.
    """
    reason, acceptance = context.mail.find_reason(message_id), context.mail.find(message_id)
    if reason is None:
        return
    error = Interrupted(reason)
    if message_id in context.answered_ids:
        lifecycle.runner.resume(context, error)
        _stopped(context.turn, error)
    elif acceptance is not None and acceptance.place is not None and acceptance.ending is None:
        if not lifecycle.runner.is_running:
            return  # the agent is about to restart
        lifecycle.inbox.take_out(acceptance.place)
        lifecycle.runner.start_soon(lifecycle.ending(context, [acceptance.message], error, trio.Event()))
    context.mail.forget_unwanted(message_id)


def _end_failed(lifecycle: SessionLifecycle, context: SessionContext, message_id: str) -> None:
    """End a queued message that failed before a restart as the journal has it: its handlers may not have the failure yet."""
    acceptance = context.mail.find(message_id)
    if acceptance is None or acceptance.failed is None or acceptance.place is None:
        return
    failed = acceptance.failed
    error = restored_failure(failed.error, failed.words, failed.kind, failed.fields)
    lifecycle.inbox.take_out(acceptance.place)
    lifecycle.runner.start_soon(lifecycle.ending(context, [acceptance.message], error, trio.Event()))


def _bring_back(inbox: PriorityInbox[Message], context: SessionContext, waiting: Sequence[Message]) -> None:
    """Put what waits for its turn since before a restart into the inbox, in its order."""
    for number, message in enumerate(waiting):
        place = inbox.restore(
            message, now=number - RESTORED_AGE_SECONDS, first=message.on_busy == "interrupt"
        )
        if (acceptance := context.mail.find(message.id)) is not None:
            acceptance.place = place


def _endings(context: SessionContext) -> list[trio.Event]:
    """Return the events of messages that are being ended without a turn; each is set when the journal has the failure."""
    acceptances = (context.mail.acceptances or {}).values()
    return [each.ending for each in acceptances if each.ending is not None]


async def write_end(context: SessionContext) -> None:
    """Have the journal know what was stopped or closed. Does nothing where we are called from the turn that was stopped.

    Raises:
        JournalError: it cannot be written; it goes before the session's next step.
        SessionMoved: another process goes on with it.
        NotRunning: its agent stops, and the next start goes on with it.
    """
    if is_inside(context.turn):
        return
    if context.closed and context.log is not None and not would_wait_for_itself(context):
        await context.wait_idle()  # somebody else may be closing it, who still ends what was queued ...
        host_of(context).note_closed(context)  # ... and keeps it in memory
    if context.log is not None:
        await context.log.flush()
    elif host_of(context).is_durable and host_of(context).is_stopping:
        raise NotRunning(context.agent)


def _withdraw(inbox: PriorityInbox[Message], session_id: str) -> list[Message]:
    """Take out what is queued in a session, and what comes in by that from senders without room."""
    messages: list[Message] = []
    while waiting := inbox.withdraw(session_id):
        messages += waiting
    return messages


async def _end_at_last(
    lifecycle: TurnLifecycle, context: SessionContext, messages: list[Message], error: Exception
) -> None:
    """Write that messages failed, as far as the journal can do so at once, and notify their handlers and callers."""
    told: Exception = JournalSlow(LAST_WORDS)
    with lifecycle.last_words():
        told = await lifecycle.record_unstarted(context, messages, error)
    for message in messages:
        with lifecycle.last_words():  # one each: late sync handlers are told, too
            await lifecycle.end_unstarted(context, message, told)


def _family_of(context: SessionContext) -> list[SessionContext]:
    """A session and all below it, but those of other agents that have ended: perhaps their next start goes on with them, or they are erased."""
    return [each for each in context.family() if each.host is context.host or not host_of(each).has_ended]


def _let_go(host: SessionHost, around: list[SessionContext]) -> None:
    """Let go of sessions that may have stayed for one alone that a host has let go, and of those that stayed for them."""
    while around:
        other = around.pop()
        its_host = host_of(other)
        if its_host is not host and its_host.is_stopping:  # its next start goes on with it
            continue
        other.mail.is_transient = True
        if _is_over(other):
            its_host.note_closed(other)
            around += its_host.remove(other)


def _is_over(context: SessionContext) -> bool:
    """Return True if a session was closed or let go, and nothing is on its way in, queued or running."""
    is_over = context.closed or (context.mail.is_spent and not context.reports_due)
    return is_over and not context.mail.pending and not context.mail.pins


def _check_not_moved(context: SessionContext) -> None:
    if context.has_moved:
        raise context.refusal


def _stopped(turn: Turn | None, error: Exception) -> trio.Event | None:
    """Stop a turn, and return what tells its end."""
    if turn is None:
        return None
    turn.stop_with(error)
    if turn.control.ended is None:
        turn.control.ended = trio.Event()
    return turn.control.ended
