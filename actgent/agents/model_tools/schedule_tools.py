"""Tools with which a model sets, lists and cancels schedules of its session."""

import abc
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from actgent.agents.session import Session, schedule_in
from actgent.errors import ConfigurationError, LimitReached, ToolError, TooManySchedules, UsageError
from actgent.limits_and_schedules.schedule import Schedule
from actgent.sessions.pending.schedules import TREE_WINDOW_SECONDS
from actgent.tools.tool_interface import Effect, Tool, ToolContext

NO_SCHEDULE = "nothing was scheduled: 'no-schedule' has no time. Do it now, or choose a time: delayed, scheduled or cron"
"""Result for the model if a scheduling call has no time."""
SOONER_COUNTS = (
    f"A schedule less than {TREE_WINDOW_SECONDS:.0f} seconds from now shares the limits of the running turn, and its calls count there. "
    "Schedule it later than that, or ask the user to continue"
)
"""Explanation for the model that a schedule is too soon for the limits of the running turn."""


class SchedulingTool(Tool, abc.ABC):
    """Base class of tools that use the schedules of the calling session."""

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        session = context.session
        if not isinstance(session, Session):
            raise ToolError(
                "scheduling tools work only in a session: start the agent and call them in a turn"
            )
        return await self.act(session, arguments, context)

    @abc.abstractmethod
    async def act(self, session: Session, arguments: Mapping[str, Any], context: ToolContext) -> object:
        """Execute the tool call on a session's schedules, and return the result for the model."""


class ScheduleTask(SchedulingTool):
    """Tool that sets a schedule. A call that is repeated after a crash sets no second schedule."""

    name = "schedule_task"
    description = (
        "Schedule a task: at its time you are told 'Running scheduled task: ' and the description, and do it then. "
        "Say when by one of the types: delayed (seconds from now), scheduled (a date), cron (again and again), "
        "or no-schedule where no time is known."
    )
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "when": {
                "type": "object",
                "properties": {
                    "type": {"type": "string", "enum": ["delayed", "scheduled", "cron", "no-schedule"]},
                    "seconds": {"type": "number", "minimum": 0, "description": "For delayed: from now on."},
                    "date": {
                        "type": "string",
                        "format": "date-time",
                        "description": "For scheduled: ISO 8601, e.g. 2027-01-31T09:00:00+01:00.",
                    },
                    "cron": {
                        "type": "string",
                        "description": "For cron: minute hour day-of-month month day-of-week, e.g. 0 9 * * MON-FRI.",
                    },
                    "zone": {
                        "type": "string",
                        "description": "Time zone of the cron line, or of a date without offset, e.g. Europe/Berlin; UTC without it.",
                    },
                },
                "required": ["type"],
                "additionalProperties": False,
            },
            "description": {"type": "string", "minLength": 1, "description": "What to do then, in full."},
        },
        "required": ["when", "description"],
        "additionalProperties": False,
    }
    effect: Effect = "idempotent"
    sinks = ()  # the session keeps its label until the schedule fires
    keeps_references = True

    async def act(self, session: Session, arguments: Mapping[str, Any], context: ToolContext) -> object:
        times = _times(arguments["when"])
        try:
            # `Session.schedule` would reject the generated key, which may be longer than 200 characters.
            set_now = await schedule_in(
                session, arguments["description"], key=context.idempotency_key, **times
            )
        except (ConfigurationError, UsageError, TooManySchedules) as error:
            raise ToolError(str(error)) from error
        except LimitReached as error:
            raise ToolError(f"{error}. {SOONER_COUNTS}") from error
        return _schedule_row(set_now)


def _times(when: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the argument `when` of the tool `schedule_task` to keyword arguments of `Session.schedule`."""
    kind = when["type"]
    if kind == "no-schedule":
        raise ToolError(NO_SCHEDULE)
    field = {"delayed": "seconds", "scheduled": "date", "cron": "cron"}[kind]
    if field not in when:
        raise ToolError(f"when: the type {kind!r} needs {field!r}")
    zone = when.get("zone")
    if kind == "delayed":
        return {"after": when["seconds"], "zone": zone}
    if kind == "cron":
        return {"cron": when["cron"], "zone": zone}
    return {"at": _date(when["date"]), "zone": zone or "UTC"}


def _date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ToolError(
            f"{text!r} is not a valid date: write the date in ISO 8601, e.g. 2027-01-31T09:00:00+01:00"
        ) from None


class GetScheduledTasks(SchedulingTool):
    """Tool that lists the schedules of the session, sorted by their next time, and the current time."""

    name = "get_scheduled_tasks"
    description = "List the tasks that are scheduled in this conversation, the next first, and the time now."
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    effect: Effect = "pure"
    inline = True

    async def act(self, session: Session, arguments: Mapping[str, Any], context: ToolContext) -> object:
        now = datetime.fromtimestamp(session.clock.now(), UTC).isoformat(timespec="seconds")
        return {"now": now, "tasks": [_schedule_row(schedule) for schedule in session.schedules]}


class CancelScheduledTask(SchedulingTool):
    """Tool that removes a schedule."""

    name = "cancel_scheduled_task"
    description = "Cancel a scheduled task by its id; it is not run any more."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"id": {"type": "string", "description": "As schedule_task returned it."}},
        "required": ["id"],
        "additionalProperties": False,
    }
    effect: Effect = "idempotent"

    async def act(self, session: Session, arguments: Mapping[str, Any], context: ToolContext) -> object:
        if await session.unschedule(arguments["id"]):
            return f"The task {arguments['id']} is cancelled."
        return f"No task {arguments['id']} is scheduled: it has run, was cancelled, or never was there."


def scheduling_tools() -> tuple[Tool, ...]:
    """Return the tools `schedule_task`, `get_scheduled_tasks` and `cancel_scheduled_task`."""
    return (ScheduleTask(), GetScheduledTasks(), CancelScheduledTask())


def _schedule_row(schedule: Schedule) -> dict[str, str]:
    shown = {
        "id": schedule.id,
        "description": schedule.description,
        "next": schedule.due.isoformat(timespec="seconds"),
    }
    if schedule.cron:
        shown |= {"cron": schedule.cron, "zone": schedule.zone}
    return shown
