"""Events of `StepsAgent.stream`, in addition to the tokens, tool results and reply of every stream.

The `step_id` of an event is the id of the model's message. It is the same for all events of one model call.
If `complete` is False, the answer is still growing: display the event, and replace it by the next one of its kind.
"""

from typing import Any, ClassVar, Literal

import attrs

from actgent.messages import ToolCall, ToolResult
from actgent.support.dict_serialization import Serializable

ToolProgress = Literal["started", "completed", "failed"]


@attrs.frozen(kw_only=True)
class StepsEvent(Serializable):
    """Base class of the events of a step. A step is one model call and its tool calls."""

    type: ClassVar[str]
    """Value of `type` in the JSON form of the event."""
    step_id: str
    """Id of the model's message in this step."""


@attrs.frozen(kw_only=True)
class StreamStart(StepsEvent):
    """The model has sent the first piece of its answer."""

    type: ClassVar[str] = "stream_start"
    """Value of `type` in the JSON form of the event."""


@attrs.frozen(kw_only=True)
class StreamEnd(StepsEvent):
    """The model has sent its whole answer."""

    type: ClassVar[str] = "stream_end"
    """Value of `type` in the JSON form of the event."""


@attrs.frozen(kw_only=True)
class PlanEvent(StepsEvent):
    """The answer of the model is a plan."""

    type: ClassVar[str] = "agent_plan"
    """Value of `type` in the JSON form of the event."""
    plan: str
    """Text of the plan."""
    complete: bool = True
    """False while the answer is still growing."""


@attrs.frozen(kw_only=True)
class StepEvent(StepsEvent):
    """The answer of the model is a step: tool calls."""

    type: ClassVar[str] = "agent_step"
    """Value of `type` in the JSON form of the event."""
    thought: str = ""
    """Reason for the calls, written by the model. May be empty."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls. The id `STEP_ID/NUMBER` of a call stays the same in later events of the step."""
    complete: bool = True
    """False while the answer is still growing."""


@attrs.frozen(kw_only=True)
class ToolExecutionEvent(StepsEvent):
    """A tool call was started, completed, or failed."""

    type: ClassVar[str] = "tool_execution"
    """Value of `type` in the JSON form of the event."""
    tool_call_id: str
    """Id of the call in `StepEvent.calls`."""
    tool_name: str
    """Name of the called tool."""
    status: ToolProgress
    """`started`, `completed` or `failed`."""
    result: ToolResult | None = None
    """Result of the call; None if it was only started."""


@attrs.frozen(kw_only=True)
class ToolResultsEvent(StepsEvent):
    """All tool calls of a step have ended."""

    type: ClassVar[str] = "tool_results"
    """Value of `type` in the JSON form of the event."""
    results: tuple[ToolResult, ...]
    """Results in the order of the calls."""


@attrs.frozen(kw_only=True)
class FinalEvent(StepsEvent):
    """The final answer. A successful run has exactly one event of this class with `complete=True`."""

    type: ClassVar[str] = "final_response"
    """Value of `type` in the JSON form of the event."""
    text: str
    """Text of the answer."""
    data: Any = None
    """Value of the type in `output=`; None if the agent has no output type."""
    thought: str = ""
    """Reasoning of the model. May be empty."""
    complete: bool = True
    """False while the answer is still growing."""
