"""The schedules of a session: set, removed, fired and restored.

Firing is a message into the session's inbox, in one journal step with the record that it fired, and its id follows
from the schedule and the time: neither lost nor doubled. What was due while the process was down fires at the start.
A cron line that missed several times fires once, and so does one whose last message has not been dealt with: it is
passed over until it was.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any

import attrs
import trio

from actgent.control.cron import next_time
from actgent.control.durable_timer import Dated
from actgent.control.schedule import Schedule
from actgent.errors import TooManySchedules, UsageError
from actgent.journal.records import NOTHING, Fired, Scheduled, Unscheduled
from actgent.messages import Message, Sender, Text, traceparent, valid_traceparent

from .context import SessionContext

LIMIT = 100
"""Schedules of one session that may be set at a time."""
KNOWN = 1000
"""How many ids of schedules a session remembers, the newest: setting one again does nothing."""
SENDER = Sender("schedule", "system")
"""No person says it at that moment, so it has no person's authority."""
PREFIX = "Running scheduled task: "


@attrs.frozen(eq=False)
class Pending(Dated):
    """A schedule that is set."""

    schedule: Schedule
    last_id: str = ""
    """Of the message that it sent last."""
    variables: Context | None = None
    """The context variables of whoever set it; None if it comes from the journal."""
    baggage: Mapping[str, Any] = NOTHING
    """What the journal has of them."""
    traceparent: str | None = None

    @property
    def id(self) -> str:  # type: ignore[override]
        return _due_id(self.schedule.id)

    @property
    def at(self) -> float:  # type: ignore[override]
        return self.schedule.at

    @property
    def is_delay(self) -> bool:  # type: ignore[override]
        return self.schedule.is_delay

    async def ring(self, agent: Any, context: SessionContext) -> None:
        schedule = self.schedule
        passed = max(agent.clock.now(), schedule.at)  # it may ring a little early
        following = next_time(schedule.cron, schedule.zone, after=passed) if schedule.cron else 0.0
        fired = Fired(schedule_id=schedule.id, at=schedule.at, following=following)
        if self._is_busy(agent, context):
            fire(context, fired)
            if context.log is not None:
                context.log.note(fired)
                context.log.flush_soon()
            await trio.lowlevel.checkpoint()
            return
        message = _message(context.id, self)
        agent.inbox.check_room(message)
        fired = attrs.evolve(fired, message_id=message.id)
        fire(context, fired)
        try:
            await agent.reception.admit(context, message, fired, variables=self._restored(agent))
        except BaseException:
            self._come_again(context)
            raise

    def _restored(self, agent: Any) -> Context:
        """The context variables with which the session is told."""
        if self.variables is not None:
            return self.variables.copy()
        return agent.propagation.restore(self.baggage, self.traceparent)  # type: ignore[no-any-return]

    def _is_busy(self, agent: Any, context: SessionContext) -> bool:
        """Whether the last message has not been dealt with."""
        if not self.last_id or not context.pending:
            return False
        for begun in (context.turn, context.suspension):
            if begun is not None and begun.message.id == self.last_id:
                return True
        return any(message.id == self.last_id for message in agent.inbox.waiting(context.id))

    def _come_again(self, context: SessionContext) -> None:
        """It did not get in; unless someone has unscheduled it meanwhile, it is due as before."""
        if not self.schedule.cron or self.id in (context.dues or {}):
            context.set_due(self)


def _message(session_id: str, pending: Pending) -> Message:
    schedule = pending.schedule
    return Message(
        id=f"{schedule.id}@{schedule.at:.0f}",
        session_id=session_id,
        sender=SENDER,
        parts=(Text(PREFIX + schedule.description),),
        priority=schedule.priority,
        traceparent=pending.traceparent,
    )


def _due_id(schedule_id: str) -> str:
    return f"schedule {schedule_id}"


def pending(context: SessionContext) -> dict[str, Pending]:
    """The schedules of a session that are set, by their ids."""
    dues = (context.dues or {}).values()
    return {dated.schedule.id: dated for dated in dues if isinstance(dated, Pending)}


def schedules(context: SessionContext) -> tuple[Schedule, ...]:
    """The schedules of a session that are set, the next first."""
    return tuple(sorted((each.schedule for each in pending(context).values()), key=lambda each: each.at))


# --- setting and removing ----------------------------------------------------------------


async def set_schedule(
    context: SessionContext, schedule: Schedule, take: Callable[[Context], Mapping[str, Any]]
) -> Schedule:
    """Set a schedule; durable on return. An id that the session knows already is not set again.

    The session is told with the caller's context variables; `take` says what a journal keeps of them. Who sets what is
    just being set waits for that, and sets it if the first one does not.

    Raises:
        TooManySchedules: the session has as many as it may.
        UsageError: the session ends with the turn that runs.
        JournalError: it could not be written, and is not set.
    """
    while context.scheduling and schedule.id in context.scheduling:
        await context.scheduling[schedule.id].wait()
    known: Schedule | None = (context.scheduled or {}).get(schedule.id)
    if known is not None:
        await trio.lowlevel.checkpoint()
        return known
    _check_may(context)
    variables = copy_context()
    baggage = NOTHING if context.log is None else take(variables)
    trace = valid_traceparent(traceparent.get())
    with _being_set(context, schedule.id):
        await _set(context, Pending(schedule, variables=variables, baggage=baggage, traceparent=trace))
    return schedule


async def _set(context: SessionContext, pending: Pending) -> None:
    enter(context, pending)
    try:
        await _write(context, _record(pending))
    except BaseException:
        context.drop_due(pending.id)
        (context.scheduled or {}).pop(pending.schedule.id, None)
        if context.log is not None:  # cancelled, it may be written
            context.log.note(Unscheduled(schedule_id=pending.schedule.id, withdrawn=True))
            context.log.flush_soon()
        raise


@contextmanager
def _being_set(context: SessionContext, schedule_id: str) -> Iterator[None]:
    """Let others that set the same wait for the block."""
    if context.scheduling is None:
        context.scheduling = {}
    done = context.scheduling[schedule_id] = trio.Event()
    try:
        yield
    finally:
        del context.scheduling[schedule_id]
        context.scheduling = context.scheduling or None
        done.set()


def _check_may(context: SessionContext) -> None:
    if context.transient:
        raise UsageError(
            "this conversation ends with its answer, so nothing can be scheduled in it: use create_session()"
        )
    if len(pending(context)) >= LIMIT:
        raise TooManySchedules(context.id, LIMIT)


async def unset_schedule(context: SessionContext, schedule_id: str) -> bool:
    """Remove a schedule; durable on return. False where none of this id is set: it has fired, or never was there.

    Raises:
        JournalError: it could not be written, and is still set.
    """
    found = pending(context).get(schedule_id)
    if found is None:
        await trio.lowlevel.checkpoint()
        return False
    context.drop_due(found.id)
    try:
        await _write(context, Unscheduled(schedule_id=schedule_id))
    except trio.Cancelled:  # it may be written or not, so it is written once more
        if context.log is not None:
            context.log.note(Unscheduled(schedule_id=schedule_id))
        raise
    except Exception:
        context.set_due(found)
        raise
    return True


async def _write(context: SessionContext, record: Scheduled | Unscheduled) -> None:
    if context.log is None:
        await trio.lowlevel.checkpoint()
    else:
        await context.log.write(record)


# --- in the journal ----------------------------------------------------------------------


def _record(pending: Pending) -> Scheduled:
    schedule = pending.schedule
    return Scheduled(
        schedule_id=schedule.id,
        description=schedule.description,
        at=schedule.at,
        cron=schedule.cron,
        zone=schedule.zone,
        priority=schedule.priority,
        baggage=pending.baggage,
        traceparent=pending.traceparent,
        delay=schedule.is_delay,
    )


def restore_schedule(context: SessionContext, record: Scheduled | Fired | Unscheduled) -> None:
    """Do to a fresh context what a record says."""
    match record:
        case Scheduled():
            schedule = Schedule(
                id=record.schedule_id,
                description=record.description,
                at=record.at,
                cron=record.cron,
                zone=record.zone,
                priority=record.priority,
                is_delay=record.delay,
            )
            enter(context, Pending(schedule, baggage=record.baggage, traceparent=record.traceparent))
        case Fired():
            fire(context, record)
        case Unscheduled():
            context.drop_due(_due_id(record.schedule_id))
            if record.withdrawn and context.scheduled is not None:
                context.scheduled.pop(record.schedule_id, None)


def enter(context: SessionContext, pending: Pending) -> None:
    """A schedule is set from now on, and its id known."""
    if context.scheduled is None:
        context.scheduled = {}
    context.scheduled[pending.schedule.id] = pending.schedule
    if len(context.scheduled) > KNOWN:
        del context.scheduled[next(iter(context.scheduled))]
    context.set_due(pending)


def fire(context: SessionContext, fired: Fired) -> None:
    """A schedule has fired: it is over, or has its next time."""
    found = pending(context).get(fired.schedule_id)
    if found is None:
        return
    if not fired.following:
        context.drop_due(found.id)
        return
    following = attrs.evolve(found.schedule, at=fired.following)
    context.set_due(attrs.evolve(found, schedule=following, last_id=fired.message_id or found.last_id))
