"""What the timers of an agent's sessions do when they fire: a row for each type of timer.

A schedule that fires is a message into the session's inbox, in one journal step with the record that it fired, and the
message's id follows from the schedule and the time: it is neither lost nor doubled. Times missed while the process was down
fire at the start. A cron line that missed several times fires once, and so does one whose last message has not been dealt
with: it is passed over until it was.
"""

from collections.abc import Callable
from contextvars import Context
from functools import partial

import attrs
import trio

from actgent.control.budget import Funding
from actgent.control.cron import next_time
from actgent.errors import DeadlineExceeded
from actgent.journal.records import Fired
from actgent.messages import Message, Sender, Text
from actgent.sessions.context import SessionContext
from actgent.sessions.waiting.approval_ledger import ApprovalDeadline
from actgent.sessions.waiting.schedules import ScheduleTimer, apply_fired, is_set
from actgent.sessions.waiting.tasks import TaskDeadline

from .actor import AgentActor
from .approval_decisions import expire
from .intake import Intake
from .sessions.closing import close_tree
from .sessions.opener import SessionOpener
from .timer_service import TimerHandlers

SCHEDULE_SENDER = Sender("schedule", "system")
"""No person says it at that moment, so it has no person's authority."""
SCHEDULED_PREFIX = "Running scheduled task: "


def timer_handlers(
    running: AgentActor, intake: Intake, opener_of: Callable[[str], SessionOpener]
) -> TimerHandlers:
    """Make the table of what each type of timer does in the sessions of an agent."""
    return {
        ScheduleTimer: partial(fire_schedule, running, intake),
        TaskDeadline: partial(end_task, running, opener_of),
        ApprovalDeadline: partial(expire_approvals, running),
    }


async def end_task(
    running: AgentActor,
    opener_of: Callable[[str], SessionOpener],
    context: SessionContext,
    timer: TaskDeadline,
) -> None:
    """End a session whose task is not done in time, and all below it."""
    with running.lifecycle.kept(context):
        await running.lifecycle.end(context, DeadlineExceeded(f"agent {running.name!r}", timer.seconds))
        await close_tree(context, running.journal, opener_of)


async def expire_approvals(running: AgentActor, context: SessionContext, _: ApprovalDeadline) -> None:
    """Reject what nobody decided in time."""
    await expire(running, context)


# --- schedules ---------------------------------------------------------------------------


async def fire_schedule(
    running: AgentActor, intake: Intake, context: SessionContext, timer: ScheduleTimer
) -> None:
    """Send the message of a schedule to its session, in one journal step with the schedule's next time.

    If the message that it sent last has not been dealt with, this time is passed over.
    """
    funding = await _funding(running, timer)
    if not await is_set(context, timer):
        return
    fired = _fired(running, timer)
    if _is_busy(running, context, timer):
        await _pass_over(context, fired)
        running.core.observer.fire(context, fired.schedule_id, "")
        return
    message = _message(context.id, timer)
    running.inbox.check_room(message)
    fired = attrs.evolve(fired, message_id=message.id)
    apply_fired(context, fired)
    try:
        await intake.accept_due(
            context, message, fired, variables=_variables(running, timer), funding=funding
        )
    except BaseException:
        _set_again(context, timer)
        raise
    running.core.observer.fire(context, fired.schedule_id, message.id)


def _fired(running: AgentActor, timer: ScheduleTimer) -> Fired:
    """Make the record of a schedule that fires now."""
    schedule = timer.schedule
    passed = max(running.clock.now(), schedule.at)  # a timer may fire a little early
    following = next_time(schedule.cron, schedule.zone, after=passed) if schedule.cron else 0.0
    return Fired(schedule_id=schedule.id, at=schedule.at, following=following)


async def _pass_over(context: SessionContext, fired: Fired) -> None:
    apply_fired(context, fired)
    if context.log is not None:
        context.log.add(fired)
        context.log.flush_soon()
    await trio.lowlevel.checkpoint()


def _message(session_id: str, timer: ScheduleTimer) -> Message:
    schedule = timer.schedule
    return Message(
        id=f"{schedule.id}@{schedule.at:.0f}",
        session_id=session_id,
        sender=SCHEDULE_SENDER,
        parts=(Text(SCHEDULED_PREFIX + schedule.description),),
        priority=schedule.priority,
        metadata=schedule.metadata,
        traceparent=timer.traceparent,
    )


async def _funding(running: AgentActor, timer: ScheduleTimer) -> Funding | None:
    """Find what the turn that the schedule begins draws on; None where that is nothing of others."""
    if not timer.within:
        return None
    accounts = timer.accounts or await running.runner.turn_lifecycle.accounts.find_all(timer.within)
    return Funding(accounts=accounts, depth=timer.depth, deepest=timer.deepest)


def _variables(running: AgentActor, timer: ScheduleTimer) -> Context:
    """Return the context variables with which the session is told."""
    if timer.variables is not None:
        return timer.variables.copy()
    return running.propagation.restore(timer.baggage, timer.traceparent)


def _is_busy(running: AgentActor, context: SessionContext, timer: ScheduleTimer) -> bool:
    """Return True if the message that the schedule sent last has not been dealt with."""
    if not timer.last_id or not context.mail.pending:
        return False
    for begun in (context.turn, context.suspension):
        if begun is not None and begun.message.id == timer.last_id:
            return True
    return any(message.id == timer.last_id for message in running.inbox.waiting(context.id))


def _set_again(context: SessionContext, timer: ScheduleTimer) -> None:
    """Set a timer as before whose message did not get in, unless somebody removed the schedule meanwhile."""
    if not timer.schedule.cron or timer.id in context.timers:
        context.set_timer(timer)
