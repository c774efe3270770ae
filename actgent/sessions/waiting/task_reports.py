"""What a delegated task came to: as a record, and as the text that its parent gets."""

from collections.abc import Sequence

from actgent.errors import kind_of
from actgent.errors.wording import safe_words
from actgent.journal.records import REFUSED, Accepted, Answered, Ended, Record
from actgent.support.outside_text import fence
from actgent.tools.outputs.results import to_result_text

from .tasks import Task


def outcome_of(task: Task, error: Exception | None, blame: str = "internal", *, origin: str = "") -> Answered:
    """Describe the outcome of a task in words that a model may read; `origin` is that of its session's conversation."""
    if error is not None:
        return Answered(
            message_id=task.message_id, text=safe_words(error), failed=kind_of(error, blame), origin=origin
        )
    reply = task.future.answer()
    try:
        text = to_result_text(reply.text if reply.data is None else reply.data)
    except (TypeError, ValueError) as wrong:
        return Answered(message_id=task.message_id, text=safe_words(wrong), failed="internal")
    shortfall = task.future.options.protocol.shortfall(reply.message_type)
    is_json = reply.data is not None and not isinstance(reply.data, str)
    return Answered(
        message_id=task.message_id, text=text, shortfall=shortfall or "", is_json=is_json, origin=origin
    )


def with_shortfall(text: str, shortfall: str) -> str:
    """An answer as the asking model reads it, which is told where it is less than what was asked."""
    return f"Status: {shortfall} (not all that was asked for was done)\n\n{text}" if shortfall else text


def answer_in(records: Sequence[Record]) -> Answered | None:
    """Find the outcome of a session's task in its records; None if it has not ended."""
    return next((record for record in reversed(records) if isinstance(record, Answered)), None)


def is_accepted(records: Sequence[Record], message_id: str) -> bool:
    """Return True if a session's records say that it accepted a message."""
    found = False
    for record in records:
        if isinstance(record, Accepted) and record.message.id == message_id:
            found = True
        elif isinstance(record, Ended) and record.message_id == message_id and record.failed == REFUSED:
            found = False
    return found


def report_text(agent: str, task_id: str, answered: Answered) -> str:
    """Word the report of a task for the session that asked; text that may be from outside stands between marks."""
    text = fence(answered.text, answered.origin) if answered.origin else answered.text
    if answered.failed is None and answered.shortfall:
        return (
            f"Task {task_id}, given to agent {agent!r}, has ended. {with_shortfall(text, answered.shortfall)}"
        )
    if answered.failed is None:
        return f"Task {task_id} was done by agent {agent!r}:\n{text}"
    return f"Task {task_id}, given to agent {agent!r}, failed ({answered.failed}): {text}"
