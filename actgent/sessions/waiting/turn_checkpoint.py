"""What a turn has done so far, and where one that is cut or waits goes on."""

from collections.abc import Iterable, Mapping

import attrs

from actgent.control.budget import NOTHING, Amounts
from actgent.control.loop_detection import is_same
from actgent.journal.records import (
    NO_LIMITS,
    Delivered,
    Finished,
    Guarded,
    Led,
    PersonAsked,
    Said,
    Spent,
    Started,
    Told,
)
from actgent.messages import NO_USAGE, Message, ToolCall, ToolResult, Usage


@attrs.define(eq=False)
class TurnProgress:
    """The counts of a turn; a checkpoint keeps the same ones, and a turn that goes on takes them over."""

    calls: int = 0
    """Model calls so far."""
    tool_calls: int = 0
    """Tool calls that are done with."""
    repairs: int = 0
    """Bad answers in a row."""
    usage: Usage = NO_USAGE
    last_call: ToolCall | None = None
    """The last tool call of those that are done with."""
    identical: int = 0
    """The times in a row that `last_call` was asked for."""
    called: list[ToolCall] | None = None
    """The last tool calls, in their order."""
    counted: str = ""
    """The answer whose calls were counted last."""

    def count_calls(self, calls: Iterable[ToolCall]) -> None:
        """Count tool calls that are done with."""
        for call in calls:
            self.tool_calls += 1
            self.identical = self.identical + 1 if is_same(call, self.last_call) else 1
            self.last_call = call
            self.remember((call,))

    def remember(self, calls: Iterable[ToolCall]) -> None:
        """Add calls to the last ones."""
        if self.called is None:
            self.called = []
        self.called.extend(calls)


@attrs.define(eq=False)
class TurnCheckpoint:
    """A turn as far as it had come when its process ended, by its journal."""

    message_id: str
    joined: tuple[Message, ...] = ()
    """Messages that the same turn answers."""
    progress: TurnProgress = attrs.field(factory=TurnProgress)
    stop: str = ""
    """Why the model stopped, if the last thing said was its answer; empty while an answer is due."""
    state_number: int = 0
    """State version at the time of the last message."""
    delivered: set[str] = attrs.field(factory=set)
    """Outcomes that handlers got."""
    told: set[str] = attrs.field(factory=set)
    """Outcomes that have a record of their own."""
    started: set[str] = attrs.field(factory=set)
    """Calls of the last answer that may have run."""
    finished: dict[str, ToolResult] = attrs.field(factory=dict)
    """Calls that have their result."""
    limits: Mapping[str, float] = NO_LIMITS
    """The bounds of the turn."""
    spent: Amounts = NOTHING
    tree_limits: Mapping[str, float] = NO_LIMITS
    """The bounds of all that it led to, if it led to anything."""
    tree_spent: Amounts = NOTHING
    charged: set[str] = attrs.field(factory=set)
    """Answers whose tool calls are counted."""
    guarded: dict[str, Guarded] = attrs.field(factory=dict)
    """What guards decided, by the ids of answers; an empty one is what the turn answers."""
    is_redacted: bool = False
    """True if the last thing said stands in the journal with other words."""
    _asked: tuple[ToolCall, ...] = ()
    """The calls of the last answer."""

    def say(self, said: Said, *, state_number: int) -> None:
        """Apply what the agent said in this turn."""
        progress = self.progress
        self.state_number = state_number
        self.stop, self.is_redacted = said.stop, said.redacted
        progress.calls, progress.repairs = said.calls, said.repairs
        progress.usage += said.usage
        if said.stop:
            self._asked = said.message.tool_calls
        if said.message.tool_results:  # its calls are done with
            self.started.clear()
            self.finished.clear()
            progress.count_calls(self._asked)
            if said.last_call is not None:
                progress.last_call, progress.identical = said.last_call, said.identical
                progress.remember(said.called or (said.last_call,))

    def pay(self, record: Spent | Led) -> None:
        """Apply what was taken from the turn's budget."""
        if record.of:
            self.charged.add(record.of)
        if isinstance(record, Led):
            self.tree_spent += Amounts.of(record)
            self.tree_limits = record.limits or self.tree_limits
        else:
            self.spent += Amounts.of(record)

    @property
    def unsettled(self) -> set[str]:
        """Calls that may have run, and left no result."""
        return self.started - self.finished.keys()

    def apply(self, record: Started | Finished | Told | Delivered | Guarded | PersonAsked) -> None:
        """Apply what became of a call or an outcome."""
        match record:
            case PersonAsked(approval=approval):  # it has not started, or ended by asking
                self.started.discard(approval.call_id)
            case Started(call_ids=call_ids):
                self.started.update(call_ids)
            case Finished(result=result):
                self.finished[result.call_id] = result
            case Told(id=outcome):
                self.told.add(outcome)
            case Delivered(ids=ids):
                self.delivered.update(ids)
            case Guarded(answer=answer):
                self.guarded[answer] = record
