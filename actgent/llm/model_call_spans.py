"""Trace spans of model calls: one per attempt. Attempts of retries and fallbacks are siblings."""

import time
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from actgent.messages import ChatMessage, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec
from actgent.support import span_names as names
from actgent.support.tracing_interface import ActiveTrace, Attribute, TracedWork, Tracing, active_trace

from .model_interface import LLM, ModelRequest, ModelResponse, OnText

_model_work: ContextVar["ModelWork | None"] = ContextVar("_model_work", default=None)


class ModelWork(TracedWork):
    """Trace span of one attempt of a model call."""

    def __init__(
        self,
        active: ActiveTrace,
        model: str,
        chat: ModelRequest,
        *,
        attempt: int = 0,
        streams: bool = False,
        address: tuple[str, int] | None = None,
    ) -> None:
        """Open the trace span of one attempt of a model call.

        Args:
            active: Trace that the span belongs to.
            model: `provider:model`.
            chat: The request.
            attempt: Number of the attempt, from 0.
            streams: True if the answer is streamed.
            address: Host and port of the API; None if unknown.
        """
        provider, _, asked = model.partition(":") if ":" in model else ("unknown", "", model)
        attributes: dict[str, Attribute] = {
            names.OPERATION: names.CHAT,
            names.PROVIDER: names.PROVIDERS.get(provider, provider),
            names.REQUEST_MODEL: asked,
            names.ATTEMPT: attempt,
        }
        if streams:
            attributes[names.STREAM] = True
        if address is not None:
            attributes[names.SERVER_ADDRESS], attributes[names.SERVER_PORT] = address
        if chat.temperature is not None:
            attributes[names.TEMPERATURE] = chat.temperature
        if chat.max_tokens is not None:
            attributes[names.MAX_TOKENS] = chat.max_tokens
        if chat.response_format is not None:
            attributes[names.OUTPUT_TYPE] = "json"
        if active.tracing.has_content:
            attributes |= _request_content(active.tracing, chat)
        super().__init__(active, f"{names.CHAT} {asked}", attributes, kind="client")
        self._begun = time.monotonic()
        self.is_shell = False
        """True if nested spans already report the usage of this call. Reporting it here would count it twice."""
        if (outer := _model_work.get()) is not None:
            outer.is_shell = True

    def __enter__(self) -> Self:
        self._outer = _model_work.set(self)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _model_work.reset(self._outer)
        super().__exit__(kind, error, trace)

    def record_admission(self) -> None:
        """Record the time at which the rate limiter admitted the attempt."""
        self.facts[names.RATE_LIMITER_SECONDS] = time.monotonic() - self._begun

    def note_chunk(self) -> None:
        """Record the time of the first piece of text. Later calls have no effect."""
        self.facts.setdefault(names.FIRST_CHUNK, time.monotonic() - self._begun)

    def note_answer(self, answer: ModelResponse) -> None:
        """Record usage, stop reason, model and id of the answer as span attributes."""
        if self.is_shell:
            return
        usage = answer.usage
        finish_reason = names.FINISH_WORDS.get(answer.stop, answer.stop)
        self.facts[names.FINISH_REASONS] = (finish_reason,)
        if answer.model:
            self.facts[names.RESPONSE_MODEL] = answer.model
        if answer.id:
            self.facts[names.RESPONSE_ID] = answer.id
        counts = {
            names.INPUT_TOKENS: usage.input_tokens,
            names.OUTPUT_TOKENS: usage.output_tokens,
            names.CACHE_READ_TOKENS: usage.cached_tokens,
            names.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
            names.REASONING_TOKENS: usage.reasoning_tokens,
        }
        self.facts |= {name: count for name, count in counts.items() if count}
        if usage.cost:
            self.facts[names.COST] = usage.cost
        if self.tracing.has_content:
            message = _message(ChatMessage("assistant", answer.parts)) | {"finish_reason": finish_reason}
            self.facts |= self.tracing.content(names.OUTPUT_MESSAGES, lambda: [message])


async def complete_as_span(llm: LLM, chat: ModelRequest, *, on_text: OnText | None) -> ModelResponse:
    """Call `llm.complete` inside a trace span, and return the answer.

    No span is created if tracing is off, or if the model creates a span for each attempt itself.
    """
    active = active_trace.get()
    if active is None or llm.traces_attempts:
        return await llm.complete(chat, on_text=on_text)
    with ModelWork(active, llm.name or type(llm).__name__, chat, streams=on_text is not None) as work:

        async def forward(text: str, attempt: int) -> None:
            work.note_chunk()
            if on_text is not None:
                await on_text(text, attempt)

        answer = await llm.complete(chat, on_text=None if on_text is None else forward)
        if isinstance(answer, ModelResponse):  # the caller rejects other types
            work.note_answer(answer)
        return answer


def _request_content(tracing: Tracing, chat: ModelRequest) -> dict[str, Attribute]:
    """Return span attributes with the prompt, messages and tools of a request, as in OpenTelemetry's GenAI conventions."""
    found = dict(tracing.content(names.INPUT_MESSAGES, lambda: [_message(each) for each in chat.messages]))
    if chat.system:
        system = [{"type": "text", "content": chat.system}]
        found |= tracing.content(names.SYSTEM_INSTRUCTIONS, lambda: system)
    if chat.tools:
        found |= tracing.content(names.TOOL_DEFINITIONS, lambda: [_definition(each) for each in chat.tools])
    return found


def _definition(tool: ToolSpec) -> dict[str, object]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }


def _message(message: ChatMessage) -> dict[str, object]:
    """Convert a message to the JSON format of OpenTelemetry's GenAI conventions."""
    return {"role": message.role, "parts": [_part(part) for part in message.parts]}


def _part(part: Part) -> dict[str, object]:
    match part:
        case Text(text=text):
            return {"type": "text", "content": text}
        case ToolCall(name=name, arguments=arguments, id=call_id):
            return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}
        case ToolResult(call_id=call_id):
            return {"type": "tool_call_response", "id": call_id, "response": part.text}
        case Thinking(text=text):
            return {"type": "reasoning", "content": text}
        case _:
            return {"type": type(part).__name__.lower()}
