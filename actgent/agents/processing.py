"""One request to an agent, and what it came to: the answer, its status and all that the turn did."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Literal

import attrs
import trio

from actgent.errors import ActgentError, Suspended, ToolError
from actgent.errors.printable import counted
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
from actgent.protocols.base import Protocol
from actgent.protocols.plan import Plan, plan_of
from actgent.protocols.tool_status import failures_of_tools, status_of_tools
from actgent.runtime.sessions.opener import SessionOpener
from actgent.sessions.waiting.turn_reader import heed
from actgent.support.serializable import Serializable

from .runs import SessionView, view_session
from .session import Session

Status = Literal["success", "partial", "error", "suspended"]
_BY_SHORTFALL: Mapping[str, Status] = {"error": "error", "suspended": "suspended"}


@attrs.frozen(kw_only=True)
class ExecutedCall:
    """One tool call of a turn and its result."""

    call_id: str
    """The `ToolCall.id` of the call."""
    tool_name: str
    """The name of the tool, as the model gave it."""
    arguments: Mapping[str, Any] | str | None
    """As the model gave them; text that is no JSON object never ran. None if the call is not in the record."""
    status: ToolStatus
    """See `ToolResult.status`; all but `success` mean that the call failed."""
    content: str
    """What the tool returned, as text; empty if the call failed."""
    error: str | None
    """Why the call failed; None if it had success."""

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.tool_name


@attrs.frozen(kw_only=True)
class ProcessResult(Serializable, Generic[DataT_co]):
    """Outcome of `Agent.process`, also of a failed or suspended turn."""

    status: Status
    """`success`; `partial`: some tool calls failed, or something was left out; `error`: there is no answer, or all tool
    calls failed; `suspended`: the turn waits for approvals or something else from outside."""
    reply: Reply[DataT_co] | None = None
    """The last reply of the turn; None if it has none."""
    error: Exception | None = None
    """The reason for the status `error` or `suspended`; otherwise None."""
    plan: Plan | None = None
    """The plan with the state of its items; None if the agent made no plan."""
    tool_results: tuple[ExecutedCall, ...] = ()
    """All tool calls of the turn with their results, in order."""
    session_id: str = ""
    """The session of the request. A session that `process` opened is closed by now, unless it is suspended."""
    owner: str = ""
    """The name of the owner of the session."""
    turn_id: str = ""
    """The id of the user's message, and the correlation id of all that it led to."""
    model_calls: int = 0
    """Number of answers that models gave in the turn. Failed model calls are not counted."""
    tool_calls: int = 0
    """Number of tool calls with a result."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the turn."""
    seconds: float = 0.0
    """The duration of the request in seconds, by trio's clock."""

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
    """Run one turn, and gather its outcome.

    `stream` is `Agent.stream` with the content and the session of the request; `options` are its further arguments.
    """
    started = trio.current_time()
    before = await view_session(opener, session)
    heard = await _hear(stream(**options))
    if heard.failure is not None and heard.failure.kind == "moved":  # the message moved with its options
        again = {"metadata": options.get("metadata"), "message_id": heard.failure.message_id}
        heard = await _hear(stream(**again))
    after = await view_session(opener, session)
    failure = _suspended(after) if after.status == "suspended" else heard.failure
    reply = heard.reply if failure is not None or heard.reply is not None else _reply_of(heard.event)
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
        tool_calls=heard.tool_calls,
        usage=reply.usage if reply is not None else after.usage - before.usage,
        seconds=trio.current_time() - started,
    )


# --- the stream of the request -----------------------------------------------------------


@attrs.define
class _Heard:
    """What the stream of a request delivered."""

    reply: Reply | None = None
    """The last reply."""
    event: Event | None = None
    """The last event."""
    failure: Failure | None = None
    """The failure that ended the turn."""
    tool_calls: int = 0
    """The number of tool results."""

    def take(self, delivery: Delivery) -> None:
        match delivery:
            case Reply():
                self.reply = delivery
            case Event():
                self.event = delivery
            case ToolResult():
                self.tool_calls += 1
            case Failure() if delivery.kind != "handler":
                self.failure = delivery


async def _hear(stream: AbstractAsyncContextManager[trio.abc.ReceiveChannel[Any]]) -> _Heard:
    heard = _Heard()
    async with stream as deliveries:
        heed(deliveries)
        async for delivery in deliveries:
            heard.take(delivery)
    return heard


def _reply_of(event: Event | None) -> Reply:
    """Return the reply of a turn that said nothing: as in `Agent.run`, its last event counts."""
    if event is None:
        return Reply(text="")
    return Reply(id=event.id, text="", data=event.data, message_type=event.name)


def _suspended(session: SessionView) -> Failure:
    """Return the failure of a turn that waits for approvals."""
    waiting = session.approvals
    error = Suspended([each.id for each in waiting], [each.tool_name for each in waiting])
    message = next(each for each in reversed(session.history) if each.sender.kind == "user")
    return Failure(kind="suspended", error=error, message_id=message.id)


# --- the record of the turn --------------------------------------------------------------


def _turn_of(new: Sequence[Message], reply: Reply | None, failure: Failure | None) -> Sequence[Message]:
    """Return the messages that the user's message led to, in order."""
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
