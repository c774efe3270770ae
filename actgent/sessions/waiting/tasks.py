"""Tasks that a session gives to other agents: each is a child session with one message, and its answer goes back.

    ask       the turn waits for the answer; stopped with it
    delegate  it does not; the answer comes as a message into the asking session, and starts a turn there

With a journal both survive the process. The child's id follows from the call that asks, so a turn that goes on after
a crash finds the child instead of opening another: its answer, where it has ended, or itself, still at work.
What a task comes to stands in the child's journal behind the answer, and what it reports is accepted by the asking
session before the child's own message ends, under an id that is accepted once: it is neither lost nor told twice.
"""

import hashlib
from collections.abc import Sequence

import attrs

from actgent.control.durable_timer import DurableTimer
from actgent.control.limits import WEEK
from actgent.errors import (
    ActgentError,
    ForeignExit,
    HandlerFailed,
    kind_of,
)
from actgent.journal.records import REFUSED, Accepted, Answered, Ended, Record
from actgent.tools.outputs.results import to_text

from .turn_future import TurnFuture

MAX_TASKS = 100
"""The number of delegated tasks of one session that may be out."""
TASK_DEADLINE = WEEK
"""Seconds that a delegated task may take where nobody says."""
_MAX_ID = 200
_MAX_WORDS = 2000


@attrs.define(eq=False)
class Task:
    """What a session was opened for by another one."""

    message_id: str
    """The message that is to be answered."""
    future: TurnFuture
    parent_agent: str
    parent_id: str
    reports: bool = False
    """True: nobody waits, and the answer goes to the parent as a message."""
    name: str = ""
    """The parent's name for it, where it said so; else it is called by the id of its session."""
    is_unclaimed: bool = False
    """True: it goes on after a restart, and the turn that waits for it has not asked for it yet."""
    deadline: float = 0.0
    """Unix time in seconds at which it ends, done or not; 0 is never."""
    seconds: float = 0.0
    """The same in seconds when it was given."""


TASK_TIMER = "task"
"""The id of a session's `TaskDeadline`."""


@attrs.frozen(eq=False)
class TaskDeadline(DurableTimer):
    """When a delegated task ends that is not done by then."""

    seconds: float
    """The same in seconds when the task was given."""
    id: str = attrs.field(default=TASK_TIMER, init=False)
    is_delay: bool = attrs.field(default=True, init=False)


# --- what it came to -------------------------------------------------------------------------


def outcome_of(task: Task, error: Exception | None, blame: str = "internal") -> Answered:
    """Describe the outcome of a task in words that a model may read."""
    if error is not None:
        return Answered(message_id=task.message_id, text=safe_words(error), failed=kind_of(error, blame))
    reply = task.future.answer()
    try:
        text = to_text(reply.text if reply.data is None else reply.data)
    except (TypeError, ValueError) as wrong:
        return Answered(message_id=task.message_id, text=safe_words(wrong), failed="internal")
    shortfall = task.future.options.protocol.shortfall(reply.message_type)
    return Answered(message_id=task.message_id, text=text, shortfall=shortfall or "")


def with_shortfall(text: str, shortfall: str) -> str:
    """An answer as the asking model reads it, which is told where it is less than what was asked."""
    return f"Status: {shortfall} (not all that was asked for was done)\n\n{text}" if shortfall else text


def safe_words(error: Exception) -> str:
    """An error for a model: what actgent words itself; of anything else, which may tell secrets, the class."""
    text = str(error) if isinstance(error, ActgentError) else type(error).__name__
    return text[:_MAX_WORDS]


def own_words(error: Exception) -> str:
    """An error for people who watch: what actgent words itself, without words of foreign code in it."""
    is_ours = isinstance(error, ActgentError) and not isinstance(error, HandlerFailed | ForeignExit)
    return str(error)[:_MAX_WORDS] if is_ours else ""


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
    """Word the report of a task for the session that asked."""
    if answered.failed is None and answered.shortfall:
        return f"Task {task_id}, given to agent {agent!r}, has ended. {with_shortfall(answered.text, answered.shortfall)}"
    if answered.failed is None:
        return f"Task {task_id} was done by agent {agent!r}:\n{answered.text}"
    return f"Task {task_id}, given to agent {agent!r}, failed ({answered.failed}): {answered.text}"


def child_id_of(key: str) -> str:
    """The id of the session for a key: the key itself, unless it is longer than databases like."""
    if len(key) <= _MAX_ID:
        return key
    return (
        f"{key[:_MAX_ID]}/{hashlib.blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    )
