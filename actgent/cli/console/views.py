"""How what comes of a message is shown: to a person, or as a JSON object a line."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.cli.terminal import ConversationView, Terminal
from actgent.messages import CallProgress, Delivery, Event, Failure, Reply, Route, Token, ToolResult


class DeliveryView(Protocol):
    """Shows the deliveries of one session."""

    def show(self, delivery: Delivery, session: Session) -> None:
        """Show the next one."""


class TextView:
    """For people: the growing answer, tool calls and events; failures on standard error."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._shown = ConversationView(terminal)

    def show(self, delivery: Delivery, session: Session) -> None:
        shown = self._shown
        match delivery:
            case Token():
                shown.token(delivery.text, (delivery.reply_id, delivery.attempt))
            case Reply():
                shown.reply(delivery.text)
            case ToolResult():
                shown.tool(delivery, arguments_of(session, delivery.call_id))
            case CallProgress():
                shown.aside(f"{delivery.tool_name}: {_how_far(delivery)}")
            case Event():
                shown.aside(f"event: {delivery.name} {delivery.data}")
            case Route():
                shown.aside(f"route: {delivery.action} {delivery.data}")
            case Approval():
                shown.break_off()
            case Failure():
                shown.break_off()
                if delivery.kind == "interrupted" and self._terminal.is_live:
                    shown.aside("stopped")
                else:
                    self._terminal.complain(delivery.error)


class JsonView:
    """For programs: one object a line with `type`; pieces of growing answers are left out."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def show(self, delivery: Delivery, session: Session) -> None:
        if (found := _as_object(delivery, session)) is not None:
            self._terminal.raw(json.dumps(found, ensure_ascii=False, default=str))


def _as_object(delivery: Delivery, session: Session) -> dict[str, Any] | None:
    known: dict[str, Any]
    match delivery:
        case Token():
            return None
        case Reply(text=text, data=data, usage=usage):
            known = {"type": "reply", "text": text, "data": data, "usage": attrs.asdict(usage)}
        case ToolResult(tool_name=name, status=status, call_id=call_id):
            given = arguments_of(session, call_id)
            known = {"type": "tool_result", "tool": name, "arguments": given, "status": status}
            known["content"] = delivery.text
        case CallProgress(tool_name=name, call_id=call_id, done=done, total=total, text=text):
            known = {"type": "tool_progress", "tool": name, "call": call_id}
            known |= {"done": done, "total": total, "text": text}
        case Event(name=name, data=data):
            known = {"type": "event", "name": name, "data": data}
        case Route(action=action, data=data):
            known = {"type": "route", "action": action, "data": data}
        case Approval(tool_name=name, arguments=arguments, question=question):
            known = {"type": "approval", "tool": name, "arguments": arguments, "question": question}
        case Failure(kind=kind, error=error):
            known = {"type": "failure", "kind": kind, "error": str(error)}
    return {"session": session.id, **known}


def _how_far(progress: CallProgress) -> str:
    share = "" if progress.done is None else f"{progress.done:g}"
    if share and progress.total is not None:
        share += f" of {progress.total:g}"
    return " ".join(filter(None, (share, progress.text)))


def arguments_of(session: Session, call_id: str) -> Mapping[str, Any] | str:
    """Return the arguments of a tool call: the latest calls stand at the end of the history."""
    for message in reversed(session.history):
        for call in message.tool_calls:
            if call.id == call_id:
                return call.arguments
    return ""
