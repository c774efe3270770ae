"""Notices enter the record: see `actgent.modes.notices`."""

from collections.abc import Sequence

from actgent.journal.records import Said
from actgent.messages import Message, Sender, Text
from actgent.modes.notices import Notice, NoticeSource
from actgent.sessions.context import SessionContext


def add_notices(
    context: SessionContext, sources: Sequence[NoticeSource], *, calls: int = 0, repairs: int = 0
) -> bool:
    """Write what is due into the record; returns whether anything was. `calls` and `repairs` are the counts of the turn that runs."""
    is_due = False
    for source in sources:
        for notice in source.due(context.seen_state, context.conversation.last_notice(source.name)):
            said = _to_message(context, source, notice)
            context.conversation.append(said)
            if context.log is not None:
                context.log.add(Said(message=said, calls=calls, repairs=repairs))
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
