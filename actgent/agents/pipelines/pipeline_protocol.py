"""Model and protocol of a pipeline: the model calls the tool that runs the steps, and the protocol makes the reply of their results."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import trio

from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText
from actgent.messages import Text, ToolCall, ToolResult, Usage
from actgent.protocols.protocol_interface import Outcome, Protocol, SendReply, TurnView

from .step_executor import ANSWER_SEPARATOR, RUN_STEPS


class PipelineModel(LLM):
    """Model of a pipeline, which calls no provider. It answers a message with a call of `run_steps`, and the result with text."""

    name = "pipeline"
    dialect: ClassVar[str] = "pipeline"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        last = chat.messages[-1]
        results = [part for part in last.parts if isinstance(part, ToolResult)]
        if results:
            text = results[0].error or results[0].content
            answer = text.partition(ANSWER_SEPARATOR)[2]
            return ModelResponse(parts=(Text(answer if answer.strip() else text),), model=self.name)
        text = "".join(part.text for part in last.parts if isinstance(part, Text))
        return ModelResponse(
            parts=(ToolCall(RUN_STEPS, {"order": text}),), stop="tool_calls", model=self.name
        )

    def price_of(self, usage: Usage) -> float | None:
        return 0.0


class PipelineProtocol(Protocol):
    """Protocol of a pipeline. The reply is the output of the last step, and its type is the status of the run."""

    name: ClassVar[str] = "pipeline"
    template: ClassVar[str] = "{{ profile.name }}: a pipeline, whose steps other agents do."
    lookback = 0

    def __init__(self, reply: Callable[[Mapping[str, Any], str], SendReply]) -> None:
        """Keep the function `reply`, which builds the reply from the state of the run and the summary of its steps."""
        self._reply = reply

    def read(self, answer: ModelResponse, view: TurnView) -> Sequence[Outcome]:
        results = next((each.tool_results for each in reversed(view.record) if each.tool_results), ())
        if results and results[0].error is not None:
            return [SendReply(text=answer.text, message_type="error")]
        return [self._reply(view.state, answer.text)]

    def shortfall(self, message_type: str | None) -> str | None:
        return None if message_type == "success" else message_type
