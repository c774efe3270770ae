"""`Observer`: publishes events and OpenTelemetry spans of an agent's turns."""

import time
from collections.abc import Callable
from typing import TypedDict

import attrs

from actgent.approvals import Approval, Decision, decision_name
from actgent.errors import LimitReached, kind_of
from actgent.errors.safe_error_texts import cause_text, observer_error_text
from actgent.events import (
    AdmissionWaited,
    ApprovalAsked,
    ApprovalDecided,
    EventStream,
    LimitMet,
    MessageFailed,
    MessageRefused,
    ModeChanged,
    ModelAnswered,
    ModelFailed,
    ModelStarted,
    PassStarted,
    ScheduleFired,
    SourceLifted,
    ToolFailed,
    ToolFinished,
    ToolProgressed,
    ToolStarted,
    TurnEnded,
    TurnResumed,
    TurnStarted,
    TurnSuspended,
)
from actgent.journal.record_types import SourceLiftRecord
from actgent.llm.model_interface import CallWatch, ModelResponse
from actgent.messages import CallProgress, Message, ToolCall, ToolResult
from actgent.modes.mode_changes import changes_in
from actgent.sessions.session_context import SessionContext, Turn
from actgent.support.attrs_class_repr import FieldRepr

from .turn_spans import TurnSpans


class _EventFields(TypedDict):
    """Event fields that identify the agent, the session and the turn."""

    agent: str
    session_id: str
    turn: str


@attrs.frozen(repr=False)
class Observer(FieldRepr):
    """Publisher of the events and spans of one agent's turns."""

    agent: str
    stream: EventStream
    spans: TurnSpans | None = None
    """OpenTelemetry spans of the turns; None without telemetry."""
    is_redacted: bool = False
    """True if errors are published only by their class name, because the runtime redacts texts."""

    def begin_activation(self, turn: Turn) -> None:
        """Begin the tracing span of a turn that starts or resumes in the calling task."""
        if self.spans is not None:
            self.spans.begin(turn)

    def suspend(self, turn: Turn) -> None:
        """End the tracing span of a turn that is being suspended."""
        if self.spans is not None:
            self.spans.suspend(turn)

    def end_interrupted_span(self, turn: Turn) -> None:
        """End the tracing span of a turn that a failure of its agent interrupted, before the turn resumes after the restart."""
        if self.spans is not None:
            self.spans.end_interrupted(turn)

    def drop_moved(self, has_moved: Callable[[str], bool]) -> None:
        """Discard the tracing spans of sessions that have moved to another process; `has_moved` selects them by id."""
        if self.spans is not None:
            self.spans.drop_moved(has_moved)

    def interrupt(self, turn: Turn, by: Message) -> None:
        """Link the tracing span of a turn to the message `by` that interrupts the turn."""
        if self.spans is not None:
            self.spans.note_interruption(turn, by)

    def begin_turn(self, turn: Turn) -> None:
        context = turn.session
        if self.stream.active:
            self.stream.publish(
                TurnStarted(
                    **self._location_fields(context, turn.message.id),
                    queue_seconds=max(0.0, time.time() - turn.message.created_at),
                    is_resumed=turn.checkpoint is not None,
                )
            )

    def suspend_turn(self, turn: Turn) -> None:
        context = turn.session
        if self.stream.watched:
            ids = () if context.approvals is None else tuple(context.approvals.open)
            self.stream.publish(TurnSuspended(**self._location_fields(context, turn.message.id), ids=ids))

    def resume_turn(self, turn: Turn) -> None:
        context = turn.session
        if self.stream.watched:
            self.stream.publish(TurnResumed(**self._location_fields(context, turn.message.id)))

    def refuse(self, context: SessionContext, message: Message, error: BaseException) -> None:
        if self.stream.active:
            self.stream.publish(
                MessageRefused(
                    **self._location_fields(context, message.id),
                    message_id=message.id,
                    error=type(error).__name__,
                )
            )

    def fire(self, context: SessionContext, schedule_id: str, message_id: str) -> None:
        if self.stream.watched:
            self.stream.publish(
                ScheduleFired(
                    **self._location_fields(context, message_id),
                    schedule_id=schedule_id,
                    message_id=message_id,
                )
            )

    def change_mode(self, context: SessionContext) -> None:
        changes = changes_in(context.seen_state) if self.stream.watched else ()
        if changes:
            last = changes[-1]
            self.stream.publish(
                ModeChanged(
                    **self._location_fields(context), previous=last.previous, current=last.current, by=last.by
                )
            )

    def watch_call(self, context: SessionContext, message: Message, model: str) -> CallWatch:
        """Publish the start of a model call that answers `message`. Return an observer that publishes its retries and failures."""
        if self.stream.watched:
            self.stream.publish(
                ModelStarted(**self._location_fields(context), message_id=message.id, model=model)
            )
        return _ObservedCall(stream=self.stream, place=self._location_fields(context))

    def fail_call(self, watch: CallWatch | None, model: str, error: Exception) -> None:
        """Publish the failure of a model call, unless the model client has already published it."""
        if isinstance(watch, _ObservedCall) and not watch.has_failed:
            watch.fail(model, 0, error, None)

    def start_tool(self, context: SessionContext, call: ToolCall) -> None:
        self.stream.publish(
            ToolStarted(**self._location_fields(context), call_id=call.id, tool_name=call.name)
        )

    def begin_pass(self, context: SessionContext, message: Message) -> None:
        self.stream.publish(
            PassStarted(**self._location_fields(context), message_id=message.id, stage=message.stage)
        )

    def take_answer(
        self,
        context: SessionContext,
        message: Message,
        answer: ModelResponse,
        started: float,
        first_at: float | None,
    ) -> None:
        """Publish a model answer. `started` is the start time of the call and `first_at` the time of the first text delta, both monotonic."""
        self.stream.publish(
            ModelAnswered(
                **self._location_fields(context),
                message_id=message.id,
                model=answer.model,
                seconds=time.monotonic() - started,
                usage=answer.usage,
                stop=answer.stop,
                first_chunk=None if first_at is None else first_at - started,
            )
        )

    def take_result(self, context: SessionContext, result: ToolResult) -> None:
        self.stream.publish(
            ToolFinished(
                **self._location_fields(context),
                call_id=result.call_id,
                tool_name=result.tool_name,
                status=result.status,
            )
        )

    def take_progress(self, context: SessionContext, progress: CallProgress) -> None:
        if self.stream.watched:
            self.stream.publish(
                ToolProgressed(
                    **self._location_fields(context),
                    call_id=progress.call_id,
                    tool_name=progress.tool_name,
                    done=progress.done,
                    total=progress.total,
                )
            )

    def ask(self, context: SessionContext, approval: Approval) -> None:
        if self.stream.active:
            self.stream.publish(
                ApprovalAsked(
                    **self._location_fields(context),
                    approval_id=approval.id,
                    call_id=approval.call_id,
                    tool_name=approval.tool_name,
                )
            )

    def decide(self, context: SessionContext, approval: Approval, decision: Decision) -> None:
        if self.spans is not None:
            self.spans.note_decision(context.id, approval.call_id)
        if self.stream.active and not approval.for_caller:
            self.stream.publish(
                ApprovalDecided(
                    **self._location_fields(context),
                    approval_id=approval.id,
                    call_id=approval.call_id,
                    tool_name=approval.tool_name,
                    decision=decision_name(decision),
                )
            )

    def note_lift(self, context: SessionContext, lifted: SourceLiftRecord) -> None:
        """Publish that a person removed an untrusted source from the label of a session."""
        if self.stream.active:
            self.stream.publish(
                SourceLifted(**self._location_fields(context), source=lifted.source, by=lifted.by)
            )

    def fail(
        self, context: SessionContext, message: Message, error: Exception, blame: str = "internal"
    ) -> None:
        """Add the failure of a message to `Runtime.failures`, unless the message was interrupted, stopped or moved.

        `blame` is the failure kind of errors whose class does not determine the kind.
        """
        kind = kind_of(error, blame)
        if kind in ("interrupted", "stopped", "moved"):
            return
        self.stream.keep_failure(
            MessageFailed(
                **self._location_fields(context, message.id),
                message_id=message.id,
                kind=kind,
                error=type(error).__name__,
                error_text="" if self.is_redacted else observer_error_text(error),
                cause="" if self.is_redacted else cause_text(error),
            )
        )

    def fail_tool(self, turn: Turn, result: ToolResult) -> None:
        """Store a tool call that failed or has an unknown outcome, for later queries. Other results are ignored."""
        context = turn.session
        if result.status in ("error", "outcome_unknown"):
            self.stream.tool_failures.append(
                ToolFailed(
                    **self._location_fields(context, turn.message.id),
                    call_id=result.call_id,
                    tool_name=result.tool_name,
                    raised=result.raised,
                    error_text="" if self.is_redacted else result.error or "",
                )
            )

    def end_turn(self, turn: Turn) -> None:
        context = turn.session
        if self.spans is not None:
            self.spans.end(turn, context.conversation.label)
        if turn.error is not None:
            self.fail(context, turn.message, turn.error, turn.blame)
        if self.stream.active:
            if isinstance(turn.error, LimitReached) and not turn.is_cut:
                self._publish_reached_limit(turn, turn.error)
            self.stream.publish(
                TurnEnded(
                    **self._location_fields(context, turn.message.id),
                    message_id=turn.message.id,
                    seconds=time.monotonic() - turn.started,
                    calls=turn.progress.calls,
                    tool_calls=turn.progress.tool_calls,
                    failed=None if turn.error is None else kind_of(turn.error, turn.blame),
                )
            )

    def _publish_reached_limit(self, turn: Turn, error: LimitReached) -> None:
        """Publish that a turn has reached a limit."""
        context = turn.session
        self.stream.publish(
            LimitMet(
                **self._location_fields(context, turn.message.id),
                limit=error.field,
                value=error.value,
                owner_agent=error.agent,
                owner_session_id=error.session_id,
            )
        )

    def _location_fields(self, context: SessionContext, turn: str | None = None) -> _EventFields:
        """Return the event fields that identify the agent, the session and the turn.

        `turn` is the message id of the turn; None selects the running or suspended turn of the session.
        """
        if turn is None:
            begun = context.turn or context.suspension
            turn = "" if begun is None else begun.message.id
        return {"agent": self.agent, "session_id": context.id, "turn": turn}


@attrs.define(eq=False, kw_only=True, repr=False)
class _ObservedCall(CallWatch):
    """Publisher of the events of one model call."""

    stream: EventStream
    place: _EventFields
    has_failed: bool = False
    """True if the last published event was a failure without a retry."""

    def wait(self, seconds: float, model: str) -> None:
        super().wait(seconds, model)
        self.stream.publish(AdmissionWaited(**self.place, model=model, seconds=seconds))

    def begin(self, model: str, attempt: int) -> None:
        self.has_failed = False

    def fail(self, model: str, attempt: int, error: Exception, retry_seconds: float | None) -> None:
        super().fail(model, attempt, error, retry_seconds)
        self.has_failed = retry_seconds is None
        self.stream.publish(
            ModelFailed(**self.place, model=model, error=type(error).__name__, retry_seconds=retry_seconds)
        )
