"""`Agent.process`: runs one turn, and returns its status, answer, tool results and usage."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Literal

import attrs
import trio

from actgent.errors import ActgentError, Suspended, ToolError
from actgent.errors.text_escaping import counted
from actgent.messages import (
    NO_USAGE,
    DataT_co,
    Delivery,
    Event,
    Failure,
    Message,
    Reply,
    ToolResult,
    ToolStatus,
    Usage,
)
from actgent.protocols.plan import Plan, plan_of
from actgent.protocols.protocol_interface import Protocol
from actgent.protocols.tool_call_summary import failures_of_tools, status_of_tools
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.sessions.pending.turn_future import reply_of_event
from actgent.sessions.pending.turn_output_stream import mark_reported
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.dict_serialization import Serializable

from .runs.runs_on_other_cluster_nodes import SessionView, view_session
from .session import Session

Status = Literal["success", "partial", "error", "suspended"]
_BY_SHORTFALL: Mapping[str, Status] = {"error": "error", "suspended": "suspended"}


@attrs.frozen(kw_only=True, repr=False)
class ExecutedCall(FieldRepr):
    """One tool call of a turn and its result."""

    call_id: str
    """The `ToolCall.id` of the call."""
    tool_name: str
    """Name of the tool, as the model wrote it."""
    arguments: Mapping[str, Any] | str | None
    """Arguments as the model wrote them; None if the history does not have the call.

    A str is text that is not a JSON object; such a call did not run.
    """
    status: ToolStatus
    """Status of the tool result. Every status except `success` is a failure."""
    content: str
    """Returned value as text; empty if the call failed."""
    error: str | None
    """Error of the call; None if it succeeded."""

    @property
    def name(self) -> str:
        """Name of the tool."""
        return self.tool_name


@attrs.frozen(kw_only=True, repr=False)
class ProcessResult(Serializable, Generic[DataT_co]):
    """Outcome of `Agent.process`, also of a failed or suspended turn."""

    status: Status
    """`success`; `partial`: some tool calls failed, or the answer is incomplete; `error`: there is no answer, or all tool calls failed; `suspended`: the turn waits for an approval or another external event."""
    reply: Reply[DataT_co] | None = None
    """Last reply of the turn; None if the turn has no reply."""
    error: Exception | None = None
    """Error of the status `error` or `suspended`; otherwise None."""
    plan: Plan | None = None
    """Plan with the state of its items; None if the agent made no plan."""
    tool_results: tuple[ExecutedCall, ...] = ()
    """Tool calls of the turn with their results, in order."""
    session_id: str = ""
    """Id of the session. A session that `process` created is closed, unless the turn is suspended."""
    owner: str = ""
    """Name of the user that owns the session."""
    turn_id: str = ""
    """Id of the user's message, and correlation id of all messages of the turn."""
    model_calls: int = 0
    """Number of answers that models gave in the turn. Failed model calls are not counted."""
    tool_calls: int = 0
    """Number of tool calls with a result."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the turn."""
    seconds: float = 0.0
    """Duration of the request in seconds."""

    def __str__(self) -> str:
        return self.text

    @property
    def data(self) -> DataT_co | None:
        """Value of the type in `output=`; None if the agent has no output type, or the turn has no answer."""
        return None if self.reply is None else self.reply.data

    @property
    def text(self) -> str:
        """Text of the reply, or of the error if the turn has no reply."""
        return str(self.reply if self.reply is not None else self.error)


async def process_turn(
    opener: SessionOpener,
    session: Session,
    protocol: Protocol,
    stream: Callable[..., AbstractAsyncContextManager[trio.abc.ReceiveChannel[Any]]],
    options: Mapping[str, Any],
) -> ProcessResult:
    """Send one message, wait for the end of its turn, and return the result of `Agent.process`.

    `stream` is the method `Agent.stream`, bound to the content and the session. `options` are its other arguments. If the
    session moves to another process, the result is read there.
    """
    started = trio.current_time()
    before = await view_session(opener, session)
    outcome = await _read_stream(stream(**options))
    if (
        outcome.failure is not None and outcome.failure.kind == "moved"
    ):  # the node that forwarded the message has checked its options
        repeated = {"metadata": options.get("metadata"), "message_id": outcome.failure.message_id}
        outcome = await _read_stream(stream(**repeated))
    after = await view_session(opener, session)
    failure = _suspended_failure(after) if after.status == "suspended" else outcome.failure
    reply = (
        outcome.reply if failure is not None or outcome.reply is not None else reply_of_event(outcome.event)
    )
    turn = _turn_of(after.history[len(before.history) :], reply, failure)
    status = _status(protocol, turn, reply, failure)
    return ProcessResult(
        status=status,
        reply=reply,
        error=_error(status, turn, reply, failure),
        plan=plan_of(after.state),
        tool_results=_executions(turn),
        session_id=session.id,
        owner=session.owner.name,
        turn_id=_turn_id(turn, failure),
        model_calls=sum(message.sender.kind == "assistant" for message in turn),
        tool_calls=outcome.tool_calls,
        usage=reply.usage if reply is not None else after.usage - before.usage,
        seconds=trio.current_time() - started,
    )


# --- the stream of the request -----------------------------------------------------------


@attrs.define(repr=False)
class _StreamOutcome(FieldRepr):
    """Deliveries of a turn's stream from which `ProcessResult` is built."""

    reply: Reply | None = None
    """Last reply of the turn; None if the stream had none."""
    event: Event | None = None
    """Last event of the turn; None if the stream had none."""
    failure: Failure | None = None
    """Failure that ended the turn; None if it did not fail."""
    tool_calls: int = 0
    """Number of tool results received from the stream."""

    def add(self, delivery: Delivery) -> None:
        match delivery:
            case Reply():
                self.reply = delivery
            case Event():
                self.event = delivery
            case ToolResult():
                self.tool_calls += 1
            case Failure() if delivery.kind != "handler":
                self.failure = delivery


async def _read_stream(stream: AbstractAsyncContextManager[trio.abc.ReceiveChannel[Any]]) -> _StreamOutcome:
    outcome = _StreamOutcome()
    async with stream as deliveries:
        mark_reported(deliveries)
        async for delivery in deliveries:
            outcome.add(delivery)
    return outcome


def _suspended_failure(session: SessionView) -> Failure:
    """Return the failure with which `process` reports the suspended turn of a session."""
    waiting = session.approvals
    error = Suspended([each.id for each in waiting], [each.tool_name for each in waiting])
    message = next(each for each in reversed(session.history) if each.sender.kind == "user")
    return Failure(kind="suspended", error=error, message_id=message.id)


# --- the record of the turn --------------------------------------------------------------


def _turn_of(new: Sequence[Message], reply: Reply | None, failure: Failure | None) -> Sequence[Message]:
    """Return the messages in `new` that belong to the turn of the reply or the failure.

    `new` are the messages that were added to the history during the call. Without a reply and a failure, the result is empty.
    """
    turn_id = ""
    if failure is not None:
        turn_id = failure.message_id
    elif reply is not None:
        answer_id = reply.id.partition("/")[0]
        turn_id = next((each.correlation_id or "" for each in new if each.id in (reply.id, answer_id)), "")
    return [message for message in new if turn_id and message.correlation_id == turn_id]


def _turn_id(turn: Sequence[Message], failure: Failure | None) -> str:
    if failure is not None:
        return failure.message_id
    return (turn[0].correlation_id or "") if turn else ""


def _executions(turn: Sequence[Message]) -> tuple[ExecutedCall, ...]:
    calls = {call.id: call for message in turn for call in (*message.tool_calls, *message.text_calls)}
    return tuple(
        ExecutedCall(
            call_id=result.call_id,
            tool_name=result.tool_name,
            arguments=None if (call := calls.get(result.call_id)) is None else call.arguments,
            status=result.status,
            content=result.content,
            error=result.error,
        )
        for message in turn
        for result in message.tool_results
    )


def _status(
    protocol: Protocol, turn: Sequence[Message], reply: Reply | None, failure: Failure | None
) -> Status:
    if failure is not None:
        return "suspended" if isinstance(failure.error, Suspended) else "error"
    if reply is None:
        return "error"
    if (shortfall := protocol.shortfall(reply.message_type)) is not None:
        return _BY_SHORTFALL.get(shortfall, "partial")
    return status_of_tools(turn)


def _error(
    status: Status, turn: Sequence[Message], reply: Reply | None, failure: Failure | None
) -> Exception | None:
    if failure is not None:
        return failure.error
    if status != "error":
        return None
    failed = failures_of_tools(turn)
    if not failed:
        return ActgentError("" if reply is None else reply.text)
    causes = "; ".join(dict.fromkeys(f"{each.tool_name}: {each.error or each.status}" for each in failed))
    return ToolError(f"all of {counted(len(failed), 'tool call')} failed: {causes}")
