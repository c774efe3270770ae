"""Conversion of the deliveries of a `StepsAgent`'s turn to the events of `StepsAgent.stream`."""

from collections.abc import Sequence
from typing import Any

import attrs

from actgent.errors import AnswerError
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Delivery, Reply, ToolCall, ToolResult
from actgent.protocols.partial_answers import StreamingText
from actgent.protocols.steps_protocol import Kind, Step, parse_partial_step, read_step
from actgent.sessions.pending.turn_future import CallOptions
from actgent.sessions.pending.turn_output_stream import TurnReader, TurnStream

from .stream_events import (
    FinalEvent,
    PlanEvent,
    StepEvent,
    StepsEvent,
    StreamEnd,
    StreamStart,
    ToolExecutionEvent,
    ToolProgress,
    ToolResultsEvent,
)

# --- partial answers ------------------------------------------------------------------------------


@attrs.define
class PartialStep:
    """Model answer that is still being streamed. Its kind (plan, step or final answer) does not change once it is visible."""

    step_id: str
    """Id of the model's message."""
    text: StreamingText = attrs.field(factory=StreamingText)
    """Text of the answer received so far."""
    attempt: int = 0
    """Number of the attempt of the model call that the text belongs to, from 0."""
    _kind: Kind | None = None
    _last: StepsEvent | None = None

    def add(self, piece: str, attempt: int = 0) -> StepsEvent | None:
        """Add a streamed piece of text, and return an incomplete event with the whole text so far.

        Return None if no new part is visible. A new `attempt` discards the earlier text. For a long answer, return an event only
        after the text has grown by 1/64.
        """
        if attempt != self.attempt:
            self.text, self.attempt, self._kind, self._last = StreamingText(), attempt, None, None
        self.text.add(piece)
        step = parse_partial_step(self.text.read()) if self.text.is_due else None
        if step is None or (self._kind is not None and step.kind != self._kind):
            return None
        self._kind = step.kind if step.is_decided else None
        event = event_of(step, self.step_id, complete=False)
        if event == self._last:
            return None
        self._last = event
        return event


def event_of(step: Step, step_id: str, *, complete: bool) -> StepsEvent:
    """Convert a parsed step to its stream event. `complete` is False while the answer is still streamed.

    `step_id` is the id of the model answer that contains the step.
    """
    if step.kind == "plan":
        return PlanEvent(step_id=step_id, plan=step.plan, complete=complete)
    if step.kind == "step":
        calls = _with_step_ids(step.calls, step_id)
        return StepEvent(step_id=step_id, thought=step.thought, calls=calls, complete=complete)
    data = None if isinstance(step.answer, str) else step.answer
    return FinalEvent(
        step_id=step_id, text=step.answer_text, data=data, thought=step.thought, complete=complete
    )


def _with_step_ids(calls: Sequence[ToolCall], step_id: str) -> tuple[ToolCall, ...]:
    """Return the tool calls with ids that consist of step id and position, because models may repeat their own ids."""
    return tuple(attrs.evolve(call, id=f"{step_id}/{index}") for index, call in enumerate(calls))


# --- events ---------------------------------------------------------------------------


@attrs.define(eq=False)
class TurnEventConverter:
    """Converter of a turn's deliveries to the events of `StepsAgent.stream`, in order. It does no I/O."""

    _growing: PartialStep | None = None
    _step_id: str = ""
    """Id of the step whose tools are running."""
    _waiting: dict[str, ToolCall] = attrs.field(factory=dict)
    """Tool calls of the running step without a result, by call id."""
    _results: list[ToolResult] = attrs.field(factory=list)
    _thought: str = ""

    def grow(self, step_id: str, piece: str, attempt: int) -> list[StepsEvent]:
        """Process a streamed piece of a model answer, and return the stream events for it.

        The first piece of a step also gives a `StreamStart`. A new `attempt` number discards the text of the failed attempt.
        """
        events: list[StepsEvent] = []
        if self._growing is None or self._growing.step_id != step_id:
            self._growing = PartialStep(step_id)
            events.append(StreamStart(step_id=step_id))
        event = self._growing.add(piece, attempt)
        return [*events, event] if event else events

    def end(self, step_id: str, answer: ModelResponse) -> list[StepsEvent]:
        """Process a complete model answer, and return the events for the end of its stream, its plan and its tool calls.

        The event of a final answer is not among them: `deliver` returns it together with the reply.
        """
        events: list[StepsEvent] = []
        if self._growing is not None:
            self._growing = None
            events.append(StreamEnd(step_id=step_id))
        step = _read(answer)
        self._thought = step.thought if step else ""
        if step is None:
            return events
        if step.plan:
            events.append(PlanEvent(step_id=step_id, plan=step.plan))
        if step.kind == "step":
            calls = _with_step_ids(step.calls, step_id)
            events.append(StepEvent(step_id=step_id, thought=step.thought, calls=calls))
        return events

    def begin(self, step_id: str, calls: Sequence[ToolCall]) -> list[StepsEvent]:
        """Process the start of a step's tool calls and return a `started` event for each call."""
        numbered = _with_step_ids(calls, step_id)
        self._step_id, self._results = step_id, []
        self._waiting = {call.id: each for call, each in zip(calls, numbered, strict=True)}
        return [self._progress(call, "started") for call in numbered]

    def deliver(self, delivery: Delivery) -> list[StepsEvent | Delivery]:
        """Return a delivery together with its stream events, in the order in which the reader receives them.

        A reply is preceded by the final event. A tool result is preceded by its event, and the last result is
        followed by the event of all results.
        """
        if isinstance(delivery, Reply):
            final = FinalEvent(
                step_id=delivery.id, text=delivery.text, data=delivery.data, thought=self._thought
            )
            return [final, delivery]
        if isinstance(delivery, ToolResult) and delivery.call_id in self._waiting:
            return [self._finish(delivery), delivery, *self._result_events_when_complete()]
        return [delivery]

    def _finish(self, result: ToolResult) -> StepsEvent:
        self._results.append(result)
        status: ToolProgress = "completed" if result.status == "success" else "failed"
        return self._progress(self._waiting.pop(result.call_id), status, result)

    def _progress(
        self, call: ToolCall, status: ToolProgress, result: ToolResult | None = None
    ) -> ToolExecutionEvent:
        return ToolExecutionEvent(
            step_id=self._step_id, tool_call_id=call.id, tool_name=call.name, status=status, result=result
        )

    def _result_events_when_complete(self) -> list[StepsEvent]:
        if self._waiting:
            return []
        return [ToolResultsEvent(step_id=self._step_id, results=tuple(self._results))]


def _read(answer: ModelResponse) -> Step | None:
    """Parse the step in a model answer, and return it; None if the answer is truncated or cannot be parsed.

    Native tool calls take precedence over calls in the text.
    """
    if answer.stop not in {"end", "tool_calls"}:
        return None
    try:
        step = read_step(answer.text)
    except AnswerError:
        step = None
    if not answer.tool_calls:
        return step
    thought = (step.thought or (answer.text.strip() if step.kind == "final" else "")) if step else ""
    return Step(kind="step", thought=thought, calls=answer.tool_calls)


# --- the stream -----------------------------------------------------------------------------


class StepsTurnStream(TurnStream):
    """Stream of a turn's deliveries for one reader, with the events of the steps added."""

    def __init__(self, options: CallOptions, *, reader: TurnReader[Any]) -> None:
        super().__init__(options, reader=reader)
        self._converter = TurnEventConverter()

    def receive_delivery(self, delivery: Any) -> None:
        for event in self._converter.deliver(delivery):
            super().receive_delivery(event)

    async def receive_partial(self, text: str, attempt: int) -> None:
        await self.wait_capacity()
        for event in self._converter.grow(self._step_id, text, attempt):
            super().receive_delivery(event)

    def receive_answer(self, answer: ModelResponse) -> None:
        for event in self._converter.end(self._step_id, answer):
            super().receive_delivery(event)

    def receive_calls(self, calls: Sequence[ToolCall]) -> None:
        for event in self._converter.begin(self._step_id, calls):
            super().receive_delivery(event)

    @property
    def _step_id(self) -> str:
        return self.turn.answer_id if self.turn is not None else ""
