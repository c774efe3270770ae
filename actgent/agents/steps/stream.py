"""From a turn of a `StepsAgent` to the events of its stream: what grows, what runs, and what came of it."""

from collections.abc import Sequence
from typing import Any

import attrs

from actgent.errors import AnswerError
from actgent.llm.base import Answer
from actgent.messages import Delivery, Reply, ToolCall, ToolResult
from actgent.protocols.growing import GrowingText
from actgent.protocols.steps import Kind, Step, grown_step, read_step
from actgent.sessions.waiting.turn_future import CallOptions
from actgent.sessions.waiting.turn_reader import TurnReader, TurnStream

from .events import (
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

# --- what grows ------------------------------------------------------------------------------


@attrs.define
class PartialStep:
    """One answer while it comes in. Its kind is decided once, by the first that shows."""

    step_id: str
    text: GrowingText = attrs.field(factory=GrowingText)
    attempt: int = 0
    _kind: Kind | None = None
    _last: StepsEvent | None = None

    def add(self, piece: str, attempt: int = 0) -> StepsEvent | None:
        """The event of all pieces so far, not complete; None where nothing new shows. A new attempt begins anew.

        Each event holds all that grew, so of a long answer there is one whenever it has grown by 1/64.
        """
        if attempt != self.attempt:
            self.text, self.attempt, self._kind, self._last = GrowingText(), attempt, None, None
        self.text.add(piece)
        step = grown_step(self.text.read()) if self.text.is_due else None
        if step is None or (self._kind is not None and step.kind != self._kind):
            return None
        self._kind = step.kind if step.is_decided else None
        event = event_of(step, self.step_id, complete=False)
        if event == self._last:
            return None
        self._last = event
        return event


def event_of(step: Step, step_id: str, *, complete: bool) -> StepsEvent:
    """A step as its event."""
    if step.kind == "plan":
        return PlanEvent(step_id=step_id, plan=step.plan, complete=complete)
    if step.kind == "step":
        calls = _numbered(step.calls, step_id)
        return StepEvent(step_id=step_id, thought=step.thought, calls=calls, complete=complete)
    data = None if isinstance(step.answer, str) else step.answer
    return FinalEvent(
        step_id=step_id, text=step.answer_text, data=data, thought=step.thought, complete=complete
    )


def _numbered(calls: Sequence[ToolCall], step_id: str) -> tuple[ToolCall, ...]:
    """The calls under ids that their step and place make: models use the same ones in every step."""
    return tuple(attrs.evolve(call, id=f"{step_id}/{place}") for place, call in enumerate(calls))


# --- what happened ---------------------------------------------------------------------------


@attrs.define(eq=False)
class Narrator:
    """Tells the events of a turn, in their order. It decides only; someone else passes them on."""

    _growing: PartialStep | None = None
    _step_id: str = ""
    """The step whose tools run."""
    _waiting: dict[str, ToolCall] = attrs.field(factory=dict)
    """Calls without a result yet, numbered, by the ids that their results have."""
    _results: list[ToolResult] = attrs.field(factory=list)
    _thought: str = ""

    def grow(self, step_id: str, piece: str, attempt: int) -> list[StepsEvent]:
        """Return the events for a piece of an answer's text."""
        events: list[StepsEvent] = []
        if self._growing is None or self._growing.step_id != step_id:
            self._growing = PartialStep(step_id)
            events.append(StreamStart(step_id=step_id))
        event = self._growing.add(piece, attempt)
        return [*events, event] if event else events

    def end(self, step_id: str, answer: Answer) -> list[StepsEvent]:
        """Return the events for a whole answer: plan and step. The final answer counts only once it is delivered."""
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
            calls = _numbered(step.calls, step_id)
            events.append(StepEvent(step_id=step_id, thought=step.thought, calls=calls))
        return events

    def begin(self, step_id: str, calls: Sequence[ToolCall]) -> list[StepsEvent]:
        """Return the events for the start of a step's tools."""
        numbered = _numbered(calls, step_id)
        self._step_id, self._results = step_id, []
        self._waiting = {call.id: known for call, known in zip(calls, numbered, strict=True)}
        return [self._progress(call, "started") for call in numbered]

    def deliver(self, delivery: Delivery) -> list[StepsEvent | Delivery]:
        """A delivery with the events that go with it."""
        if isinstance(delivery, Reply):
            final = FinalEvent(
                step_id=delivery.id, text=delivery.text, data=delivery.data, thought=self._thought
            )
            return [final, delivery]
        if isinstance(delivery, ToolResult) and delivery.call_id in self._waiting:
            return [self._finish(delivery), delivery, *self._all_finished()]
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

    def _all_finished(self) -> list[StepsEvent]:
        if self._waiting:
            return []
        return [ToolResultsEvent(step_id=self._step_id, results=tuple(self._results))]


def _read(answer: Answer) -> Step | None:
    """The step in an answer, None where it will not be acted on. Native calls come before any text."""
    if answer.stop not in {"end", "tool_calls"}:
        return None
    try:
        said = read_step(answer.text)
    except AnswerError:
        said = None
    if not answer.tool_calls:
        return said
    thought = (said.thought or (answer.text.strip() if said.kind == "final" else "")) if said else ""
    return Step(kind="step", thought=thought, calls=answer.tool_calls)


# --- who listens -----------------------------------------------------------------------------


class StepsTurnStream(TurnStream):
    """Someone who reads along, and is told the events of the steps, too."""

    def __init__(self, options: CallOptions, *, reader: TurnReader[Any]) -> None:
        super().__init__(options, reader=reader)
        self._narrator = Narrator()

    def hear(self, delivery: Any) -> None:
        for event in self._narrator.deliver(delivery):
            super().hear(event)

    async def grow(self, text: str, attempt: int) -> None:
        await self.wait_room()
        for event in self._narrator.grow(self._step_id, text, attempt):
            super().hear(event)

    def take_answer(self, answer: Answer) -> None:
        for event in self._narrator.end(self._step_id, answer):
            super().hear(event)

    def take_calls(self, calls: Sequence[ToolCall]) -> None:
        for event in self._narrator.begin(self._step_id, calls):
            super().hear(event)

    @property
    def _step_id(self) -> str:
        return self.turn.answer_id if self.turn is not None else ""
