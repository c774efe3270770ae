"""`TurnRunner`: claims, starts, runs, suspends, resumes and finishes the turns of an agent, each in a worker task.

Starting a turn wakes an idle worker (`Workers`) instead of creating a task and a cancel scope. A worker runs a turn in two parts:
`run` receives a cancel scope that other tasks may cancel to stop the turn, and `finish` follows outside of that scope. If the
nursery is cancelled, `abandon` is called instead of `finish`, also for turns that have finished. A turn runs with the context
variables of the sender, as in a new task. Idle workers that no turn has needed for a second end.
"""

import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from threading import get_ident
from typing import Any

import trio

from actgent.actors.actor import calling_actor
from actgent.actors.actor_cell import Cell
from actgent.actors.dead_letters import DeadLetter
from actgent.actors.deadline_timer import Timer, TimerHandle
from actgent.actors.event_loop_check import check_loop
from actgent.actors.inbox import InboxEntry, PriorityInbox
from actgent.errors import ActorFailed, Interrupted, NotRunning, SessionMoved
from actgent.journal.record_types import ResumptionRecord, SuspensionRecord
from actgent.messages import Failure, Message, Priority
from actgent.sessions.busy_session_and_duplicate_messages import end_waits_as_stopped, is_collected
from actgent.sessions.context_variable_propagation import run_with
from actgent.sessions.pending.delegated_tasks import TASK_TIMER
from actgent.sessions.pending.turn_future import TurnFuture
from actgent.sessions.session_context import (
    QueuedMessage,
    SessionContext,
    Suspension,
    Turn,
    host_of,
    is_inside,
    running_turn,
)
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.tools.pausable_time_limits import time_limits
from actgent.turns.agent_core import AgentCore
from actgent.turns.turn_lifecycle import TurnLifecycle, stop_recording_for_next_start

from .sessions.session_table import SessionTable
from .waits_between_sessions import running_session

_log = logger_of(__name__)
URGENT_CAME = "an urgent message came"
NEWER_CAME = "a newer message came"
IDLE_SECONDS = 1.0
"""Seconds after which an idle worker ends. A parked task takes about 2 KB."""
MAX_ENDED_AT_ONCE = 1000
"""Maximum number of workers that end in one step. Each takes a few microseconds of the event loop."""
_NO_VARIABLES = Context()
"""Empty context that replaces the context variables of parked workers."""
REPLY_CHECKPOINTS = 4
"""Number of checkpoints for which a slot stays reserved after a turn, so that its caller can send the next message."""


# --- worker tasks ----------------------------------------------------------------------------


class _Wake:
    """Reusable object that passes the next turn to an idle worker, in place of a new `outcome.Value` for each turn."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn: object = None

    def unwrap(self) -> object:
        turn, self.turn = self.turn, None  # a worker keeps no reference to a turn
        return turn


class Workers:
    """Runs turns concurrently, each in a task of the nursery. Exceptions of a turn are raised in the nursery."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        timer: Timer,
        run: Callable[[trio.CancelScope, Turn], Awaitable[object]],
        finish: Callable[[Turn], Awaitable[object]],
        abandon: Callable[[Turn], Awaitable[object]],
        on_unneeded: Callable[[int], bool] | None = None,
    ) -> None:
        """Create a pool whose workers are tasks of `nursery`.

        Args:
            nursery: Nursery of the worker tasks.
            timer: Timer for the checks of idle workers.
            run: First part of a turn; other tasks may cancel its scope to stop the turn.
            finish: Second part of a turn, also after a stop.
            abandon: Called in place of `finish` if the nursery is cancelled.
            on_unneeded: Called with the number of idle workers that no turn needed for `IDLE_SECONDS`. It returns True if it
                has cancelled the nursery.
        """
        self._nursery = nursery
        self._timer = timer
        self._run = run
        self._finish = finish
        self._abandon = abandon
        self._on_unneeded = on_unneeded
        self._idle: dict[trio.lowlevel.Task, Any] = {}
        """Parked workers with their `_Wake` objects, which replace trio outcomes."""
        self._unused = 0
        """Minimum number of parked workers since the last check. These workers were not needed by any turn."""
        self._check: TimerHandle | None = None
        """Scheduled check of how many parked workers were needed; None if none is scheduled."""

    @trio.lowlevel.enable_ki_protection
    def start_with(self, variables: Context, turn: Turn) -> None:
        """Start a turn with the context variables `variables`. No other task may use this context object."""
        if self._idle:
            task, wake = self._idle.popitem()
            self._unused = min(self._unused, len(self._idle))
            task.context = variables
            wake.turn = turn
            trio.lowlevel.reschedule(task, wake)
        else:
            variables.run(self._nursery.start_soon, self._work, turn)

    async def _work(self, turn: Turn | None) -> None:
        task, wake = trio.lowlevel.current_task(), _Wake()

        def leave(_: object) -> trio.lowlevel.Abort:
            del self._idle[task]
            return trio.lowlevel.Abort.SUCCEEDED

        while turn is not None:
            try:
                with trio.CancelScope() as scope:
                    while True:  # one scope serves many turns until it is cancelled
                        await self._run(scope, turn)
                        if scope.cancel_called:
                            break
                        await self._finish(turn)
                        turn = None  # a parked worker keeps no reference to a turn
                        turn = await self._wait_turn(task, wake, leave)
                        if turn is None:
                            return
                if turn is not None:  # None: the worker was stopped
                    await self._finish(turn)
            except BaseException as error:
                # The cancellation of the nursery. Nurseries inside the turn raise it as a group, and the scope above lets it
                # pass if both are cancelled at the same moment.
                if turn is not None and not isinstance(error, Exception):
                    await self._abandon(turn)  # noqa: ASYNC102 - it shields itself, with a time limit
                raise
            turn = None
            turn = await self._wait_turn(task, wake, leave)

    @trio.lowlevel.enable_ki_protection  # an interrupt after the entry would give the next turn to an ended worker
    async def _wait_turn(
        self, task: trio.lowlevel.Task, wake: _Wake, leave: Callable[[object], trio.lowlevel.Abort]
    ) -> Turn | None:
        """Sleep until a turn arrives, and return it; None ends the worker. trio calls `leave` if the worker is cancelled."""
        # The context takes effect with the next step of the task, which belongs to its next turn.
        task.context = _NO_VARIABLES
        self._idle[task] = wake
        if self._check is None:
            self.watch()
        turn: Turn | None = await trio.lowlevel.wait_task_rescheduled(leave)
        return turn

    def watch(self) -> None:
        """Schedule a check of how many idle workers were needed, unless a check is scheduled already."""
        if self._check is None:
            self._unused = len(self._idle)
            self._check = self._timer.call_at(trio.current_time() + IDLE_SECONDS, self._end_unused)

    @property
    def idle_count(self) -> int:
        """Number of idle workers, which sleep until the next turn."""
        return len(self._idle)

    @trio.lowlevel.enable_ki_protection
    def end_idle(self) -> None:
        """End all idle workers, and cancel the scheduled check, which would keep this object in memory."""
        for task, wake in self._idle.items():
            trio.lowlevel.reschedule(task, wake)
        self._idle.clear()
        self.close()

    def close(self) -> None:
        """Cancel the scheduled check after the nursery has ended, because the check would keep this object in memory."""
        if self._check is not None:
            self._check.cancel()

    @trio.lowlevel.enable_ki_protection
    def _end_unused(self) -> None:
        """End idle workers that no turn has needed since `watch`. If other idle workers remain, schedule the next check."""
        self._check = None
        on_unneeded = self._on_unneeded
        if on_unneeded is not None and self._unused == len(self._idle) and on_unneeded(self._unused):
            return
        for task in list(self._idle)[
            : min(self._unused, MAX_ENDED_AT_ONCE)
        ]:  # the longest parked workers first
            trio.lowlevel.reschedule(task, self._idle.pop(task))
        if self._idle:
            self.watch()


# --- turns -----------------------------------------------------------------------------------


class TurnRunner:
    """Runner of one agent's turns. A turn starts as soon as the runner claims (reserves) the session of its message."""

    def __init__(
        self,
        name: str,
        *,
        core: AgentCore,
        turn_lifecycle: TurnLifecycle,
        inbox: PriorityInbox[Message],
        sessions: SessionTable,
        timer: Timer,
        wait_started: Callable[[str, SessionContext | None], Awaitable[None]],
        on_task_done: Callable[[SessionContext, Exception | None, str], Awaitable[None]],
    ) -> None:
        """Args: `on_task_done` is called at the end of a delegated task, with its session, its error or None, and the failure kind."""
        self.name = name
        self.turn_lifecycle = turn_lifecycle
        self.inbox = inbox
        self.sessions = sessions
        self.has_failed = False
        """True after an unhandled exception in the agent. All turns fail, and the agent restarts."""
        self.accepts = True
        """True if the agent accepts messages and sessions from any caller."""
        self.is_draining = False
        """True if the agent accepts messages only from turns and actors that still run."""
        self._core = core
        self._timer = timer
        self._wait_started = wait_started
        self._on_task_done = on_task_done
        self._unload: Callable[[SessionContext], object] = _ignore
        self._on_released: Callable[[SessionContext], object] | None = None
        self._on_suspended: Callable[[SessionContext], object] = _ignore
        self._cell: Cell | None = None
        self._loop = trio.lowlevel.current_trio_token()
        self._thread: int | None = None
        """Id of the thread of the event loop; None before the start, during a restart and after the end."""
        self._nursery: trio.Nursery | None = None
        self._workers: Workers | None = None
        self.is_dormant = False
        """True while the agent runs without a task, because it had no work. The next work starts its task."""
        self._became_dormant: trio.Event
        """Set when the agent becomes dormant."""
        self._to_start: list[Callable[[], object]] = []
        """Functions that start the background tasks of a dormant agent once it has a nursery."""
        self._held_up: list[Turn] = []
        """Turns that are resumed or failed once the agent has a nursery again."""
        self._settling = 0
        """Number of ended turns whose concurrency slots are about to be released."""
        self._is_cut_off = False
        """True if the agent was cancelled: by its own failure or from outside."""

    def connect(
        self,
        *,
        unload: Callable[[SessionContext], object],
        on_released: Callable[[SessionContext], object] | None,
        on_suspended: Callable[[SessionContext], object],
    ) -> None:
        """Set the functions that the runner calls with the session of a turn.

        Args:
            unload: Unloads a session that is finished and has no more work; called at the end of each turn.
            on_released: Called after the session is released at the end of each turn; None calls nothing.
            on_suspended: Called after each suspension of a turn.
        """
        self._unload, self._on_released, self._on_suspended = unload, on_released, on_suspended

    # --- life ----------------------------------------------------------------------------

    def run_in(self, cell: Cell) -> None:
        """Store the actor cell, which starts the task of the agent."""
        self._cell = cell

    def begin(self, nursery: trio.Nursery) -> None:
        """Start running turns as tasks of a nursery, until the nursery is cancelled or the agent is dormant."""
        self.turn_lifecycle.begin()
        self.has_failed = self._is_cut_off = self.is_dormant = False
        self._thread = get_ident()
        self._nursery = nursery
        self._became_dormant = trio.Event()
        self._workers = Workers(
            nursery,
            timer=self._timer,
            run=self._run_turn,
            finish=self._finish_turn,
            abandon=self._abandon_turn,
            on_unneeded=self._give_up_task,
        )
        self._workers.watch()
        waiting, self._to_start = self._to_start, []
        for start in waiting:
            start()

    def stop_starting(self) -> None:
        """Start no further turns in the current nursery, because it is being cancelled."""
        self._is_cut_off = not self.is_dormant

    def _give_up_task(self, idle_workers: int) -> bool:
        """End the agent's nursery if it has only `idle_workers` idle workers, and no message or turn waits. Return True if it ends.

        After that the agent is dormant: it has no task until `pump` or `start_soon` starts one. Most agents of a large program are
        idle, and a task with its scopes takes 8 KB.
        """
        nursery, workers = self._nursery, self._workers
        if nursery is None or workers is None or self.has_failed or self._is_cut_off:
            return False
        if len(nursery.child_tasks) > idle_workers or self._held_up or self.inbox.owners:
            return False
        self.is_dormant = True
        self._nursery = self._workers = None
        # If the agent is stopped while its task ends, its cell must still see new work.
        nursery.cancel_scope.shield = True
        workers.end_idle()
        self._became_dormant.set()
        return True

    async def wait_dormant(self) -> None:
        """Wait until the agent has no more work and has ended its nursery."""
        await self._became_dormant.wait()

    def retire(self) -> None:
        """End the trio task of the agent if the agent is idle. This costs less than a cancellation."""
        if self._workers is not None:
            self._give_up_task(self._workers.idle_count)

    def _wake(self) -> None:
        """Start the task of a dormant agent again. The new task calls `begin`."""
        if self.is_dormant and self._cell is not None:
            self._cell.wake()

    def end(self) -> None:
        """Drop the references to the nursery and the workers after the nursery has ended."""
        if self._workers is not None:
            self._workers.close()
        self._thread = self._nursery = self._workers = None

    def check_loop(self, call: str = "") -> None:
        """Raise if the calling code runs outside of the agent's event loop. `call` is the name of its call for the error text.

        Raises:
            OutsideTrio: The calling code runs in another thread or event loop.
        """
        if (
            get_ident() != self._thread
        ):  # each message passes here: comparing threads costs less than asking trio
            check_loop(call or f"agent {self.name!r}", self._loop)

    @property
    def is_running(self) -> bool:
        """True from the start of the agent until its stop, also while it is dormant (has no task because it has no work)."""
        return self._thread is not None

    @property
    def is_stopping(self) -> bool:
        """True if the agent is stopping or has stopped. After a cancellation, this is True from the agent's next checkpoint on."""
        cell = self._cell
        is_cancelled = (cell is not None and cell.is_stopping) or (self._is_cut_off and not self.has_failed)
        # An agent without work at the end of the runtime's block stops without a cancellation.
        return is_cancelled or not (self.accepts or self.is_draining)

    def drain(self) -> None:
        """Start draining: accept messages only from turns and actors that still run."""
        self.accepts = False
        self.is_draining = True

    def reject_all(self) -> None:
        """Reject all further messages, also those of running turns."""
        self.accepts = self.is_draining = self.is_dormant = False

    def check_accepts(self) -> None:
        """Raise if the agent accepts no message of the calling task. While the agent drains, only running turns and actors may send.

        Raises:
            NotRunning: The agent accepts no message of this caller.
        """
        cell = self._cell
        if self.accepts and not self._is_cut_off and not (cell is not None and cell.is_stopping):
            return  # the usual case
        may_send = self.accepts or (self.is_draining and (is_inside(running_turn.get()) or calling_actor()))
        if self.is_stopping or not may_send:
            raise NotRunning(self.name)

    async def wait_started(self, name: str) -> None:
        """Wait until an agent is started or the start phase has ended, if the calling turn was resumed from the journal."""
        await self._wait_started(name, running_session())

    def dead_letter(self, letter: DeadLetter) -> None:
        """Add a message that cannot be processed to the dead letters."""
        if self._cell is not None:
            self._cell.dead_letter(letter, caller_knows=True)

    def start_soon(self, fn: Callable[..., Awaitable[object]], *args: object) -> bool:
        """Start a background task next to the turns. Return False if the agent is not running."""
        if self.is_dormant:
            self._to_start.append(functools.partial(copy_context().run, self.start_soon, fn, *args))
            self._wake()
            return True
        if self._nursery is not None:
            with suppress(RuntimeError):  # the nursery has just closed, and `_nursery` is about to be reset
                self._nursery.start_soon(self._run_background_task, fn, args, name=fn)
                return True
        return False

    async def _run_background_task(
        self, fn: Callable[..., Awaitable[object]], args: tuple[object, ...]
    ) -> None:
        """Run a background task. Then end the agent's nursery if the agent has no more work."""
        try:
            await fn(*args)
        finally:
            if self._workers is not None:
                self._workers.watch()

    # --- claim and start -----------------------------------------------------------------

    def pump(self) -> None:
        """Start the turns of all queued messages that may run now.

        If slots of ended turns are still reserved for their callers, the turns start after these reservations instead.
        """
        if not self._settling:
            self._pump()

    def _pump(self) -> None:
        """Start the turns of all queued messages that may run now, also during the reservations for answered callers."""
        if self._workers is None or self.has_failed or self._is_cut_off:
            self._wake()
            return
        while self._held_up:
            turn = self._held_up.pop(0)
            self._workers.start_with(turn.variables.copy(), turn)  # the worker may be ending
        while (message := self.inbox.poll()) is not None:
            context = self.sessions[message.session_id]
            joined = () if message.on_busy == "queue" else self._collect(message)
            acceptance = context.take_message(joined[-1] if joined else message)
            turn = self.turn_lifecycle.begin_turn(context, acceptance, joined[:-1])
            self.stop_if_superseded(turn)
            self._workers.start_with(turn.variables, turn)

    def try_claim(self, message: Message) -> bool:
        """Claim (reserve) the session of a message, so that the caller can start its turn with `start` at once.

        Return False if the message must be queued, or if the agent runs no turns now.
        """
        is_up = self._workers is not None and not (self.has_failed or self._is_cut_off)
        return is_up and self.inbox.try_claim(message)

    def try_claim_reserved(self, entry: InboxEntry[Message]) -> bool:
        """Claim (reserve) the session of a message that has a reserved inbox entry. Return False if the message must be queued."""
        is_up = self._workers is not None and not (self.has_failed or self._is_cut_off)
        return is_up and self.inbox.claim_reserved(entry)

    def start(self, context: SessionContext, acceptance: QueuedMessage) -> None:
        """Start the turn of a message whose session was claimed with `try_claim`."""
        assert self._workers is not None  # noqa: S101 - try_claim() has checked it
        turn = self.turn_lifecycle.begin_turn(context, acceptance)
        self._workers.start_with(acceptance.variables, turn)

    def _collect(self, message: Message) -> tuple[Message, ...]:
        """Return `message` and the queued messages that the same turn answers; empty if the turn answers only `message`."""
        if not is_collected(message):
            return ()
        return (message, *self.inbox.take_next_messages(message.session_id, is_collected))

    def stop_if_superseded(self, turn: Turn) -> None:
        """Interrupt a turn if a message with the rule `interrupt` is queued in its session.

        URGENT turns are not interrupted.
        """
        is_urgent = turn.message.priority is Priority.URGENT
        if not is_urgent and self.inbox.has_first(turn.message.session_id):
            turn.interrupt(NEWER_CAME)

    def queue_resume(self, turn: Turn) -> None:
        """Queue a suspended turn so that it resumes with the next `pump()`."""
        self._held_up.append(turn)

    # --- run and finish ------------------------------------------------------------------

    def _run_turn(self, scope: trio.CancelScope, turn: Turn) -> Awaitable[None]:
        """Make the calling task the task of a turn, and return the coroutine that runs the turn.

        An interruption cancels the task through `scope`. The time limits of the calling code do not apply to the
        turn. The budget of the turn starts to count seconds.
        """
        turn.host, turn.scope = self, scope
        turn.task = trio.lowlevel.current_task()
        running_turn.set(turn)
        if time_limits.get():  # setting a context variable costs more than reading it
            time_limits.set(())
        if turn.budget is not None:
            self.turn_lifecycle.start_clock(turn, turn.budget)
        observer = self.turn_lifecycle.observer
        if observer.spans is not None:
            observer.begin_activation(turn)
        return self._core.run_turn(turn)

    @trio.lowlevel.enable_ki_protection  # an interrupt here would free the session without ending its turn
    async def _finish_turn(self, turn: Turn) -> None:
        """Suspend, fail or end a turn whose task has finished, and release its session. If an URGENT message waits, start its turn."""
        context = turn.session
        if turn.must_suspend:
            self._suspend(turn)
            self.pump()
            return
        error = turn.end_error
        urgent = None
        try:
            if error is not None and not context.has_moved:
                with trio.CancelScope() as turn.scope:  # for `leave`
                    error = await self.turn_lifecycle.record_failure(turn, error)
            task = None if context.tree is None else context.tree.task
            if task is not None and turn.message.id == task.message_id:
                with trio.CancelScope() as turn.scope:  # for `leave`
                    await self.report_task(context, error, failure_kind=turn.blame)
            if error is None and not context.has_moved:
                self.turn_lifecycle.end_turn(turn)
            else:
                await self._end_failed_or_moved(turn, error)
            urgent = None if self.has_failed else self.inbox.next_urgent(context.id)
        except Exception:
            self.has_failed = True
            raise
        finally:
            if (
                urgent is None and context.turn is not turn
            ):  # the turn was interrupted before its failure was recorded, so it has not ended
                self._release(context)
        if urgent is not None and self._workers is not None:
            self.start(context, context.take_message(urgent))
        if self.inbox.owners and urgent is None and self.inbox.is_wanted_by_others(context.id):
            await self._yield_to_callers()
            self._pump()
        elif not self._settling and (self.inbox.owners or self._held_up):
            self._pump()

    async def _end_failed_or_moved(self, turn: Turn, error: Exception | None) -> None:
        """End a turn with `error`. If its session has moved, end only the local part of the turn."""
        context = turn.session
        if context.has_moved or error is None:
            self.turn_lifecycle.end_moved_turn(turn)
        else:
            with trio.CancelScope() as turn.scope:  # for `leave`
                await self.turn_lifecycle.fail_turn(turn, error)

    async def _yield_to_callers(self) -> None:
        """Let other tasks run for `REPLY_CHECKPOINTS` checkpoints, so that the answered caller can send its next message first."""
        self._settling += 1
        try:
            for _ in range(REPLY_CHECKPOINTS):
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._settling -= 1

    async def report_task(
        self, context: SessionContext, error: Exception | None, *, failure_kind: str = "internal"
    ) -> None:
        """Report the outcome of the task of session `context` to its parent session, and cancel the task's deadline.

        `failure_kind` is the kind of the failure if the class of `error` does not determine it. If the parent waits for the
        outcome, or if the session has moved, send nothing.
        """
        context.drop_timer(TASK_TIMER)
        if context.task is not None and context.task.reports and not context.has_moved:
            await self._on_task_done(context, error, failure_kind)

    def _release(self, context: SessionContext) -> None:
        """Release the session of a finished turn in the inbox, so that its next message can start. Unload a finished session."""
        self.inbox.release(context.id)
        if context.tree is not None and not self.is_stopping:  # the next start may resume the turn
            self._drop_unclaimed(context)
        if context.closed or context.is_transient:
            self._unload(context)
        if self._on_released is not None:
            self._on_released(context)
        if context.log is not None:  # only a session with a journal can be unloaded
            self.sessions.mark_idle(context)

    def _drop_unclaimed(self, context: SessionContext) -> None:
        """Interrupt the restored child sessions whose tasks a resumed turn has not requested again until its end."""
        for child in context.children.find_unclaimed() if context.children else ():
            child.closed = True
            host_of(child).resume_if_superseded(child)
            if child.turn is not None:
                child.turn.interrupt("the caller is gone")

    async def _abandon_turn(self, turn: Turn) -> None:
        """Handle a turn whose task was cancelled from outside.

        If the session has moved to another process, end the local part of the turn. If the agent has failed, the turn fails after
        the restart of the agent. If the agent is stopping, the turn ends as stopped.
        """
        context = turn.session
        if context.turn is not turn:
            return
        if context.has_moved:
            self.end_moved_turn(turn)
            return
        if self.has_failed:
            turn.mark_failed(ActorFailed(self.name, "it failed, and starts again without this turn"))
            self._core.observer.end_interrupted_span(turn)
            self._held_up.append(turn)
            return
        self.stop_starting()  # the journal accepts no more records of the session, so no further message may start
        await self._stop_turn(turn)

    def cancel_moved_turn(self, turn: Turn) -> None:
        """Cancel the task of a turn that another process continues. If the turn has no task, because it waits to resume, end the turn in this process."""
        context = turn.session
        if any(each is turn for each in self._held_up):
            self._held_up = [each for each in self._held_up if each is not turn]
            self.end_moved_turn(turn)
            return
        turn.mark_failed(SessionMoved(self.name, context.id))
        if turn.scope is not None:
            turn.scope.cancel()

    def end_moved_turn(self, turn: Turn) -> None:
        """End a turn in this process, because another process continues it: callers get `SessionMoved`, and nothing is recorded."""
        context = turn.session
        self.turn_lifecycle.end_moved_turn(turn)
        self._release(context)
        self.pump()

    async def notify_moved(self, context: SessionContext) -> None:
        """Call the exception handlers of a session with a `Failure` of the kind `moved`, because another process owns the session.

        If no exception handler is attached, a warning is logged.
        """
        moved = SessionMoved(self.name, context.id)
        failure = Failure(id=f"{context.id}/moved", kind="moved", error=moved, message_id="")
        if not context.handlers.any_of("exception"):
            _log.warning(
                "%s; handlers attached to it here receive no more deliveries", LogVariable(str(moved))
            )
        await self._core.dispatcher.dispatch(context, failure)

    async def _stop_turn(self, turn: Turn) -> None:
        """End a running turn as stopped because the agent stops."""
        context = turn.session
        self.dead_letter_all(context, (*turn.joined, turn.message))
        await self.turn_lifecycle.stop_turn(turn)
        self._release(context)

    @property
    def has_suspended(self) -> bool:
        """True if turns are queued to resume, or suspended."""
        return bool(self._held_up) or any(each.suspension is not None for each in self.sessions.values())

    async def stop_suspended(self) -> None:
        """End the turns that are queued to resume, and without a journal also the suspended turns.

        With a journal, suspended turns resume at the next start.
        """
        for turn in self._held_up:
            await run_with(turn.variables, self._stop_turn(turn))
        for context in [each for each in self.sessions.values() if each.suspension is not None]:
            if context.log is None and context.suspension is not None:
                self.inbox.unpark(context.id)
                turn = self.turn_lifecycle.continue_turn(context, context.suspension)
                await run_with(turn.variables, self._stop_turn(turn))
            else:
                if self.inbox.is_parked(context.id):
                    self.inbox.unpark(context.id)
                if context.suspension is not None:
                    end_waits_as_stopped(context, context.suspension)
                stop_recording_for_next_start(context)

    def dead_letter_all(self, context: SessionContext, messages: Sequence[Message]) -> None:
        """Add stopped messages to the dead letters.

        If the session has a journal or a parent session, do nothing: the next start or the parent retries the messages.
        """
        if context.log is not None or context.parent is not None:
            return
        owner = None if context.is_transient else context.owner
        for message in messages:
            letter = DeadLetter(self.name, message, "it was stopped", priority=message.priority, owner=owner)
            self.dead_letter(letter)

    # --- suspending and resuming ------------------------------------------------------------

    def withdraw_during_suspension(self, context: SessionContext) -> None:
        """Withdraw messages that are queued after a suspended turn and whose callers do not accept waiting for approvals."""
        self._on_suspended(context)

    def _suspend(self, turn: Turn) -> None:
        """Suspend a turn whose task has finished: release its concurrency slot, and hold the other messages of its session."""
        context = turn.session
        self.turn_lifecycle.suspend_turn(turn)
        self.inbox.park(context.id)
        ledger = context.ledger()
        if newer := self.superseded_by(turn.message):
            turn.interrupt(newer)
        if turn.stop is not None or not ledger.has_open:
            self.resume(context)
        else:
            turn.on_stop = functools.partial(self.resume, context)
            for listener in turn.listeners:
                if listener.waits_for_approvals:
                    listener.hold()
                else:
                    turn.remove_listener(listener)
                    listener.suspend(ledger.suspended())
            self._on_suspended(context)
            for future in _callers_waiting_for_approvals(context):
                future.hold()
            context.wake_idle_waiters()
            self.sessions.mark_idle(context)

    def resume(self, context: SessionContext, error: Exception | None = None) -> None:
        """Resume the suspended turn of a session. If `error` is not None, the turn ends with this error.

        Paused time limits of callers continue. If no turn is suspended, or if the agent has stopped, do nothing.
        """
        suspension = context.suspension
        if suspension is None or context.resumes_at_next_start:
            context.wake_idle_waiters()  # a decision that was recorded during the stop has ended
            return
        self.inbox.unpark(context.id)
        turn = self.turn_lifecycle.continue_turn(context, suspension)
        for listener in (*turn.listeners, *_callers_waiting_for_approvals(context)):
            listener.release()
        if error is not None:
            turn.stop_with(error)
        ledger = context.ledger()
        if ledger.is_suspended:
            context.record_approval(ResumptionRecord())
        self.queue_resume(turn)
        self.pump()

    def restore(self, context: SessionContext, message: Message) -> None:
        """Restore the suspended turn of `message` in a loaded session, which still waits for approvals."""
        joined = () if context.checkpoint is None else context.checkpoint.joined
        context.suspension = Suspension(message, messages=1 + len(joined))
        self.inbox.park(context.id)
        if context.task is not None and context.task.message_id == message.id:
            context.task.future.hold()

    def resume_if_superseded(self, context: SessionContext) -> None:
        """Resume a session's suspended turn so that it ends, if the session is closed, no caller waits, or a newer message takes precedence."""
        if context.suspension is None:
            return
        is_abandoned = context.task is not None and context.task.future.abandoned
        reason = "the caller is gone" if context.closed or is_abandoned else ""
        if reason := reason or self.superseded_by(context.suspension.message):
            self.resume(context, Interrupted(reason))
        elif context.log is not None and self.inbox.has_first(context.id):
            self.record_suspended_again(context)  # an URGENT turn stays suspended
            context.log.flush_soon()

    def record_suspended_again(self, context: SessionContext) -> None:
        """Record again that the turn of a session is suspended, because the journal's index takes the last record as its end."""
        ids, log = tuple(each.id for each in context.ledger().undecided), context.log
        if (
            log is not None and context.suspension is not None and ids
        ):  # without ids the last approval has just been decided
            log.add(SuspensionRecord(message_id=context.suspension.message.id, ids=ids))

    def superseded_by(self, message: Message) -> str:
        """Return the reason why the suspended turn of `message` must end instead of resuming; empty if it may resume."""
        if self.inbox.has_urgent(message.session_id):
            return URGENT_CAME
        is_urgent = message.priority is Priority.URGENT
        return NEWER_CAME if not is_urgent and self.inbox.has_first(message.session_id) else ""

    # --- slots -----------------------------------------------------------------------------

    def lend_slot(self, turn: Turn) -> bool:
        """Release the concurrency slot of a turn while the turn waits, so that another session can run. Return False if the turn has ended."""
        if not self._is_current(turn):
            return False
        turn.lent_slots += 1
        self.inbox.lend(turn.message.session_id)
        self.pump()
        return True

    def reclaim_slot(self, turn: Turn) -> None:
        """Re-acquire the concurrency slot of a turn after its last wait has ended."""
        turn.lent_slots -= 1
        if not turn.lent_slots and self._is_current(turn):
            self.inbox.reclaim(turn.message.session_id)

    def _is_current(self, turn: Turn) -> bool:
        """Return True if a turn is the current turn of its session in this process, so it has not ended."""
        context = self.sessions.get(turn.message.session_id)
        return context is not None and context.turn is turn


def _callers_waiting_for_approvals(context: SessionContext) -> list[TurnFuture]:
    """Return the futures of callers whose messages are queued and who accept waiting for approvals."""
    futures = [each.future for each in (context.acceptances or {}).values() if each.is_accepted]
    return [each for each in futures if each is not None and each.waits_for_approvals and not each.abandoned]


def _ignore(_: SessionContext) -> None:
    """Do nothing. Default callback until `connect` is called."""
