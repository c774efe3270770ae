"""What an agent tells its observers; without any, nothing is even built."""

import time

import attrs

from actgent.approvals import Approval, Decision, word_for
from actgent.errors import LimitReached, kind_of
from actgent.events import (
    ApprovalAsked,
    ApprovalDecided,
    EventStream,
    LimitMet,
    ModelAnswered,
    PassStarted,
    ToolFinished,
    ToolProgressed,
    TurnEnded,
)
from actgent.llm.base import Answer
from actgent.messages import CallProgress, Message, ToolResult
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn


@attrs.frozen
class Observer:
    """Publishes what happens in the turns of one agent."""

    agent: str
    stream: EventStream

    def begin_pass(self, context: SessionContext, message: Message) -> None:
        if self.stream.watched:
            self.stream.publish(
                PassStarted(
                    agent=self.agent, session_id=context.id, message_id=message.id, stage=message.stage
                )
            )

    def take_answer(self, context: SessionContext, message: Message, answer: Answer, started: float) -> None:
        """`started` is the monotonic time of the call."""
        if self.stream.watched:
            self.stream.publish(
                ModelAnswered(
                    agent=self.agent,
                    session_id=context.id,
                    message_id=message.id,
                    model=answer.model,
                    seconds=time.monotonic() - started,
                    usage=answer.usage,
                    stop=answer.stop,
                )
            )

    def take_result(self, context: SessionContext, result: ToolResult) -> None:
        if self.stream.watched:
            self.stream.publish(
                ToolFinished(
                    agent=self.agent,
                    session_id=context.id,
                    call_id=result.call_id,
                    tool_name=result.tool_name,
                    status=result.status,
                )
            )

    def take_progress(self, context: SessionContext, progress: CallProgress) -> None:
        if self.stream.watched:
            self.stream.publish(
                ToolProgressed(
                    agent=self.agent,
                    session_id=context.id,
                    call_id=progress.call_id,
                    tool_name=progress.tool_name,
                    done=progress.done,
                    total=progress.total,
                )
            )

    def ask(self, context: SessionContext, approval: Approval) -> None:
        if self.stream.watched:
            self.stream.publish(
                ApprovalAsked(
                    agent=self.agent,
                    session_id=context.id,
                    approval_id=approval.id,
                    call_id=approval.call_id,
                    tool_name=approval.tool_name,
                )
            )

    def decide(self, context: SessionContext, approval: Approval, decision: Decision) -> None:
        if self.stream.watched:
            self.stream.publish(
                ApprovalDecided(
                    agent=self.agent,
                    session_id=context.id,
                    approval_id=approval.id,
                    call_id=approval.call_id,
                    tool_name=approval.tool_name,
                    decision=word_for(decision),
                )
            )

    def end_turn(self, context: SessionContext, turn: Turn) -> None:
        if self.stream.watched:
            if isinstance(turn.control.error, LimitReached):
                self._meet_limit(context, turn.control.error)
            self.stream.publish(
                TurnEnded(
                    agent=self.agent,
                    session_id=context.id,
                    message_id=turn.message.id,
                    seconds=time.monotonic() - turn.started,
                    calls=turn.progress.calls,
                    failed=None
                    if turn.control.error is None
                    else kind_of(turn.control.error, turn.control.blame),
                )
            )

    def _meet_limit(self, context: SessionContext, error: LimitReached) -> None:
        self.stream.publish(
            LimitMet(
                agent=self.agent,
                session_id=context.id,
                limit=error.field,
                value=error.value,
                owner_agent=error.agent,
                owner_session_id=error.session_id,
            )
        )
