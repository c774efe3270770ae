"""OpenTelemetry spans of turns. Each activation of a turn has one span: its start, or a resume after an approval or restart."""

import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

import attrs

from actgent.information_flow_labels import Label
from actgent.messages import Message, traceparent, valid_traceparent
from actgent.sessions.session_context import Turn
from actgent.support import span_names as names
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.tracing_interface import (
    ActiveTrace,
    Attribute,
    OpenSpan,
    Tracing,
    active_trace,
    begin_operation,
    error_type,
)

T = TypeVar("T")
Activation = Literal["begin", "person", "restart"]
Key = tuple[str, str]
"""Pair of session id and message id that identifies a turn."""


@attrs.define(eq=False, repr=False)
class _ActivationSpan(FieldRepr):
    """OpenTelemetry span of a turn's newest activation (start, or resume after an approval or restart)."""

    span: OpenSpan
    next_kind: Activation | None = None
    """None while the activation runs. After its end, the kind of the next activation: after an approval or after a restart."""


@attrs.define(eq=False, repr=False)
class TurnSpans(FieldRepr):
    """Spans of the turns of one agent."""

    agent: str
    tracing: Tracing
    operation: str = names.INVOKE_AGENT
    """OpenTelemetry operation name of the turns: `invoke_agent`, or `invoke_workflow` for pipelines."""
    _turns: dict[Key, _ActivationSpan] = attrs.field(factory=dict)
    _deciders: dict[str, dict[str, str]] = attrs.field(factory=dict)
    """Trace contexts of the requests that decided approvals of suspended turns, by session id and call id."""

    def begin(self, turn: Turn) -> None:
        """Begin the span of a turn that starts or resumes in the calling task."""
        message = turn.message
        before = self._turns.get(_key(message))
        why: Activation = "begin"
        if before is not None and before.next_kind is not None:
            why = before.next_kind
        elif turn.checkpoint is not None:
            why = "restart"
        deciders = self._deciders.pop(message.session_id, {})
        common: dict[str, Attribute] = {names.AGENT: self.agent, names.CONVERSATION: message.session_id}
        span = self.tracing.begin(
            f"{self.operation} {self.agent}",
            {**common, **self._facts(message, why)},
            parent=message.traceparent or "",
            links=[
                *(each.traceparent for each in turn.joined),
                *([] if before is None else [before.span.traceparent]),
                *dict.fromkeys(deciders.values()),
            ],
        )
        self._turns[_key(message)] = _ActivationSpan(span)
        span.make_current()
        active_trace.set(ActiveTrace(self.tracing, common, lambda: _stop_error_type(turn), deciders))

    def suspend(self, turn: Turn) -> None:
        """End the tracing span of a turn that waits for approvals. The next span of the turn links to this span."""
        self._end_activation(turn, "person", error="")

    def end_interrupted(self, turn: Turn) -> None:
        """End the tracing span of a turn that a failure of its agent interrupted. The next span of the turn links to this span."""
        self._end_activation(turn, "restart", error="actor")

    def _end_activation(self, turn: Turn, next_kind: Activation, *, error: str) -> None:
        """End the span of the running activation of a turn. `next_kind` is the kind of the next activation."""
        activated = self._turns.get(_key(turn.message))
        if activated is not None and activated.next_kind is None:
            activated.next_kind = next_kind
            activated.span.end(error=error)

    def end(self, turn: Turn, label: Label) -> None:
        """End the tracing span of a finished turn. Add the turn's usage and the session's label as attributes."""
        activated = self._turns.pop(_key(turn.message), None)
        self._deciders.pop(turn.message.session_id, None)
        if activated is None or activated.next_kind is not None:
            return
        usage = turn.progress.usage
        facts: dict[str, Attribute] = {
            names.TURN_CALLS: turn.progress.calls,
            names.TURN_TOOL_CALLS: turn.progress.tool_calls,
            names.TURN_INPUT_TOKENS: usage.input_tokens,
            names.TURN_OUTPUT_TOKENS: usage.output_tokens,
        }
        if usage.cost:
            facts[names.TURN_COST] = usage.cost
        if not label.is_trusted:
            facts[names.LABEL_SOURCES] = tuple(sorted(label.sources))
        if label.readers is not None:
            facts[names.LABEL_READERS] = tuple(sorted(label.readers))
        error = "" if turn.error is None else error_type(turn.error, turn.blame)
        activated.span.end(facts, error=error)

    def drop_moved(self, has_moved: Callable[[str], bool]) -> None:
        """Discard the stored spans of suspended turns whose sessions have moved to another process. `has_moved` selects them by id.

        Later activations in this process do not link to these spans. Spans of running turns end normally.
        """
        for key in [each for each, turn in self._turns.items() if turn.next_kind and has_moved(each[0])]:
            del self._turns[key]
        for session_id in [each for each in self._deciders if has_moved(each)]:
            del self._deciders[session_id]

    def note_decision(self, session_id: str, call_id: str) -> None:
        """Store the current trace context as that of the decision about a tool call's approval.

        The spans of the resumed turn and of the tool call link to this trace context.
        """
        if (decider := self.tracing.current() or valid_traceparent(traceparent.get())) is not None:
            self._deciders.setdefault(session_id, {})[call_id] = decider

    def note_interruption(self, turn: Turn, by: Message) -> None:
        """Link the tracing span of a turn to the message `by` that interrupts the turn."""
        if (activated := self._turns.get(_key(turn.message))) is not None:
            activated.span.link(by.traceparent)

    def _facts(self, message: Message, why: Activation) -> dict[str, Attribute]:
        """Return the span attributes of an activation of the turn that answers `message`. `why` is the kind of the activation."""
        facts: dict[str, Attribute] = {
            names.OPERATION: self.operation,
            names.MESSAGE: message.id,
            names.PRIORITY: message.priority.name.lower(),
            names.ACTIVATION: why,
        }
        if self.operation == names.INVOKE_WORKFLOW:
            facts[names.WORKFLOW_NAME] = self.agent
        if why == "begin":
            facts[names.QUEUE_SECONDS] = max(0.0, time.time() - message.created_at)
        return facts


async def ask_as_plan(agent: str, answered: Awaitable[T]) -> T:
    """Await a model call that makes a plan, inside an OpenTelemetry span `plan` of the agent."""
    with begin_operation(names.PLAN, f"{names.PLAN} {agent}"):
        return await answered


def _key(message: Message) -> Key:
    return message.session_id, message.id


def _stop_error_type(turn: Turn) -> str:
    """Return the error type of a cancelled turn for its tracing span: the error class, or "stopped" if the agent stops."""
    stop = turn.stop
    return "stopped" if stop is None else error_type(stop)
