"""`AgentAnswer`, the growing state of a run that `StepsAgent.stream_state` yields."""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal

import attrs
import trio

from actgent.messages import NO_USAGE, DataT_co, Failure, Reply, ToolCall, Usage
from actgent.support.dict_serialization import Serializable

from .stream_events import (
    FinalEvent,
    PlanEvent,
    StepEvent,
    StepsEvent,
    ToolExecutionEvent,
    ToolProgress,
    ToolResultsEvent,
)

StepType = Literal["plan", "execution", "final", "unknown"]


@attrs.define
class ToolExecution(Serializable):
    """A tool call of a step, with its status and result."""

    type: ClassVar[str] = "tool_execution_state"
    """Value of `type` in the JSON form. The `type` of the event is `tool_execution`."""
    tool_id: str
    """Id of the tool call."""
    tool_name: str
    """Name of the called tool."""
    parameters: Mapping[str, Any] | str = attrs.field(factory=dict)
    """Arguments of the call. A str is text that is not a JSON object; such a call is rejected."""
    status: ToolProgress | Literal["pending"] = "pending"
    """`pending` until the call starts."""
    result: str | None = None
    """Returned value as text; None if the call has not returned or returned an empty text."""
    error: str | None = None
    """Error of the call; None if it did not fail."""


@attrs.define
class StepState(Serializable):
    """A step of the run: one model call and its tool calls."""

    step_id: str
    """Id of the model's message; the events of the step have the same id."""
    step_number: int
    """Number of the step in the run, from 1."""
    step_type: StepType = "unknown"
    """Kind of the answer; `unknown` until the answer shows it."""
    plan: str = ""
    """Text of the plan; empty if the answer is not a plan."""
    thought: str = ""
    """Reasoning of the model; may be empty."""
    tool_executions: list[ToolExecution] = attrs.field(factory=list)
    """Tool calls of the step, in order."""
    answer: str = ""
    """Final answer; empty if this is not the last step."""
    is_complete: bool = False
    """True if the answer is whole and all tool calls of the step have ended."""
    error: str | None = None
    """Error that ended the run in this step; None if it did not fail here."""

    def apply(self, event: StepsEvent) -> bool:
        """Update the step from a stream event. Return False if events of this class do not change a step."""
        match event:
            case PlanEvent():
                self.plan = event.plan
                self._become("plan", complete=event.complete)
            case StepEvent():
                self.thought = event.thought
                self.tool_executions = [self._execution(call) for call in event.calls]
                self._become("execution", complete=False)
            case ToolExecutionEvent():
                self._progress(event)
            case ToolResultsEvent():
                self.is_complete = True
            case FinalEvent():
                self.thought, self.answer = event.thought, event.text
                self._become("final", complete=event.complete)
            case _:
                return False
        return True

    def _become(self, kind: StepType, *, complete: bool) -> None:
        self.step_type, self.is_complete = kind, complete

    def _execution(self, call: ToolCall) -> ToolExecution:
        """Return the execution of a tool call, updated with the newest arguments; a new execution if none was created yet."""
        execution = self._find(call.id) or ToolExecution(call.id, call.name)
        execution.tool_name, execution.parameters = call.name, call.arguments
        return execution

    def _progress(self, event: ToolExecutionEvent) -> None:
        execution = self._find(event.tool_call_id)
        if execution is None:
            execution = ToolExecution(event.tool_call_id, event.tool_name)
            self.tool_executions.append(execution)
        execution.status = event.status
        if event.result is not None:
            execution.result, execution.error = event.result.content or None, event.result.error

    def _find(self, tool_id: str) -> ToolExecution | None:
        return next((e for e in self.tool_executions if e.tool_id == tool_id), None)


@attrs.define
class AgentAnswer(Serializable, Generic[DataT_co]):
    """State of a run. `stream_state` yields the same object after each change."""

    query: str
    """Text of the user's request."""
    steps: list[StepState] = attrs.field(factory=list)
    """Steps of the run, in order."""
    text: str = ""
    """Final answer; it grows while the model writes."""
    data: DataT_co | None = None
    """Value of the type in `output=`; None without an output type."""
    is_complete: bool = False
    """True if the run has ended with an answer."""
    failure: Failure | None = None
    """Failure that ended the run; None if it did not fail."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the run, known after its reply."""

    def __str__(self) -> str:
        return self.text

    def apply(self, event: object) -> bool:
        """Update the answer from an item of the stream. Return False if the item changes nothing."""
        match event:
            case Reply():
                self.text, self.data, self.is_complete = event.text, event.data, True
                self.usage = event.usage
            case Failure() if event.kind != "handler":
                self._fail(event)
            case StepsEvent():
                return self._step(event.step_id).apply(event)
            case _:
                return False
        return True

    def _step(self, step_id: str) -> StepState:
        found = next((step for step in self.steps if step.step_id == step_id), None)
        if found is None:
            found = StepState(step_id, len(self.steps) + 1)
            self.steps.append(found)
        return found

    def _fail(self, failure: Failure) -> None:
        self.failure = failure
        if self.steps and not self.steps[-1].is_complete:
            self.steps[-1].error = str(failure.error)


class AnswerReader(trio.abc.ReceiveChannel[AgentAnswer[Any]]):
    """Receive channel that yields one `AgentAnswer` object again after each of its changes."""

    def __init__(self, events: trio.abc.ReceiveChannel[Any], query: str) -> None:
        self._events = events
        self._answer = AgentAnswer(query)

    async def receive(self) -> AgentAnswer:
        """Wait for the next change of the answer, and return the answer.

        Raises:
            trio.EndOfChannel: The run has ended; the answer has its outcome.
            trio.ClosedResourceError: The reader was closed.
        """
        while not self._answer.apply(await self._events.receive()):
            pass
        return self._answer

    async def aclose(self) -> None:
        await self._events.aclose()
