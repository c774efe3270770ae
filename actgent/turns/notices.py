"""Appending of system notices to a conversation, e.g. about changed modes or tools."""

from collections.abc import Sequence

from actgent.journal.records import AgentMessageRecord
from actgent.messages import Message, Sender, Text
from actgent.modes.notices import Notice, NoticeSource
from actgent.sessions.context import SessionContext


def add_notices(
    context: SessionContext, sources: Sequence[NoticeSource], *, calls: int = 0, repairs: int = 0
) -> bool:
    """Append the due notices of all sources to a conversation and its journal. Return True if a notice was due.

    `calls` and `repairs` are counters of the running turn, stored with each record.
    """
    is_due = False
    for source in sources:
        for notice in source.due(context.seen_state, context.conversation.last_notice(source.name)):
            said = _to_message(context, source, notice)
            context.conversation.append(said)
            if context.log is not None:
                context.log.add(AgentMessageRecord(message=said, calls=calls, repairs=repairs))
            is_due = True
    return is_due


def _to_message(context: SessionContext, source: NoticeSource, notice: Notice) -> Message:
    return Message(
        id=f"{source.name}/{notice.mark}/{len(context.conversation.messages)}",
        session_id=context.id,
        sender=Sender(source.name, "system"),
        parts=(Text(notice.text),),
        causation_id=notice.mark,
    )
