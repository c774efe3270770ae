"""Views of deliveries: as text, or as one JSON object per line."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.cli.terminal_io import ConversationView, Terminal
from actgent.messages import CallProgress, Delivery, Event, Failure, Reply, Route, Token, ToolResult


class DeliveryView(Protocol):
    """Interface of a view that prints the deliveries of one session."""

    def show(self, delivery: Delivery, session: Session) -> None:
        """Show one delivery of a session to the user."""


class TextView:
    """View that prints the streamed answer, tool calls and events as text, and failures on standard error."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._conversation = ConversationView(terminal)

    def show(self, delivery: Delivery, session: Session) -> None:
        conversation = self._conversation
        match delivery:
            case Token():
                conversation.token(delivery.text, (delivery.reply_id, delivery.attempt))
            case Reply():
                conversation.reply(delivery.text)
            case ToolResult():
                conversation.tool(delivery, arguments_of(session, delivery.call_id))
            case CallProgress():
                conversation.aside(f"{delivery.tool_name}: {_format_progress(delivery)}")
            case Event():
                conversation.aside(f"event: {delivery.name} {delivery.data}")
            case Route():
                conversation.aside(f"route: {delivery.action} {delivery.data}")
            case Approval():
                conversation.end_partial_line()
            case Failure():
                conversation.end_partial_line()
                if delivery.kind == "interrupted" and self._terminal.is_live:
                    conversation.aside("stopped")
                else:
                    self._terminal.report_error(delivery.error)


class JsonView:
    """View that prints deliveries as JSON lines with a member `type`, without the tokens of partial answers."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def show(self, delivery: Delivery, session: Session) -> None:
        if (found := _to_object(delivery, session)) is not None:
            self._terminal.json_line(json.dumps(found, ensure_ascii=False, default=str))


def _to_object(delivery: Delivery, session: Session) -> dict[str, Any] | None:
    """Convert a delivery to a JSON object for `--json`; None for a token, which is not printed."""
    row: dict[str, Any]
    match delivery:
        case Token():
            return None
        case Reply(text=text, data=data, usage=usage):
            row = {"type": "reply", "text": text, "data": data, "usage": attrs.asdict(usage)}
        case ToolResult(tool_name=name, status=status, call_id=call_id):
            arguments = arguments_of(session, call_id)
            row = {"type": "tool_result", "tool": name, "arguments": arguments, "status": status}
            row["content"] = delivery.text
        case CallProgress(tool_name=name, call_id=call_id, done=done, total=total, text=text):
            row = {"type": "tool_progress", "tool": name, "call": call_id}
            row |= {"done": done, "total": total, "text": text}
        case Event(name=name, data=data):
            row = {"type": "event", "name": name, "data": data}
        case Route(action=action, data=data):
            row = {"type": "route", "action": action, "data": data}
        case Approval(tool_name=name, arguments=arguments, question=question):
            row = {"type": "approval", "tool": name, "arguments": arguments, "question": question}
        case Failure(kind=kind, error=error):
            row = {"type": "failure", "kind": kind, "error": str(error)}
    return {"session": session.id, **row}


def _format_progress(progress: CallProgress) -> str:
    """Return tool progress as text, e.g. `3 of 10 downloading`."""
    share = "" if progress.done is None else f"{progress.done:g}"
    if share and progress.total is not None:
        share += f" of {progress.total:g}"
    return " ".join(filter(None, (share, progress.text)))


def arguments_of(session: Session, call_id: str) -> Mapping[str, Any] | str:
    """Return the arguments of a tool call from the session's history; empty if the history does not have the call.

    Arguments that are not valid JSON are returned as text.
    """
    for message in reversed(session.history):
        for call in message.tool_calls:
            if call.id == call_id:
                return call.arguments
    return ""
