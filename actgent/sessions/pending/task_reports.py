"""Outcomes of delegated tasks: as journal records, and as report texts for the parent session."""

from collections.abc import Sequence
from functools import partial

from actgent.errors import kind_of
from actgent.errors.safe_error_texts import model_error_text
from actgent.journal.record_types import (
    REFUSED,
    MessageAcceptedRecord,
    MessageEndRecord,
    Record,
    TaskOutcomeRecord,
)
from actgent.support.untrusted_text_delimiters import fence, join_origins
from actgent.tools.outputs.result_text import to_result_text

from .delegated_tasks import Task


def outcome_of(
    task: Task, error: Exception | None, blame: str = "internal", *, origin: str = "", via: str = ""
) -> TaskOutcomeRecord:
    """Return the record of a task's outcome, with a text for the model of the parent session.

    Args:
        task: The task that has ended.
        error: Exception of a failed task; None if the task was answered.
        blame: Failure kind if the exception does not determine it.
        origin: Names of untrusted sources whose text the answer may repeat.
        via: Names of untrusted sources that influenced the answer, although it does not repeat their text.
    """
    if error is not None:
        return TaskOutcomeRecord(
            message_id=task.message_id,
            text=model_error_text(error),
            failed=kind_of(error, blame),
            origin=origin,
            via=via,
        )
    reply = task.future.answer()
    make_record = partial(
        TaskOutcomeRecord,
        message_id=task.message_id,
        origin=join_origins(origin, reply.origin),
        via=join_origins(via, reply.via),
    )
    try:
        text = to_result_text(reply.text if reply.data is None else reply.data)
    except (TypeError, ValueError) as wrong:
        return make_record(text=model_error_text(wrong), failed="internal")
    shortfall = task.future.options.protocol.shortfall(reply.message_type)
    is_json = reply.data is not None and not isinstance(reply.data, str)
    return make_record(text=text, shortfall=shortfall or "", is_json=is_json)


def with_status_line(text: str, shortfall: str) -> str:
    """Return the text of an answer. If the answer is incomplete, begin with a line that contains its status.

    `shortfall` is the status, such as `partial`; it is empty for a complete answer.
    """
    return f"Status: {shortfall} (not all that was asked for was done)\n\n{text}" if shortfall else text


def answer_in(records: Sequence[Record]) -> TaskOutcomeRecord | None:
    """Return the outcome of a delegated task from the records of its session; None if the task has not ended."""
    return next((record for record in reversed(records) if isinstance(record, TaskOutcomeRecord)), None)


def is_accepted(records: Sequence[Record], message_id: str) -> bool:
    """Return True if the records of a session show that a message was accepted and not rejected afterwards."""
    found = False
    for record in records:
        if isinstance(record, MessageAcceptedRecord) and record.message.id == message_id:
            found = True
        elif (
            isinstance(record, MessageEndRecord)
            and record.message_id == message_id
            and record.failed == REFUSED
        ):
            found = False
    return found


def report_text(agent: str, task_id: str, answered: TaskOutcomeRecord) -> str:
    """Return the text that reports a task's outcome to the parent session. Untrusted text is enclosed in delimiters."""
    text = fence(answered.text, answered.origin) if answered.origin else answered.text
    if answered.failed is None and answered.shortfall:
        return f"Task {task_id}, given to agent {agent!r}, has ended. {with_status_line(text, answered.shortfall)}"
    if answered.failed is None:
        return f"Task {task_id} was done by agent {agent!r}:\n{text}"
    return f"Task {task_id}, given to agent {agent!r}, failed ({answered.failed}): {text}"
