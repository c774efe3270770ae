"""Schedules of a session: setting, removing, storing in snapshots, and restoring.

`timer_handlers` sends the messages of due schedules.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar

import attrs
import trio

from actgent.errors import TooManySchedules, UsageError
from actgent.journal.record_types import (
    NOTHING,
    AccountKey,
    Record,
    ScheduleFiredRecord,
    ScheduleRecord,
    ScheduleRemovedRecord,
)
from actgent.limits_and_schedules.budget import Account, Funding
from actgent.limits_and_schedules.durable_timer import DurableTimer
from actgent.limits_and_schedules.schedule import Schedule
from actgent.messages import traceparent, valid_traceparent
from actgent.sessions.session_context import SessionContext
from actgent.sessions.session_record_writer import unless_written
from actgent.support.attrs_class_repr import FieldRepr

T = TypeVar("T")

MAX_SCHEDULES = 100
"""Maximum number of schedules of one session."""
MAX_REMEMBERED_IDS = 1000
"""Maximum number of schedule ids that a session remembers. Setting a schedule with a remembered id has no effect."""
TREE_WINDOW_SECONDS = 60.0
"""Turns that a turn schedules within this number of seconds count as turns that it causes.

The value is the shortest interval of a cron expression. So `Limits.tree_model_calls` limits a chain of turns that schedule each
other at short intervals. Longer intervals are not limited: an agent may schedule itself each hour for a year.
"""


def _of_schedule(value: Callable[[Schedule], T]) -> T:
    """Return an attrs default for a field of `ScheduleTimer`. `value` computes the default from the timer's schedule."""
    return attrs.Factory(lambda timer: value(timer.schedule), takes_self=True)


@attrs.frozen(eq=False, repr=False)
class ScheduleTimer(DurableTimer):
    """Durable timer for the next time of a schedule."""

    schedule: Schedule
    """Schedule of the timer. The timer fires at the next time of the schedule."""
    last_id: str = ""
    """Id of the last message that the schedule sent; empty before the first."""
    variables: Context | None = None
    """Context variables of the code that set the schedule; None if the schedule was loaded from the journal."""
    baggage: Mapping[str, Any] = NOTHING
    """Context variables of the code that set the schedule, in the form that the journal stores."""
    traceparent: str | None = None
    """W3C Trace Context of the code that set the schedule; None without a trace."""
    account_keys: tuple[AccountKey, ...] = ()
    """Keys of the budget accounts of the turn that set the schedule.
    The first turn of the schedule is charged to these accounts.
    """
    depth: int = 0
    """Depth of nested agent calls at which the schedule was set."""
    deepest: int = 0
    """Maximum depth of nested agent calls for the turns of the schedule; 0 means unlimited."""
    accounts: tuple[Account, ...] = ()
    """Budget accounts with the keys `account_keys`; empty if the schedule was loaded from the journal.

    The accounts of a loaded schedule are opened when the schedule fires.
    """
    via: str = ""
    """Names of the untrusted sources of another session whose turn set this schedule; empty if there are none."""
    id: str = attrs.field(init=False, default=_of_schedule(lambda schedule: _timer_id(schedule.id)))
    at: float = attrs.field(init=False, default=_of_schedule(lambda schedule: schedule.at))
    is_delay: bool = attrs.field(init=False, default=_of_schedule(lambda schedule: schedule.is_delay))


def _timer_id(schedule_id: str) -> str:
    return f"schedule {schedule_id}"


def schedule_timers(context: SessionContext) -> dict[str, ScheduleTimer]:
    """Return the timers of a session's schedules, by schedule id."""
    timers = context.timers.values()
    return {timer.schedule.id: timer for timer in timers if isinstance(timer, ScheduleTimer)}


def schedules(context: SessionContext) -> tuple[Schedule, ...]:
    """Return the schedules that are set in a session, sorted by their next time."""
    return tuple(
        sorted((each.schedule for each in schedule_timers(context).values()), key=lambda each: each.at)
    )


# --- setting and removing ----------------------------------------------------------------


async def set_schedule(
    context: SessionContext,
    schedule: Schedule,
    capture: Callable[[Context], Mapping[str, Any]],
    find_funding: Callable[[], Funding | None],
    *,
    via: str = "",
) -> Schedule:
    """Set a schedule in a session, and return it. The schedule is durable on return.

    If the session remembers a schedule with this id, return that schedule and set nothing. A concurrent call with the same id waits
    for the first call, and sets the schedule if the first call fails.

    Args:
        context: Session that will receive the schedule's messages.
        schedule: Schedule to set. Its message gets the context variables of the caller.
        capture: Function that returns the values of a context that the journal stores.
        find_funding: Function that returns the budget sources of the schedule's first turn; None for none.
        via: Names of the untrusted sources of the calling session.

    Raises:
        LimitReached: `find_funding` raised this error, because the limits of the calling turn are used up.
        TooManySchedules: The session has the maximum number of schedules.
        UsageError: The session serves a single request and closes after it, so it can have no schedules.
        JournalError: The schedule could not be written, and is not set.
    """
    schedules = context.schedules
    while schedule.id in schedules.writing:
        await schedules.writing[schedule.id].wait()
    existing = schedules.scheduled.get(schedule.id)
    if existing is not None:
        await trio.lowlevel.checkpoint()
        return existing
    _check_schedules_allowed(context)
    funding = find_funding() or Funding()
    variables = copy_context()
    baggage = NOTHING if context.log is None else capture(variables)
    trace = valid_traceparent(traceparent.get())
    timer = ScheduleTimer(
        schedule,
        variables=variables,
        baggage=baggage,
        traceparent=trace,
        account_keys=tuple(account.key for account in funding.accounts),
        depth=funding.depth,
        deepest=funding.deepest,
        accounts=funding.accounts,
        via=via,
    )
    with _being_set(context, schedule.id):
        await _set(context, timer)
    return schedule


async def _set(context: SessionContext, timer: ScheduleTimer) -> None:
    add_schedule(context, timer)
    try:
        await _write(context, _record(timer))
    except BaseException:
        context.drop_timer(timer.id)
        context.schedules.scheduled.pop(timer.schedule.id, None)
        if context.log is not None:  # after a cancellation the record may exist
            context.log.add(ScheduleRemovedRecord(schedule_id=timer.schedule.id, withdrawn=True))
            context.log.flush_soon()
        raise


async def is_set(context: SessionContext, timer: ScheduleTimer) -> bool:
    """Return True if the schedule of a timer is still set. Wait first while the schedule is being written."""
    while (writing := context.schedules.writing.get(timer.schedule.id)) is not None:
        await writing.wait()
    return context.timers.get(timer.id) is timer


@contextmanager
def _being_set(context: SessionContext, schedule_id: str) -> Iterator[None]:
    """Return a block in which a schedule id is marked as being written. Other calls with this id wait for the end of the block."""
    writing = context.schedules.writing
    done = writing[schedule_id] = trio.Event()
    try:
        yield
    finally:
        del writing[schedule_id]
        done.set()


def _check_schedules_allowed(context: SessionContext) -> None:
    if context.is_transient:
        raise UsageError(
            "a session that run() creates ends with its answer, so it cannot have schedules: create the session with create_session()"
        )
    if len(schedule_timers(context)) >= MAX_SCHEDULES:
        raise TooManySchedules(context.id, MAX_SCHEDULES)


async def unset_schedule(context: SessionContext, schedule_id: str) -> bool:
    """Remove a schedule from a session. The removal is durable on return. Return False if the schedule is not set.

    Raises:
        JournalError: The removal could not be written, and the schedule is still set.
    """
    found = schedule_timers(context).get(schedule_id)
    if found is None:
        await trio.lowlevel.checkpoint()
        return False
    context.drop_timer(found.id)
    try:
        await _write(context, ScheduleRemovedRecord(schedule_id=schedule_id))
    except trio.Cancelled:  # the record may be missing, so it is written again
        if context.log is not None:
            context.log.add(ScheduleRemovedRecord(schedule_id=schedule_id))
            context.log.flush_soon()
        raise
    except Exception:
        context.set_timer(found)
        if context.log is not None:  # the record of the removal may exist
            context.log.add(_record(found))
            context.log.flush_soon()
        raise
    return True


async def _write(context: SessionContext, record: ScheduleRecord | ScheduleRemovedRecord) -> None:
    if context.log is None:
        await trio.lowlevel.checkpoint()
    else:
        with unless_written():
            await context.log.write(record)


# --- in the journal ----------------------------------------------------------------------


def _record(timer: ScheduleTimer) -> ScheduleRecord:
    schedule = timer.schedule
    return ScheduleRecord(
        schedule_id=schedule.id,
        description=schedule.description,
        at=schedule.at,
        cron=schedule.cron,
        zone=schedule.zone,
        priority=schedule.priority,
        baggage=timer.baggage,
        traceparent=timer.traceparent,
        delay=schedule.is_delay,
        within=timer.account_keys,
        depth=timer.depth,
        deepest=timer.deepest,
        metadata=schedule.metadata,
        request=schedule.request,
        via=timer.via,
    )


def restore_schedule(
    context: SessionContext, record: ScheduleRecord | ScheduleFiredRecord | ScheduleRemovedRecord
) -> None:
    """Apply a schedule record to a session that is being restored."""
    match record:
        case ScheduleRecord():
            add_schedule(context, _timer(record))
        case ScheduleFiredRecord():
            apply_fired(context, record)
        case ScheduleRemovedRecord():
            context.drop_timer(_timer_id(record.schedule_id))
            if record.withdrawn:
                context.schedules.scheduled.pop(record.schedule_id, None)


def schedules_in(records: Iterable[Record]) -> tuple[Schedule, ...]:
    """Return the schedules that are set according to a session's records, sorted by next time."""
    found: dict[str, Schedule] = {}
    for record in records:
        match record:
            case ScheduleRecord(schedule_id=name):
                found[name] = _schedule(record)
            case ScheduleFiredRecord(schedule_id=name, following=at) if at and name in found:
                found[name] = attrs.evolve(found[name], at=at)
            case ScheduleFiredRecord(schedule_id=name) | ScheduleRemovedRecord(schedule_id=name):
                found.pop(name, None)
    return tuple(sorted(found.values(), key=lambda each: each.at))


def has_fired_last(records: Iterable[Record], schedule_id: str) -> bool:
    """Return True if the last record of a schedule is a firing. A schedule that does not repeat has then ended."""
    last: Record | None = None
    for record in records:
        match record:
            case (
                ScheduleRecord(schedule_id=name)
                | ScheduleFiredRecord(schedule_id=name)
                | ScheduleRemovedRecord(schedule_id=name)
            ):
                last = record if name == schedule_id else last
    return isinstance(last, ScheduleFiredRecord)


@attrs.frozen(kw_only=True, repr=False)
class SavedSchedule(FieldRepr):
    """One schedule, in the form that a session snapshot stores."""

    record: ScheduleRecord
    """Record that set the schedule, with the next time."""
    last_id: str = ""
    """Id of the last message that the schedule sent; empty before the first."""


@attrs.frozen(kw_only=True, repr=False)
class SavedSchedules(FieldRepr):
    """All schedules of a session, in the form that a session snapshot stores."""

    due: tuple[SavedSchedule, ...] = ()
    """Schedules that are set and will fire."""
    known: tuple[ScheduleRecord, ...] = ()
    """Ended schedules whose ids are remembered, oldest first. A new schedule cannot use such an id."""


def save_schedules(context: SessionContext) -> SavedSchedules:
    """Return the schedules of a session in the form that a snapshot stores."""
    timers = schedule_timers(context).values()
    known = context.schedules.scheduled.values()
    return SavedSchedules(
        due=tuple(SavedSchedule(record=_record(timer), last_id=timer.last_id) for timer in timers),
        known=tuple(_record(ScheduleTimer(schedule)) for schedule in known),
    )


def restore_schedules(context: SessionContext, saved: SavedSchedules) -> None:
    """Set the schedules of a session, as read from a snapshot."""
    for record in saved.known:
        context.schedules.scheduled[record.schedule_id] = _schedule(record)
    for each in saved.due:
        context.set_timer(attrs.evolve(_timer(each.record), last_id=each.last_id))


def _schedule(record: ScheduleRecord) -> Schedule:
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


def _timer(record: ScheduleRecord) -> ScheduleTimer:
    return ScheduleTimer(
        _schedule(record),
        baggage=record.baggage,
        traceparent=record.traceparent,
        account_keys=record.within,
        depth=record.depth,
        deepest=record.deepest,
        via=record.via,
    )


def add_schedule(context: SessionContext, timer: ScheduleTimer) -> None:
    """Add the schedule of a timer to a session, and set the timer.

    The session remembers the id of the schedule, so that a second schedule with this id is not set.
    """
    known = context.schedules.scheduled
    known[timer.schedule.id] = timer.schedule
    if len(known) > MAX_REMEMBERED_IDS:
        del known[next(iter(known))]
    context.set_timer(timer)


def apply_fired(context: SessionContext, fired: ScheduleFiredRecord) -> None:
    """Apply the record of a fired schedule: set the next time of the schedule, or remove a schedule that does not repeat.

    Further turns of the schedule are not charged to the budget of the turn that set the schedule.
    """
    found = schedule_timers(context).get(fired.schedule_id)
    if found is None:
        return
    if not fired.following:
        context.drop_timer(found.id)
        return
    following = attrs.evolve(found.schedule, at=fired.following)
    last_id = fired.message_id or found.last_id
    context.set_timer(
        attrs.evolve(
            found, schedule=following, last_id=last_id, account_keys=(), accounts=(), depth=0, deepest=0
        )
    )
