"""What a recorded session's model was shown: summaries and cuts as they were, and nobody is asked for them."""

from collections import deque
from collections.abc import Sequence

import attrs

from actgent.journal.records import Appended, Ended, Fitting, Record, Said
from actgent.llm.base import LLM, Answer, Chat
from actgent.memory.base import Memory
from actgent.memory.short_term import SUMMARY, ShortTermMemory
from actgent.memory.summarizing import Summarizing, SummarizingView
from actgent.messages import Message
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn
from actgent.turns.calls.fitting import Assemble, ContextFitter, with_short_results
from actgent.turns.summaries import TOLD, add_summary

NEVER = 10**9
"""Tokens from which on a replay would make summaries of its own."""


def without_summaries(memory: Memory) -> Memory:
    """The same memory, which takes summaries and makes none."""
    if type(memory) is Summarizing:
        return attrs.evolve(memory, trigger=NEVER)
    return ShortTermMemory() if memory.summarizes else memory


def is_summary(message: Message) -> bool:
    """Return True for a notice that holds a summary."""
    return message.is_note and message.sender.name == SUMMARY


@attrs.define(eq=False)
class RecordedSummaries:
    """Brings the recorded summaries into a conversation, each where it stood in the recording."""

    _left: deque[Message]

    @classmethod
    def of(cls, records: Sequence[Record]) -> "RecordedSummaries":
        """Return the summaries of a recording."""
        return cls(
            deque(each.message for each in records if isinstance(each, Said) and is_summary(each.message))
        )

    def bring(self, context: SessionContext, turn: Turn) -> None:
        """Add the next summary if the conversation has as many messages as it had then."""
        conversation = context.conversation
        view = conversation.view
        if not self._left or not isinstance(view, SummarizingView):
            return
        place = int(self._left[0].id.rpartition("/")[2])
        if len(conversation.messages) >= place:
            summary = self._left.popleft()
            view.ready = int(summary.causation_id or 0), summary.text.removeprefix(TOLD)
            add_summary(context, turn)


@attrs.define(eq=False)
class RecordedFitter(ContextFitter):
    """Cuts each request as it was cut then, and no other."""

    _left: deque[Fitting | None] = attrs.field(factory=deque, kw_only=True)
    """Of the calls that are still to come."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> "RecordedFitter | None":
        """The fitter of a recording; None where nothing was cut."""
        found: deque[Fitting | None] = deque()
        is_due = False
        for record in records:
            match record:
                case Said() if record.stop:
                    found.append(record.fitting)
                    is_due = False
                case Said() | Appended():
                    is_due = True
                case Ended() if is_due and record.failed is not None:
                    found.append(None)
                    is_due = False
        return cls(left=found) if any(found) else None

    def note(self, context: SessionContext, llm: LLM, chat: Chat, answer: Answer) -> None:
        """Nothing is counted: what was cut is known."""

    async def fit(
        self, context: SessionContext, turn: Turn, llm: LLM, chat: Chat, assemble: Assemble
    ) -> Chat:
        fitting = turn.answer.fitting = self._left.popleft() if self._left else None
        if fitting is None:
            return chat
        for share in fitting.shares:
            context.conversation.view.shrink(share)
        if fitting.shares:
            chat = attrs.evolve(chat, messages=assemble())
        if fitting.shortened:
            chat = attrs.evolve(chat, messages=with_short_results(context, turn, chat, fitting.shortened))
        return chat
