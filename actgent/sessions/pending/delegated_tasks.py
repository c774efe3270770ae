"""Tasks that a session delegates to other agents. Each task is a child session with one message.

    ask       the turn waits for the answer; if the turn is stopped, the task is also stopped
    delegate  the turn does not wait; a report message with the outcome starts a turn of the parent session

With a journal, both kinds survive restarts. The id of the child session is derived from the tool call, so a resumed turn finds the
child or its answer. The parent session accepts the report before the child's message ends, and accepts each report id once. So a
report is neither lost nor duplicated.
"""

import hashlib

import attrs
import trio

from actgent.limits_and_schedules.durable_timer import DurableTimer
from actgent.limits_and_schedules.limits import WEEK_SECONDS
from actgent.support.attrs_class_repr import FieldRepr

from .turn_future import TurnFuture

MAX_TASKS = 100
"""Maximum number of open delegated tasks of one session."""
TASK_DEADLINE_SECONDS = WEEK_SECONDS
"""Default time limit of a delegated task, in seconds."""
_MAX_ID_CHARACTERS = 200


@attrs.define(eq=False, repr=False)
class Task(FieldRepr):
    """Task that a child session works on for its parent session."""

    message_id: str
    """Id of the message that contains the task."""
    future: TurnFuture
    """Future that receives the outcome of the task."""
    parent_agent: str
    """Name of the parent session's agent."""
    parent_id: str
    """Id of the parent session."""
    reports: bool = False
    """True if the outcome is sent to the parent session as a message."""
    name: str = ""
    """Task id that the parent session chose; empty if the id of the child session is the task id."""
    is_unclaimed: bool = False
    """True if the task was restored after a restart, and no resumed turn of the parent has requested the task again yet."""
    is_answered: bool = False
    """True if the outcome of the task was recorded before a restart."""
    deadline: float = 0.0
    """Unix time in seconds at which the task is stopped; 0 means no deadline."""
    seconds: float = 0.0
    """Time limit of the task from its start in seconds."""
    asker: str = ""
    """Parent session in another pool, as `POOL/AGENT/ID`; empty for a parent in this pool."""

    def tell_deadline(self, now: float) -> None:
        """Pass the task's deadline to its future, which limits the waits and model calls of the task's turn. `now` is steady Unix time in seconds."""
        if self.deadline:
            self.future.wait_until(trio.current_time() + self.deadline - now)


TASK_TIMER = "task"
"""Timer id of `TaskDeadline`, in each session."""


@attrs.frozen(eq=False, repr=False)
class TaskDeadline(DurableTimer):
    """Durable timer that stops an unfinished task."""

    seconds: float
    """Time limit of the task in seconds, for the error text."""
    id: str = attrs.field(default=TASK_TIMER, init=False)
    is_delay: bool = attrs.field(default=True, init=False)


def id_below(session_id: str, name: str) -> str:
    """Return the id of the descendant `name` of the session `session_id`.

    Ids of descendants begin with the id of the topmost session and `/`, so one process owns the whole tree.
    """
    return f"{session_id.partition('/')[0]}/{name}"


def child_id_of(key: str) -> str:
    """Return the child session id for a key. A key that is too long is shortened to its beginning and a digest."""
    if len(key) <= _MAX_ID_CHARACTERS:
        return key
    return f"{key[:_MAX_ID_CHARACTERS]}/{hashlib.blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def task_key(scope: str, task_id: str) -> str:
    """Return the key of a delegated task, made of the scope (id prefix) of the parent session and the task id."""
    return f"{scope}/%task/{task_id}"


def report_id_of(name: str) -> str:
    """Return the id of the message that reports a task's outcome.

    `name` is the scope (id prefix) of the session that works on the task; in old journals, the id of that session.
    """
    return f"{name}/result"
