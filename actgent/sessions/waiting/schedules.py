"""The schedules of a session: set, removed and restored. What a schedule does when it fires is in `timer_handlers`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar

import attrs
import trio

from actgent.control.budget import Account, Funding
from actgent.control.durable_timer import DurableTimer
from actgent.control.schedule import Schedule
from actgent.errors import TooManySchedules, UsageError
from actgent.journal.records import NOTHING, AccountKey, Fired, Record, Scheduled, Unscheduled
from actgent.messages import traceparent, valid_traceparent
from actgent.sessions.context import SessionContext
from actgent.sessions.session_log import unless_written

T = TypeVar("T")

MAX_SCHEDULES = 100
"""Schedules of one session that may be set at a time."""
MAX_REMEMBERED_IDS = 1000
"""The number of ids of schedules a session remembers, the newest: setting one again does nothing."""
SOON = 60.0
"""Seconds, as many as lie between two times of a cron line. A turn that is scheduled by another one sooner than that is of its
tree (`Limits.tree_model_calls`): without a bound, an agent could begin turn after turn. Of later ones time bounds how many
there are, so that an agent may schedule itself each hour for a year."""


def _of_schedule(value: Callable[[Schedule], T]) -> T:
    """Make a default that is taken from the timer's schedule."""
    return attrs.Factory(lambda timer: value(timer.schedule), takes_self=True)


@attrs.frozen(eq=False)
class ScheduleTimer(DurableTimer):
    """The next time of a schedule that is set."""

    schedule: Schedule
    last_id: str = ""
    """The id of the message that it sent last."""
    variables: Context | None = None
    """The context variables of whoever set it; None if it comes from the journal."""
    baggage: Mapping[str, Any] = NOTHING
    """Variables that the journal has of it."""
    traceparent: str | None = None
    within: tuple[AccountKey, ...] = ()
    """The budgets of the turn that set it, which its first turn draws on, too."""
    depth: int = 0
    deepest: int = 0
    accounts: tuple[Account, ...] = ()
    """Those of `within`; empty if it comes from the journal."""
    id: str = attrs.field(init=False, default=_of_schedule(lambda schedule: _timer_id(schedule.id)))
    at: float = attrs.field(init=False, default=_of_schedule(lambda schedule: schedule.at))
    is_delay: bool = attrs.field(init=False, default=_of_schedule(lambda schedule: schedule.is_delay))


def _timer_id(schedule_id: str) -> str:
    return f"schedule {schedule_id}"


def schedule_timers(context: SessionContext) -> dict[str, ScheduleTimer]:
    """Return the timers of the schedules that are set in a session, by the ids of the schedules."""
    timers = context.timers.values()
    return {timer.schedule.id: timer for timer in timers if isinstance(timer, ScheduleTimer)}


def schedules(context: SessionContext) -> tuple[Schedule, ...]:
    """Return the schedules that are set in a session, the next first."""
    return tuple(
        sorted((each.schedule for each in schedule_timers(context).values()), key=lambda each: each.at)
    )


# --- setting and removing ----------------------------------------------------------------


async def set_schedule(
    context: SessionContext,
    schedule: Schedule,
    take: Callable[[Context], Mapping[str, Any]],
    fund: Callable[[], Funding | None],
) -> Schedule:
    """Set a schedule; durable on return. An id that the session knows already is not set again.

    The session is told with the caller's context variables; `take` says what a journal keeps of them, and `fund` what the first
    turn draws on. Who sets what is just being set waits for that, and sets it if the first one does not.

    Raises:
        LimitReached: `fund` raised it.
        TooManySchedules: the session has as many as it may.
        UsageError: the session ends with the turn that runs.
        JournalError: it could not be written, and is not set.
    """
    schedules = context.schedules
    while schedule.id in schedules.writing:
        await schedules.writing[schedule.id].wait()
    known = schedules.scheduled.get(schedule.id)
    if known is not None:
        await trio.lowlevel.checkpoint()
        return known
    _check_may(context)
    funding = fund() or Funding()
    variables = copy_context()
    baggage = NOTHING if context.log is None else take(variables)
    trace = valid_traceparent(traceparent.get())
    timer = ScheduleTimer(
        schedule,
        variables=variables,
        baggage=baggage,
        traceparent=trace,
        within=tuple(account.key for account in funding.accounts),
        depth=funding.depth,
        deepest=funding.deepest,
        accounts=funding.accounts,
    )
    with _being_set(context, schedule.id):
        await _set(context, timer)
    return schedule


async def _set(context: SessionContext, timer: ScheduleTimer) -> None:
    enter(context, timer)
    try:
        await _write(context, _record(timer))
    except BaseException:
        context.drop_timer(timer.id)
        context.schedules.scheduled.pop(timer.schedule.id, None)
        if context.log is not None:  # cancelled, it may be written
            context.log.add(Unscheduled(schedule_id=timer.schedule.id, withdrawn=True))
            context.log.flush_soon()
        raise


async def is_set(context: SessionContext, timer: ScheduleTimer) -> bool:
    """Return False if a schedule is not set, once that is known: one that is just being written may come to nothing."""
    while (writing := context.schedules.writing.get(timer.schedule.id)) is not None:
        await writing.wait()
    return context.timers.get(timer.id) is timer


@contextmanager
def _being_set(context: SessionContext, schedule_id: str) -> Iterator[None]:
    """Let others that set the same wait for the block."""
    writing = context.schedules.writing
    done = writing[schedule_id] = trio.Event()
    try:
        yield
    finally:
        del writing[schedule_id]
        done.set()


def _check_may(context: SessionContext) -> None:
    if context.mail.is_transient:
        raise UsageError(
            "this conversation ends with its answer, so nothing can be scheduled in it: use create_session()"
        )
    if len(schedule_timers(context)) >= MAX_SCHEDULES:
        raise TooManySchedules(context.id, MAX_SCHEDULES)


async def unset_schedule(context: SessionContext, schedule_id: str) -> bool:
    """Remove a schedule; durable on return. False where none of this id is set: it has fired, or never was there.

    Raises:
        JournalError: it could not be written, and is still set.
    """
    found = schedule_timers(context).get(schedule_id)
    if found is None:
        await trio.lowlevel.checkpoint()
        return False
    context.drop_timer(found.id)
    try:
        await _write(context, Unscheduled(schedule_id=schedule_id))
    except trio.Cancelled:  # it may be written or not, so it is written once more
        if context.log is not None:
            context.log.add(Unscheduled(schedule_id=schedule_id))
            context.log.flush_soon()
        raise
    except Exception:
        context.set_timer(found)
        if context.log is not None:  # it may be written all the same
            context.log.add(_record(found))
            context.log.flush_soon()
        raise
    return True


async def _write(context: SessionContext, record: Scheduled | Unscheduled) -> None:
    if context.log is None:
        await trio.lowlevel.checkpoint()
    else:
        with unless_written():
            await context.log.write(record)


# --- in the journal ----------------------------------------------------------------------


def _record(timer: ScheduleTimer) -> Scheduled:
    schedule = timer.schedule
    return Scheduled(
        schedule_id=schedule.id,
        description=schedule.description,
        at=schedule.at,
        cron=schedule.cron,
        zone=schedule.zone,
        priority=schedule.priority,
        baggage=timer.baggage,
        traceparent=timer.traceparent,
        delay=schedule.is_delay,
        within=timer.within,
        depth=timer.depth,
        deepest=timer.deepest,
        metadata=schedule.metadata,
        request=schedule.request,
    )


def restore_schedule(context: SessionContext, record: Scheduled | Fired | Unscheduled) -> None:
    """Apply a record to a context that is being restored."""
    match record:
        case Scheduled():
            enter(context, _timer(record))
        case Fired():
            apply_fired(context, record)
        case Unscheduled():
            context.drop_timer(_timer_id(record.schedule_id))
            if record.withdrawn:
                context.schedules.scheduled.pop(record.schedule_id, None)


def schedules_in(records: Iterable[Record]) -> tuple[Schedule, ...]:
    """The schedules that are set by a session's records, the next first."""
    found: dict[str, Schedule] = {}
    for record in records:
        match record:
            case Scheduled(schedule_id=name):
                found[name] = _schedule(record)
            case Fired(schedule_id=name, following=at) if at and name in found:
                found[name] = attrs.evolve(found[name], at=at)
            case Fired(schedule_id=name) | Unscheduled(schedule_id=name):
                found.pop(name, None)
    return tuple(sorted(found.values(), key=lambda each: each.at))


def is_over_by_time(records: Iterable[Record], schedule_id: str) -> bool:
    """Return True if what a session's records say last of a schedule is that it fired."""
    last: Record | None = None
    for record in records:
        match record:
            case Scheduled(schedule_id=name) | Fired(schedule_id=name) | Unscheduled(schedule_id=name):
                last = record if name == schedule_id else last
    return isinstance(last, Fired)


@attrs.frozen(kw_only=True)
class SavedSchedule:
    """A schedule that is set, for a snapshot of its session."""

    record: Scheduled
    last_id: str = ""


@attrs.frozen(kw_only=True)
class SavedSchedules:
    """The schedules of a session, for a snapshot of it."""

    due: tuple[SavedSchedule, ...] = ()
    """Schedules that are set."""
    known: tuple[Scheduled, ...] = ()
    """Ids that may not be set again, oldest first."""


def save_schedules(context: SessionContext) -> SavedSchedules:
    """All that records made of a session's schedules, for `bring_schedules_back`."""
    timers = schedule_timers(context).values()
    known = context.schedules.scheduled.values()
    return SavedSchedules(
        due=tuple(SavedSchedule(record=_record(timer), last_id=timer.last_id) for timer in timers),
        known=tuple(_record(ScheduleTimer(schedule)) for schedule in known),
    )


def bring_schedules_back(context: SessionContext, saved: SavedSchedules) -> None:
    """Set the schedules that were saved, in a session that has none."""
    for record in saved.known:
        context.schedules.scheduled[record.schedule_id] = _schedule(record)
    for each in saved.due:
        context.set_timer(attrs.evolve(_timer(each.record), last_id=each.last_id))


def _schedule(record: Scheduled) -> Schedule:
    return Schedule(
        id=record.schedule_id,
        description=record.description,
        at=record.at,
        cron=record.cron,
        zone=record.zone,
        priority=record.priority,
        metadata=record.metadata,
        request=record.request,
        is_delay=record.delay,
    )


def _timer(record: Scheduled) -> ScheduleTimer:
    return ScheduleTimer(
        _schedule(record),
        baggage=record.baggage,
        traceparent=record.traceparent,
        within=record.within,
        depth=record.depth,
        deepest=record.deepest,
    )


def enter(context: SessionContext, timer: ScheduleTimer) -> None:
    """Set the timer of a schedule, whose id is known from now on."""
    known = context.schedules.scheduled
    known[timer.schedule.id] = timer.schedule
    if len(known) > MAX_REMEMBERED_IDS:
        del known[next(iter(known))]
    context.set_timer(timer)


def apply_fired(context: SessionContext, fired: Fired) -> None:
    """Set the next time of a schedule that fired, which begins a tree of its own, or remove it if it has none."""
    found = schedule_timers(context).get(fired.schedule_id)
    if found is None:
        return
    if not fired.following:
        context.drop_timer(found.id)
        return
    following = attrs.evolve(found.schedule, at=fired.following)
    last_id = fired.message_id or found.last_id
    context.set_timer(
        attrs.evolve(found, schedule=following, last_id=last_id, within=(), accounts=(), depth=0, deepest=0)
    )
