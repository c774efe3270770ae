"""Sessions, agents and what waits in them, as JSON."""

import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import attrs

from actgent.agents.session import Session, context_of
from actgent.approvals import Approval
from actgent.control.budget import Budget
from actgent.control.schedule import Schedule
from actgent.errors import UsageError
from actgent.journal.base import SessionSummary
from actgent.journal.records import Accepted, Finished, Rated, Record, Said
from actgent.messages import File, Medium, Message, Part, Text, ToolCall, ToolResult, Usage
from actgent.runtime.directory import AgentCard
from actgent.runtime.insight import AgentStatistics
from actgent.runtime.sessions.opener import SessionOpener

MAX_WAITING = 100
"""Messages that wait for their turn, of one session, at most."""
MAX_CONTENT = 4000
"""Characters of a tool's result or error in a stream."""


@lru_cache(maxsize=256)
def to_date(seconds: float) -> str | None:
    """Unix time as RFC 3339; None for none."""
    if not 0 < seconds < math.inf:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def of_head(head: SessionSummary) -> dict[str, Any]:
    """What is known of a session without opening it."""
    return {
        "id": head.session_id,
        "agent": head.agent,
        "owner": head.owner,
        "state": head.state,
        "parent": None if head.parent is None else {"agent": head.parent.agent, "id": head.parent.session_id},
        "created_at": to_date(head.created_at),
        "updated_at": to_date(head.updated_at),
        "records": head.records,
        "unfinished": head.unfinished,
    }


def of_session(
    head: SessionSummary, session: Session | None, children: Sequence[SessionSummary]
) -> dict[str, Any]:
    """A session; None where it is closed, or its agent does not run."""
    below = [{"agent": child.agent, "id": child.session_id, "state": child.state} for child in children]
    return {**of_head(head), "children": below, **({} if session is None else _opened(session))}


def _opened(session: Session) -> dict[str, Any]:
    context = context_of(session)
    return {
        "status": shown_status(session),
        "description": session.description,
        "mode": mode_of(session),
        "on_busy": session.on_busy,
        "usage": of_usage(session.usage),
        "budget": of_budget(session.budget),
        "approvals": [of_approval(each) for each in session.approvals],
        "schedules": [of_schedule(each) for each in session.schedules],
        "turn": None if (turn := context.open_turn_id) is None else {"message_id": turn},
        "waiting": [of_message(each) for each in itertools.islice(context.mail.waiting, MAX_WAITING)],
    }


def shown_status(session: Session) -> str:
    """The status of a session; `waiting` if its turn is open and the session is not in memory, so nothing runs."""
    context = context_of(session)
    if context.host is not None or context.mail.acceptances is None:
        return session.status
    return "suspended" if context.approvals is not None and context.approvals.open else "waiting"


def mode_of(session: Session) -> str | None:
    """The mode of a session; None where its agent has none."""
    try:
        return session.mode
    except UsageError:
        return None


def of_usage(usage: Usage) -> dict[str, Any]:
    """What model calls took, with that of sessions that worked for it as `total`."""
    own = _own_usage(usage)
    return {**own, "total": own if usage.children is None else _own_usage(usage.total)}


_OF_USAGE = tuple(field.name for field in attrs.fields(Usage) if field.name != "children")


def _own_usage(usage: Usage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in _OF_USAGE}


def of_budget(budget: Budget | None) -> dict[str, Any] | None:
    """What is left of a budget; None where nothing bounds it."""
    if budget is None:
        return None
    return {name: left for name, left in dict(budget.left).items() if left != math.inf}


def of_approval(approval: Approval) -> dict[str, Any]:
    """A call that waits for a person."""
    return {
        "id": approval.id,
        "session_id": approval.session_id,
        "agent": approval.agent,
        "owner": approval.owner,
        "call_id": approval.call_id,
        "tool": approval.tool_name,
        "arguments": dict(approval.arguments),
        "question": approval.question,
        "form": None if approval.form is None else dict(approval.form),
        "risk": approval.risk or None,
        "again": approval.again,
        "created_at": to_date(approval.created_at),
        "deadline": to_date(approval.deadline),
    }


def of_schedule(schedule: Schedule) -> dict[str, Any]:
    """Something that a session is told at a time."""
    return {
        "id": schedule.id,
        "description": schedule.description,
        "due": to_date(schedule.at),
        "cron": schedule.cron or None,
        "zone": schedule.zone,
        "priority": schedule.priority.name.lower(),
        "metadata": dict(schedule.metadata),
    }


def of_agent(card: AgentCard, opener: SessionOpener, known: AgentStatistics) -> dict[str, Any]:
    """An agent: what it says of itself, its modes, tools, limits, and what waits for it, as far as the caller may know."""
    running = opener.running
    turns = running.runner.turn_lifecycle
    modes = running.core.modes
    return {
        **attrs.asdict(card),
        "modes": None if modes is None else [mode.name for mode in modes],
        "tools": [
            {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
            for spec in running.core.calling.registry.specs()
        ],
        "limits": attrs.asdict(turns.options.limits or turns.limits),
        "inbox": attrs.asdict(known.inbox),
        "sessions": known.sessions,
    }


def of_rating(rating: Rated) -> dict[str, Any]:
    """What a reader thinks of an answer."""
    shown = ("message_id", "score", "comment", "expected", "by")
    return {**{name: getattr(rating, name) for name in shown}, "at": to_date(rating.at)}


# --- what is said ------------------------------------------------------------------------

MediaIds = Mapping[int, str]
"""What clients ask for pictures and files by, by the `id` of the object; empty where these are of no record."""
NO_IDS: MediaIds = MappingProxyType({})


def media_of_record(record: Record) -> list[Medium]:
    """The pictures and files of a record that a client may read, in their order."""
    if isinstance(record, Finished):
        return list(record.result.media)
    if not isinstance(record, Accepted | Said):
        return []
    found: list[Medium] = []
    for part in record.message.parts:
        found += part.media if isinstance(part, ToolResult) else [part] if isinstance(part, Medium) else []
    return found


def media_ids(number: int, record: Record) -> MediaIds:
    """What clients ask for the pictures and files of a record by: its number, and their place in it."""
    media = media_of_record(record)
    return {id(each): f"{number}-{place}" for place, each in enumerate(media)} if media else NO_IDS


def of_parts(
    parts: Sequence[Part], ids: MediaIds = NO_IDS, *, shows_foreign: bool = False
) -> list[dict[str, Any]]:
    """The parts of a message that a client may read: no thinking, no blocks of a provider's own; see `of_result`."""
    return [
        found for part in parts if (found := _of_part(part, ids, shows_foreign=shows_foreign)) is not None
    ]


def _of_part(part: Part, ids: MediaIds, *, shows_foreign: bool) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Medium):
        return of_medium(part, ids)
    if isinstance(part, ToolCall):
        return {"type": "call", **of_call(part)}
    if isinstance(part, ToolResult):
        return {"type": "result", **of_result(part, ids, shows_foreign=shows_foreign)}
    return None


def of_medium(medium: Medium, ids: MediaIds = NO_IDS) -> dict[str, Any]:
    """A picture or file by its type and size; its bytes are asked for by its `media_id`."""
    told: dict[str, Any] = {
        "type": "file" if isinstance(medium, File) else "image",
        "media_type": medium.media_type,
        "url": medium.url,
    }
    if isinstance(medium, File):
        told["name"] = medium.name
    if medium.data is not None:
        told |= {"bytes": len(medium.data), "media_id": ids.get(id(medium))}
    return told


def of_call(call: ToolCall) -> dict[str, Any]:
    """A model's wish to run a tool."""
    arguments = dict(call.arguments) if isinstance(call.arguments, Mapping) else call.arguments
    return {"id": call.id, "name": call.name, "arguments": arguments}


def of_result(
    result: ToolResult, ids: MediaIds = NO_IDS, *, most: int = MAX_CONTENT, shows_foreign: bool = False
) -> dict[str, Any]:
    """What came of a call, its words cut where they are long.

    `shows_foreign` is True for callers with the scope `journal`: they see the words of exceptions that are not ours.
    """
    content, error = result.content, result.error
    if result.raised and not shows_foreign:
        error = foreign_error(result.raised)
    return {
        "id": result.id,
        "call_id": result.call_id,
        "tool": result.tool_name,
        "status": result.status,
        "content": content[:most],
        "truncated": max(len(content), len(error or "")) > most,
        "error": None if error is None else error[:most],
        "origin": result.origin or None,
        "media": [of_medium(each, ids) for each in result.media],
    }


def foreign_error(raised: str) -> str:
    """Our words for an exception of foreign code of this class."""
    return f"the tool raised {raised}; the scope journal shows its words"


def of_said(message: Message, *, shows_foreign: bool = False) -> dict[str, Any]:
    """A message of a session's history; see `of_result`."""
    return {
        **of_message(message, shows_foreign=shows_foreign),
        "turn": message.correlation_id,
        "at": to_date(message.created_at),
    }


def of_message(message: Message, ids: MediaIds = NO_IDS, *, shows_foreign: bool = False) -> dict[str, Any]:
    """What was said from outside; see `of_result`."""
    return {
        "message_id": message.id,
        "sender": {"name": message.sender.name, "kind": message.sender.kind},
        "text": message.text,
        "parts": of_parts(message.parts, ids, shows_foreign=shows_foreign),
        "metadata": dict(message.metadata),
        "priority": message.priority.name.lower(),
        "on_busy": message.on_busy,
    }
