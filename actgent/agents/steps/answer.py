"""One object that a streamed run of a `StepsAgent` fills: what was planned, done and answered so far."""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal

import attrs
import trio

from actgent.messages import NO_USAGE, DataT_co, Failure, Reply, ToolCall, Usage
from actgent.support.deprecations import warn_deprecated
from actgent.support.serializable import Serializable

from .events import (
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
    """One tool call of a step, and what has come of it."""

    type: ClassVar[str] = "tool_execution_state"
    """Its name as JSON; `tool_execution` is the event."""
    tool_id: str
    """The call's id."""
    tool_name: str
    """The tool's name."""
    parameters: Mapping[str, Any] | str = attrs.field(factory=dict)
    """A str is what could not be read as an object, and never runs."""
    status: ToolProgress | Literal["pending"] = "pending"
    """How far the call is; `pending` until it runs."""
    result: str | None = None
    """What it returned, as text; None where nothing is there."""
    error: str | None = None
    """What went wrong; None where nothing did."""


@attrs.define
class StepState(Serializable):
    """One model call of the run."""

    step_id: str
    """As in the events of the step."""
    step_number: int
    """From 1."""
    step_type: StepType = "unknown"
    """What the model did; `unknown` until its answer says so."""
    plan: str = ""
    """The plan in words; empty where the step makes none."""
    thought: str = ""
    """The model's reasons, in its words."""
    tool_executions: list[ToolExecution] = attrs.field(factory=list)
    """The calls of the step, in their order."""
    answer: str = ""
    """The final answer, where the step gives it."""
    is_complete: bool = False
    """True if the model's answer is whole."""
    error: str | None = None
    """Why the run ended in this step; None where it did not."""

    def apply(self, event: StepsEvent) -> bool:
        """Take an event of this step over; False where it changes nothing."""
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
        """The call as it is now, with what is known of it; its events may have come before."""
        known = self._find(call.id) or ToolExecution(call.id, call.name)
        known.tool_name, known.parameters = call.name, call.arguments
        return known

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
    """The run so far. The same object is given again after each change."""

    query: str
    """What was asked."""
    steps: list[StepState] = attrs.field(factory=list)
    """The model calls of the run, in their order."""
    text: str = ""
    """The final answer."""
    data: DataT_co | None = None
    """The final answer as a value of the declared type, where there is one."""
    is_complete: bool = False
    """True: the run ended with an answer."""
    failure: Failure | None = None
    """The error that it ended with instead."""
    usage: Usage = NO_USAGE
    """Usage of the run, as its answer says."""

    def __str__(self) -> str:
        return self.text

    @property
    def final_answer(self) -> str:
        """The old name of `text`."""
        warn_deprecated("AgentAnswer.final_answer")
        return self.text

    def apply(self, event: object) -> bool:
        """Take an event of the stream over; False where it changes nothing."""
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
    """Gives one answer again and again, each time with what the stream has brought meanwhile."""

    def __init__(self, events: trio.abc.ReceiveChannel[Any], query: str) -> None:
        self._events = events
        self._answer = AgentAnswer(query)

    async def receive(self) -> AgentAnswer:
        """The answer after its next change.

        Raises:
            trio.EndOfChannel: the run has ended; what it came to stands in the answer.
            trio.ClosedResourceError: the reader was closed.
        """
        while not self._answer.apply(await self._events.receive()):
            pass
        return self._answer

    async def aclose(self) -> None:
        await self._events.aclose()
