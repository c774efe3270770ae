"""Summaries and shortened requests of a recorded session, which a replay repeats without model calls."""

from collections import deque
from collections.abc import Sequence

import attrs

from actgent.journal.record_types import (
    AgentMessageRecord,
    Fitting,
    MessageAppendedRecord,
    MessageEndRecord,
    Record,
)
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse
from actgent.memory.memory_interface import Memory
from actgent.memory.short_term_memory import SUMMARY, ShortTermMemory
from actgent.memory.summarizing_memory import SummarizingMemory, SummarizingView
from actgent.messages import Message
from actgent.sessions.session_context import SessionContext, Turn
from actgent.turns.calls.context_window_fitting import Assemble, ContextFitter, with_short_results
from actgent.turns.conversation_summaries import SUMMARY_HEADING, add_summary

NEVER_TOKENS = 10**9
"""Trigger in tokens that no conversation reaches, so a replay makes no summaries."""


def without_new_summaries(memory: Memory) -> Memory:
    """Return a memory that never calls a model for new summaries, for a replay.

    A `SummarizingMemory` still shows recorded summaries. Other memories that write summaries are replaced by
    `ShortTermMemory`.
    """
    if type(memory) is SummarizingMemory:
        return attrs.evolve(memory, trigger=NEVER_TOKENS)
    return ShortTermMemory() if memory.summarizes else memory


def is_summary(message: Message) -> bool:
    """Return True if the message is a system message that holds a summary of earlier messages."""
    return message.is_note and message.sender.name == SUMMARY


@attrs.define(eq=False)
class RecordedSummaries:
    """Recorded summaries of a session, which a replay adds to the conversation at their recorded positions."""

    _left: deque[Message]

    @classmethod
    def of(cls, records: Sequence[Record]) -> "RecordedSummaries":
        """Collect the recorded summaries of a session. A replay inserts these summaries at the same positions."""
        return cls(
            deque(
                each.message
                for each in records
                if isinstance(each, AgentMessageRecord) and is_summary(each.message)
            )
        )

    def bring(self, turn: Turn) -> None:
        """Add the next recorded summary to the conversation of a turn, if the conversation has reached its recorded position."""
        context = turn.session
        conversation = context.conversation
        view = conversation.current_view()
        if not self._left or not isinstance(view, SummarizingView):
            return
        position = int(self._left[0].id.rpartition("/")[2])
        if len(conversation.messages) >= position:
            summary = self._left.popleft()
            view.ready = int(summary.causation_id or 0), summary.text.removeprefix(SUMMARY_HEADING)
            add_summary(turn)


@attrs.define(eq=False)
class RecordedFitter(ContextFitter):
    """Context fitter that shortens each model request in the same way as the recording."""

    _left: deque[Fitting | None] = attrs.field(factory=deque, kw_only=True)
    """Recorded shortening of each model request that the replay has not reached yet; None for a request that was not shortened."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> "RecordedFitter | None":
        """Return a fitter that shortens each model request as in the recording; None if the recording shortened no request."""
        found: deque[Fitting | None] = deque()
        is_due = False
        for record in records:
            match record:
                case AgentMessageRecord() if record.stop:
                    found.append(record.fitting)
                    is_due = False
                case AgentMessageRecord() | MessageAppendedRecord():
                    is_due = True
                case MessageEndRecord() if is_due and record.failed is not None:
                    found.append(None)
                    is_due = False
        return cls(left=found) if any(found) else None

    def note(self, context: SessionContext, llm: LLM, chat: ModelRequest, answer: ModelResponse) -> None:
        """Ignore the model's answer, because the recording determines how later requests are shortened."""

    async def fit(self, turn: Turn, llm: LLM, chat: ModelRequest, assemble: Assemble) -> ModelRequest:
        context = turn.session
        fitting = turn.fitting = self._left.popleft() if self._left else None
        if fitting is None:
            return chat
        for share in fitting.shares:
            context.conversation.current_view().shrink(share)
        if fitting.shares:
            chat = attrs.evolve(chat, messages=assemble())
        if fitting.shortened:
            chat = attrs.evolve(chat, messages=with_short_results(turn, chat, fitting.shortened))
        return chat
