"""What a streamed run of a `StepsAgent` tells beside the deliveries of every stream.

Each event carries the id of its step: of one model call, and of the message that its answer is in the record.
`complete` is False while the answer still grows; such an event is for display, and the next one voids it.
"""

from typing import Any, ClassVar, Literal

import attrs

from actgent.messages import ToolCall, ToolResult
from actgent.support.serializable import Serializable

ToolProgress = Literal["started", "completed", "failed"]


@attrs.frozen(kw_only=True)
class StepsEvent(Serializable):
    """Something that happened in a step."""

    type: ClassVar[str]
    """Its name as JSON."""
    step_id: str
    """The model call of the run that it belongs to."""


@attrs.frozen(kw_only=True)
class StreamStart(StepsEvent):
    """The first piece of an answer has come."""

    type: ClassVar[str] = "stream_start"
    """Its name as JSON."""


@attrs.frozen(kw_only=True)
class StreamEnd(StepsEvent):
    """The answer is whole."""

    type: ClassVar[str] = "stream_end"
    """Its name as JSON."""


@attrs.frozen(kw_only=True)
class PlanEvent(StepsEvent):
    """The model made a plan."""

    type: ClassVar[str] = "agent_plan"
    """Its name as JSON."""
    plan: str
    """The plan in words."""
    complete: bool = True
    """False while the answer grows."""


@attrs.frozen(kw_only=True)
class StepEvent(StepsEvent):
    """The model wants tools to run."""

    type: ClassVar[str] = "agent_step"
    """Its name as JSON."""
    thought: str = ""
    """Why, in the model's words; may be empty."""
    calls: tuple[ToolCall, ...] = ()
    """Their ids are `STEP_ID/PLACE`, the same while the answer grows and in the events of the tools."""
    complete: bool = True
    """False while the answer grows."""


@attrs.frozen(kw_only=True)
class ToolExecutionEvent(StepsEvent):
    """A tool is about to run, or its result is there."""

    type: ClassVar[str] = "tool_execution"
    """Its name as JSON."""
    tool_call_id: str
    """The call, as in `StepEvent.calls`."""
    tool_name: str
    """The tool's name."""
    status: ToolProgress
    """How far the call is."""
    result: ToolResult | None = None
    """What came of it; None while it runs."""


@attrs.frozen(kw_only=True)
class ToolResultsEvent(StepsEvent):
    """All tools of a step have ended."""

    type: ClassVar[str] = "tool_results"
    """Its name as JSON."""
    results: tuple[ToolResult, ...]
    """In the order of the calls."""


@attrs.frozen(kw_only=True)
class FinalEvent(StepsEvent):
    """The final answer; exactly one is complete in a run that succeeds."""

    type: ClassVar[str] = "final_response"
    """Its name as JSON."""
    text: str
    """The answer in words."""
    data: Any = None
    """The value of the declared output; None where there is none."""
    thought: str = ""
    """What led to it, in the model's words; may be empty."""
    complete: bool = True
    """False while the answer grows."""
