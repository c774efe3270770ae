"""Conversion of sessions, agents, messages and other values to the JSON of the gateway's responses."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TypedDict, TypeVar, cast

import attrs

from actgent.agents.builtin_agents import RouterAgent
from actgent.agents.session import Session, context_of
from actgent.agents.teams import AgentTool, HandoffTool
from actgent.approvals import Approval
from actgent.errors import UsageError
from actgent.information_flow_labels import Label, label_of
from actgent.journal.journal_interface import SessionSummary
from actgent.journal.record_types import (
    AgentMessageRecord,
    CallFinishedRecord,
    MessageAcceptedRecord,
    RatingRecord,
    Record,
)
from actgent.limits_and_schedules.budget import Budget
from actgent.limits_and_schedules.schedule import Schedule
from actgent.messages import File, Medium, Message, Part, Text, ToolCall, ToolResult, Usage
from actgent.runtime.agent_directory import AgentCard, StartedAgent
from actgent.runtime.approval_decisions import sources_of_approvals
from actgent.runtime.introspection import AgentStatistics
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.tools.tool_interface import Tool
from actgent.web import json_response_types

T = TypeVar("T")
MAX_WAITING = 100
"""Maximum number of queued messages shown per session."""
MAX_CONTENT_CHARACTERS = 4000
"""Maximum number of characters of a tool's result or error in JSON; longer texts are truncated."""


@lru_cache(maxsize=256)
def to_date(seconds: float) -> str | None:
    """Convert a Unix time in seconds to a date text (RFC 3339). Return None if the time is 0, negative or infinite."""
    if not 0 < seconds < math.inf:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_document(value: T) -> T:
    """Return the fields of an attrs object as a dict, for JSON.

    The annotated type is the object's class, because the JSON document has the same fields.
    """
    return cast("T", attrs.asdict(value))  # type: ignore[arg-type]  # attrs classes have no common base


def of_head(head: SessionSummary) -> json_response_types.SessionSummaryDocument:
    """Return the JSON of a session summary: the fields that the journal has without loading the session."""
    return {
        "id": head.session_id,
        "agent": head.agent,
        "owner": head.owner,
        "status": head.state,
        "parent": None if head.parent is None else {"agent": head.parent.agent, "id": head.parent.session_id},
        "created_at": to_date(head.created_at),
        "updated_at": to_date(head.updated_at),
        "records": head.records,
        "unfinished": head.unfinished,
        "tags": head.tags,
        "metadata": dict(head.metadata),
    }


def of_session(
    head: SessionSummary, session: Session | None, children: Sequence[SessionSummary]
) -> json_response_types.SessionDocument:
    """Return the JSON of a session with its child sessions.

    Args:
        head: Summary of the session.
        session: The open session; None if it is closed or its agent does not run. The JSON then has only the summary's fields.
        children: Summaries of the session's child sessions.
    """
    below: list[json_response_types.ChildSession] = [
        {"agent": child.agent, "id": child.session_id, "status": child.state} for child in children
    ]
    if session is None:
        return cast("json_response_types.SessionDocument", {**of_head(head), "children": below})
    context = context_of(session)
    label, withheld = context.conversation.label, sources_of_approvals(context)
    return {
        **of_head(head),
        "children": below,
        "status": status_for_clients(session),
        "description": session.description,
        "sources": sorted(label.sources),
        **_of_readers(label),
        **_withheld_and_shown_labels(withheld, context.shown_sources),
        "mode": mode_of(session),
        "on_busy": session.on_busy,
        "usage": of_usage(session.usage),
        "budget": of_budget(session.budget),
        "approvals": [of_approval(each) for each in session.approvals],
        "schedules": [of_schedule(each) for each in session.schedules],
        "turn": None if (turn := context.open_turn_id) is None else {"message_id": turn},
        "waiting": [of_message(each) for each in itertools.islice(context.waiting_messages, MAX_WAITING)],
    }


def status_for_clients(session: Session) -> json_response_types.SessionStatus:
    """Return the status of a session for clients: `waiting` if its turn is unfinished but not running in this process."""
    context = context_of(session)
    if context.host is not None or context.acceptances is None:
        return session.status
    return "suspended" if context.approvals is not None and context.approvals.open else "waiting"


def mode_of(session: Session) -> str | None:
    """Return the name of a session's mode; None if the agent of the session has no modes."""
    try:
        return session.mode
    except UsageError:
        return None


def of_usage(usage: Usage) -> json_response_types.UsageDocument:
    """Return the JSON of a usage: the usage of the session itself, and in `total` the sum with its child sessions."""
    own = _own_usage(usage)
    return {**own, "total": own if usage.children is None else _own_usage(usage.total)}


_OF_USAGE = tuple(field.name for field in attrs.fields(Usage) if field.name != "children")


def _own_usage(usage: Usage) -> json_response_types.OwnUsage:
    return cast("json_response_types.OwnUsage", {name: getattr(usage, name) for name in _OF_USAGE})


def of_budget(budget: Budget | None) -> json_response_types.BudgetDocument | None:
    """Return the remaining amounts of a budget as JSON. Unlimited amounts are omitted. None without a budget."""
    if budget is None:
        return None
    return {name: left for name, left in budget.left.items() if left != math.inf}


def of_approval(approval: Approval) -> json_response_types.ApprovalDocument:
    """Return the JSON of an approval: a tool call that waits for an approver's decision."""
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
        **of_labels(approval),
    }


def of_labels(approval: Approval) -> json_response_types.SinkLabels:
    """Return the fields `labels` and `readers` of an approval: untrusted sources and permitted readers by checked argument.

    A field without entries is left out.
    """
    labels = approval.labels
    fields: json_response_types.SinkLabels = {}
    if labels:
        fields["labels"] = {name: sorted(label.sources) for name, label in labels.items()}
    if readers := {name: sorted(each.readers) for name, each in labels.items() if each.readers is not None}:
        fields["readers"] = readers
    return fields


def of_label(label: Label) -> json_response_types.LabelFields:
    """Return a label as the fields `sources` (untrusted sources) and `readers` (permitted readers).

    `sources` is left out if no source is untrusted, `readers` if all owners may read.
    """
    fields = _of_readers(label)
    if label.sources:
        fields["sources"] = sorted(label.sources)
    return fields


def _of_readers(label: Label) -> json_response_types.LabelFields:
    return {} if label.readers is None else {"readers": sorted(label.readers)}


class _HiddenLabels(TypedDict, total=False):
    withheld: json_response_types.LabelFields
    shown: json_response_types.LabelFields


def _withheld_and_shown_labels(withheld: str, shown: str) -> _HiddenLabels:
    """Return the JSON fields `withheld` and `shown` of a session. A field is omitted if its label has no untrusted source.

    Args:
        withheld: Stored label of the values that isolation hides from the model.
        shown: Stored label of the parts of such values that the model has read.
    """
    labels: _HiddenLabels = {}
    if withheld:
        labels["withheld"] = of_label(label_of(withheld))
    if shown:
        labels["shown"] = of_label(label_of(shown))
    return labels


def of_caller_call(approval: Approval) -> json_response_types.CallerCall:
    """Return the JSON of a tool call that the API client executes itself."""
    return {
        "id": approval.id,
        "call_id": approval.call_id,
        "tool": approval.tool_name,
        "arguments": dict(approval.arguments),
        "deadline": to_date(approval.deadline),
    }


def of_schedule(schedule: Schedule) -> json_response_types.ScheduleDocument:
    """Return the JSON of a schedule, with its input, due date, recurrence and priority."""
    return {
        "id": schedule.id,
        "input": schedule.description,
        "due": to_date(schedule.at),
        "cron": schedule.cron or None,
        "zone": schedule.zone,
        "priority": schedule.priority.name.lower(),
        "metadata": dict(schedule.metadata),
    }


def of_agent(
    card: AgentCard, agent: StartedAgent | None, opener: SessionOpener, statistics: AgentStatistics
) -> json_response_types.AgentDocument:
    """Return the JSON of an agent: its card, modes, tools, links to other agents, and limits.

    Args:
        card: The agent's description of itself.
        agent: The agent object; None if it is not known.
        opener: Object that opens the running agent's sessions.
        statistics: Statistics of the agent that the caller may see.
    """
    running = opener.running
    turns = running.runner.turn_lifecycle
    modes = running.core.modes
    return {
        "name": card.name,
        "role": card.role,
        "goal": card.goal,
        "capabilities": card.capabilities,
        "modes": None if modes is None else [mode.name for mode in modes],
        "models": card.models,
        "tools": [
            {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
            for spec in running.core.calling.registry.specs
        ],
        "links": list(_links_of(agent, running.core.calling.registry)),
        "limits": as_document(turns.options.limits or turns.limits),
        "inbox": as_document(statistics.inbox),
        "sessions": statistics.sessions,
        "has_long_term_memory": agent is not None and agent.long_term_memory is not None,
    }


def _links_of(agent: StartedAgent | None, tools: Iterable[Tool]) -> Iterator[json_response_types.AgentLink]:
    """Yield the agents that an agent calls as tools, hands conversations over to, routes to, or runs as steps.

    `kind` is `tool`, `handoff`, `route` or `step`, and `name` the name of the tool, action or step.
    """
    from actgent.agents.pipelines.run_steps_tool import RunSteps  # noqa: PLC0415 - few programs have pipelines

    for tool in tools:
        if isinstance(tool, AgentTool | HandoffTool):
            is_tool = isinstance(tool, AgentTool)
            yield {"agent": tool.agent.name, "kind": "tool" if is_tool else "handoff", "name": tool.name}
        elif isinstance(tool, RunSteps):
            for step, name in tool.agents.items():
                yield {"agent": name, "kind": "step", "name": step}
    if isinstance(agent, RouterAgent):
        for action, target in agent.routes.items():
            yield {"agent": target.name, "kind": "route", "name": action}


def of_rating(rating: RatingRecord) -> json_response_types.Feedback:
    """Return the JSON of a rating."""
    return {
        "message_id": rating.message_id,
        "score": rating.score,
        "comment": rating.comment,
        "expected": rating.expected,
        "by": rating.by,
        "at": to_date(rating.at),
    }


# --- messages ----------------------------------------------------------------------------

MediaIds = Mapping[int, str]
"""The `media_id` of pictures and files, by Python `id()` of the object; empty if they do not belong to a record."""
NO_IDS: MediaIds = MappingProxyType({})


def media_of_record(record: Record) -> list[Medium]:
    """Return the pictures and files in a journal record that clients may download, in order."""
    if isinstance(record, CallFinishedRecord):
        return list(record.result.media)
    if not isinstance(record, MessageAcceptedRecord | AgentMessageRecord):
        return []
    found: list[Medium] = []
    for part in record.message.parts:
        found += part.media if isinstance(part, ToolResult) else [part] if isinstance(part, Medium) else []
    return found


def media_ids(number: int, record: Record) -> MediaIds:
    """Return the `media_id` of each picture and file in a record: the record number and the index in the record."""
    media = media_of_record(record)
    return {id(each): f"{number}-{place}" for place, each in enumerate(media)} if media else NO_IDS


def of_parts(
    parts: Sequence[Part], ids: MediaIds = NO_IDS, *, shows_exception_texts: bool = False
) -> list[json_response_types.Part]:
    """Return the JSON of a message's parts, without thinking and provider-specific blocks.

    Args:
        parts: Parts of the message.
        ids: The `media_id` of each picture and file.
        shows_exception_texts: True to include messages of exceptions from user code or libraries.
    """
    return [
        found
        for part in parts
        if (found := _of_part(part, ids, shows_exception_texts=shows_exception_texts)) is not None
    ]


def _of_part(part: Part, ids: MediaIds, *, shows_exception_texts: bool) -> json_response_types.Part | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Medium):
        return of_medium(part, ids)
    if isinstance(part, ToolCall):
        return {"type": "call", **of_call(part)}
    if isinstance(part, ToolResult):
        return {"type": "result", **of_result(part, ids, shows_exception_texts=shows_exception_texts)}
    return None


def of_medium(
    medium: Medium, ids: MediaIds = NO_IDS
) -> "json_response_types.ImagePart | json_response_types.FilePart":
    """Return the JSON of a picture or file: its type, its size, and the `media_id` for the download of its bytes."""
    view: json_response_types.ImagePart | json_response_types.FilePart
    if isinstance(medium, File):
        view = {"type": "file", "media_type": medium.media_type, "url": medium.url, "name": medium.name}
    else:
        view = {"type": "image", "media_type": medium.media_type, "url": medium.url}
    if medium.data is not None:
        view["bytes"], view["media_id"] = len(medium.data), ids.get(id(medium))
    return view


def of_call(call: ToolCall) -> json_response_types.ToolCallDocument:
    """Return the JSON of a tool call. Arguments that are not valid JSON stay a text."""
    arguments = dict(call.arguments) if isinstance(call.arguments, Mapping) else call.arguments
    return {"id": call.id, "name": call.name, "arguments": arguments}


def of_result(
    result: ToolResult,
    ids: MediaIds = NO_IDS,
    *,
    max_chars: int = MAX_CONTENT_CHARACTERS,
    shows_exception_texts: bool = False,
) -> json_response_types.ToolResultDocument:
    """Return the JSON of a tool result.

    Args:
        result: The tool result.
        ids: The `media_id` of each of its pictures and files.
        max_chars: Maximum number of characters of the content and of the error; longer texts are truncated.
        shows_exception_texts: True to include messages of exceptions from user code or libraries (scope `journal`).
    """
    content, error = result.content, result.error
    if result.raised and not shows_exception_texts:
        error = hidden_error_text(result.raised)
    return {
        "id": result.id,
        "call_id": result.call_id,
        "tool": result.tool_name,
        "status": result.status,
        "content": content[:max_chars],
        "truncated": max(len(content), len(error or "")) > max_chars,
        "error": None if error is None else error[:max_chars],
        "origin": result.origin or None,
        "media": [of_medium(each, ids) for each in result.media],
        "started_at": to_date(result.started_at),
        "ended_at": to_date(result.ended_at),
        **of_label(result.label),
    }


def hidden_error_text(raised: str) -> str:
    """Return a text with the class name `raised` of an exception but without its message, which may contain secrets."""
    return f"the tool raised {raised}; the scope journal shows its words"


def message_to_json(
    message: Message, *, shows_exception_texts: bool = False
) -> json_response_types.HistoryMessage:
    """Return the JSON of a history message, with its turn and time.

    `shows_exception_texts=True` includes messages of exceptions from user code or libraries.
    """
    return {
        **of_message(message, shows_exception_texts=shows_exception_texts),
        "turn": message.correlation_id,
        "at": to_date(message.created_at),
    }


def of_message(
    message: Message, ids: MediaIds = NO_IDS, *, shows_exception_texts: bool = False
) -> json_response_types.MessageDocument:
    """Return the JSON of a message. `ids` and `shows_exception_texts` are those of `of_parts`."""
    return {
        "message_id": message.id,
        "sender": {"name": message.sender.name, "kind": message.sender.kind},
        "text": message.text,
        "parts": of_parts(message.parts, ids, shows_exception_texts=shows_exception_texts),
        "metadata": dict(message.metadata),
        "priority": message.priority.name.lower(),
        "on_busy": message.on_busy,
        **of_label(message.label),
    }
