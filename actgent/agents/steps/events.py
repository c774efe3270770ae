"""What a streamed run of a `StepsAgent` tells beside the deliveries of every stream.

Each event carries the id of its step: of one model call, and of the message that its answer is in the record.
`complete` is False while the answer still grows; such an event is for display, and the next one voids it.
"""

from typing import Any, ClassVar, Literal

import attrs

from actgent.messages import ToolCall, ToolResult

ToolProgress = Literal["started", "completed", "failed"]


@attrs.frozen(kw_only=True)
class StepsEvent:
    """Something that happened in a step."""

    type: ClassVar[str]
    """Its name as JSON."""
    step_id: str


@attrs.frozen(kw_only=True)
class StreamStart(StepsEvent):
    """The first piece of an answer has come."""

    type: ClassVar[str] = "stream_start"


@attrs.frozen(kw_only=True)
class StreamEnd(StepsEvent):
    """The answer is whole."""

    type: ClassVar[str] = "stream_end"


@attrs.frozen(kw_only=True)
class PlanEvent(StepsEvent):
    """The model made a plan."""

    type: ClassVar[str] = "agent_plan"
    plan: str
    complete: bool = True


@attrs.frozen(kw_only=True)
class StepEvent(StepsEvent):
    """The model wants tools to run."""

    type: ClassVar[str] = "agent_step"
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Their ids are `STEP_ID/PLACE`, the same while the answer grows and in the events of the tools."""
    complete: bool = True


@attrs.frozen(kw_only=True)
class ToolExecutionEvent(StepsEvent):
    """A tool is about to run, or its result is there."""

    type: ClassVar[str] = "tool_execution"
    tool_call_id: str
    tool_name: str
    status: ToolProgress
    result: ToolResult | None = None


@attrs.frozen(kw_only=True)
class ToolResultsEvent(StepsEvent):
    """All tools of a step have ended."""

    type: ClassVar[str] = "tool_results"
    results: tuple[ToolResult, ...]


@attrs.frozen(kw_only=True)
class FinalEvent(StepsEvent):
    """The final answer; exactly one is complete in a run that succeeds."""

    type: ClassVar[str] = "final_response"
    text: str
    data: Any = None
    thought: str = ""
    complete: bool = True
