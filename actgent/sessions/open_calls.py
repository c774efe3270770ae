"""Calls that a turn left without results in its records, when it ended: they get them where the session is made again.

Earlier versions wrote the end of a turn whose journal had failed without the results of its calls, and no provider takes
a conversation like that. The message is the same at each reading, so the journal stays as it is.
"""

from collections.abc import Iterable

from actgent.messages import Message, Sender, ToolCall
from actgent.tools.execution import Batch
from actgent.tools.registry import ToolRegistry

from .turn import TurnCheckpoint

TOOLS = Sender("tools", "tool")


def close_calls(answer: Message, calls: Iterable[ToolCall], turn: TurnCheckpoint) -> Message:
    """The results that were left out: those that stand in the records, else whether the call may have run."""
    batch = Batch(tuple(calls), ToolRegistry())
    for place, call in enumerate(batch.calls):
        if call.id in turn.finished or call.id in turn.started:
            batch.settle(place, turn.finished.get(call.id))
    return Message(
        id=f"{answer.id}/results",
        session_id=answer.session_id,
        sender=TOOLS,
        parts=batch.results(),
        priority=answer.priority,
        correlation_id=answer.correlation_id,
        causation_id=answer.causation_id,
        created_at=answer.created_at,
    )
