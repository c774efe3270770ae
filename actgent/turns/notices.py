"""Notes enter the record: see `actgent.modes.notices`."""

from collections.abc import Sequence

from actgent.journal.records import Said
from actgent.messages import Message, Sender, Text
from actgent.modes.notices import Note, NoteSource
from actgent.sessions.context import SessionContext


def tell_notes(
    context: SessionContext, sources: Sequence[NoteSource], *, calls: int = 0, repairs: int = 0
) -> None:
    """Write what is due into the record; `calls` and `repairs` are the counts of the turn that runs."""
    for source in sources:
        for note in source.due(context.seen_state, context.conversation.last_notice(source.name)):
            said = _to_message(context, source, note)
            context.conversation.append(said)
            if context.log is not None:
                context.log.note(Said(message=said, calls=calls, repairs=repairs))


def _to_message(context: SessionContext, source: NoteSource, note: Note) -> Message:
    return Message(
        id=f"{source.name}/{note.mark}/{len(context.conversation.messages)}",
        session_id=context.id,
        sender=Sender(source.name, "system"),
        parts=(Text(note.text),),
        causation_id=note.mark,
    )
