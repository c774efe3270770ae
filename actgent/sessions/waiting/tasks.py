"""Tasks that a session gives to other agents: each is a child session with one message, and its answer goes back.

    ask       the turn waits for the answer; stopped with it
    delegate  it does not; the answer comes as a message into the asking session, and starts a turn there

With a journal both survive. The child's id follows from the call that asks, so a turn after a crash finds the child or its answer.
What a task comes to stands in the child's journal behind the answer, and what it reports is accepted by the asking
session before the child's own message ends, under an id that is accepted once: it is neither lost nor told twice.
"""

import hashlib

import attrs
import trio

from actgent.control.durable_timer import DurableTimer
from actgent.control.limits import WEEK

from .turn_future import TurnFuture

MAX_TASKS = 100
"""The number of delegated tasks of one session that may be out."""
TASK_DEADLINE = WEEK
"""Seconds that a delegated task may take where nobody says."""
_MAX_ID = 200


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
    is_answered: bool = False
    """True: what it came to stands in the journal since before a restart, and its session has more to answer."""
    deadline: float = 0.0
    """Unix time in seconds at which it ends, done or not; 0 is never."""
    seconds: float = 0.0
    """The same in seconds when it was given."""
    asker: str = ""
    """Who gave it, where that is a session of another pool: its pool, agent and id, with `/` between them."""

    def tell_deadline(self, now: float) -> None:
        """Have the model calls of its turn know until when what comes of it is of use; `now` is steady Unix time."""
        if self.deadline:
            self.future.wait_until(trio.current_time() + self.deadline - now)


TASK_TIMER = "task"
"""The id of a session's `TaskDeadline`."""


@attrs.frozen(eq=False)
class TaskDeadline(DurableTimer):
    """When a delegated task ends that is not done by then."""

    seconds: float
    """The same in seconds when the task was given."""
    id: str = attrs.field(default=TASK_TIMER, init=False)
    is_delay: bool = attrs.field(default=True, init=False)


def id_below(session_id: str, name: str) -> str:
    """An id of the tree of a session: what stands before the first `/` is that of the session above all."""
    return f"{session_id.partition('/')[0]}/{name}"


def child_id_of(key: str) -> str:
    """The id of the session for a key: the key itself, unless it is longer than databases like."""
    if len(key) <= _MAX_ID:
        return key
    return (
        f"{key[:_MAX_ID]}/{hashlib.blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    )


def task_key(scope: str, task_id: str) -> str:
    """The key of a delegated task that the session of this scope calls so."""
    return f"{scope}/%task/{task_id}"


def report_id_of(name: str) -> str:
    """The id of the message that tells what a task came to, by its session's scope, or its id where it has no name."""
    return f"{name}/result"
