"""Actions of the timers of an agent's sessions, by timer class.

A schedule that fires sends a message to its session. The message and the record of the firing are written together, and the
message id is derived from schedule and time. So the message is neither lost nor duplicated. A schedule whose time was missed
while the process was down fires at the start, also once if a cron schedule has missed several times. A firing is skipped if
the last message of the schedule is unfinished.
"""

from collections.abc import Callable
from contextvars import Context
from functools import partial

import attrs
import trio

from actgent.errors import DeadlineExceeded
from actgent.journal.record_types import ScheduleFiredRecord
from actgent.limits_and_schedules.budget import Funding
from actgent.limits_and_schedules.cron_expressions import next_time
from actgent.messages import Message, Sender, Text
from actgent.sessions.pending.approval_ledger import ApprovalDeadline
from actgent.sessions.pending.delegated_tasks import TaskDeadline
from actgent.sessions.pending.schedules import ScheduleTimer, apply_fired, is_set
from actgent.sessions.session_context import SessionContext

from .agent_actor import AgentActor
from .agent_directory import Directory
from .approval_decisions import expire
from .message_admission import MessageAdmission
from .sessions.session_opener import SessionOpener
from .sessions.session_tree_close import close_tree
from .timer_service import TimerHandlers

SCHEDULE_SENDER = Sender("schedule", "system")
"""Sender of scheduled messages. It is a system sender, so it has no user's permissions."""
SCHEDULED_PREFIX = "Running scheduled task: "


def timer_handlers(opener: SessionOpener, agents: Directory) -> TimerHandlers:
    """Return the functions that execute due timers, by timer class: task deadlines, approval deadlines and schedules."""
    running = opener.running
    return {
        ScheduleTimer: partial(fire_schedule, running, opener.admission),
        TaskDeadline: partial(end_task, running, agents.opener),
        ApprovalDeadline: partial(expire_approvals, running),
    }


async def end_task(
    running: AgentActor,
    opener_of: Callable[[str], SessionOpener],
    context: SessionContext,
    timer: TaskDeadline,
) -> None:
    """Stop a task whose deadline has passed, and close its session with all descendants."""
    with running.lifecycle.kept(context):
        await running.lifecycle.end(context, DeadlineExceeded(f"agent {running.name!r}", timer.seconds))
        await close_tree(context, running.journal, opener_of)


async def expire_approvals(running: AgentActor, context: SessionContext, _: ApprovalDeadline) -> None:
    """Reject the approvals of a session whose deadline has passed."""
    await expire(running, context)


# --- schedules ---------------------------------------------------------------------------


async def fire_schedule(
    running: AgentActor, admission: MessageAdmission, context: SessionContext, timer: ScheduleTimer
) -> None:
    """Send the message of a due schedule to its session. One write records the message and the next time of the schedule.

    If the message of the last firing is unfinished, this firing is skipped. If the message is rejected, the
    timer is set again, and the error is raised.
    """
    funding = await _funding(running, timer)
    if not await is_set(context, timer):
        return
    schedule = timer.schedule
    passed = max(running.clock.now(), schedule.at)  # a timer may fire a little early
    following = next_time(schedule.cron, schedule.zone, after=passed) if schedule.cron else 0.0
    fired = ScheduleFiredRecord(schedule_id=schedule.id, at=schedule.at, following=following)
    if _is_busy(running, context, timer):
        await _skip_firing(context, fired)
        running.core.observer.fire(context, fired.schedule_id, "")
        return
    message = _message(context.id, timer)
    running.inbox.check_room(message)
    fired = attrs.evolve(fired, message_id=message.id)
    apply_fired(context, fired)
    try:
        await admission.accept_due(
            context, message, fired, variables=_variables(running, timer), funding=funding
        )
    except BaseException:
        _set_again(context, timer)
        raise
    running.core.observer.fire(context, fired.schedule_id, message.id)


async def _skip_firing(context: SessionContext, fired: ScheduleFiredRecord) -> None:
    """Record that a schedule has fired without a message, and set its next time."""
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
        via=timer.via,
    )


async def _funding(running: AgentActor, timer: ScheduleTimer) -> Funding | None:
    """Return the budgets that a schedule's turn uses in addition to that of its session; None if there are no others."""
    if not timer.account_keys:
        return None
    accounts = timer.accounts or await running.runner.turn_lifecycle.accounts.find_all(timer.account_keys)
    return Funding(accounts=accounts, depth=timer.depth, deepest=timer.deepest)


def _variables(running: AgentActor, timer: ScheduleTimer) -> Context:
    """Return the context variables for a scheduled message: those of the task that created the schedule, or the stored variables."""
    if timer.variables is not None:
        return timer.variables.copy()
    return running.propagation.restore(timer.baggage, timer.traceparent)


def _is_busy(running: AgentActor, context: SessionContext, timer: ScheduleTimer) -> bool:
    """Return True if the last message of a schedule is unfinished."""
    if not timer.last_id or not context.pending:
        return False
    for begun in (context.turn, context.suspension):
        if begun is not None and begun.message.id == timer.last_id:
            return True
    return any(message.id == timer.last_id for message in running.inbox.waiting(context.id))


def _set_again(context: SessionContext, timer: ScheduleTimer) -> None:
    """Set the timer of a schedule again after its message was rejected, unless a cron schedule was removed in the meantime."""
    if not timer.schedule.cron or timer.id in context.timers:
        context.set_timer(timer)
