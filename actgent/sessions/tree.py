"""A session's place among others: above it, below it, and in the graph of those that wait for each other."""

from typing import Generic, TypeVar

import attrs

from actgent.actors.wait_graph import WaitNode
from actgent.control.budget import Account
from actgent.journal.listing import SessionKey

from .children import Child, Children
from .tasks import Task

C = TypeVar("C", bound=Child)


@attrs.define(eq=False)
class SessionTree(Generic[C]):
    """The relations of a session; a session without any has none of these."""

    parent: C | None = None
    parent_key: SessionKey | None = None
    """The parent's key, also while the parent is not in memory."""
    children: Children[C] | None = None
    task: Task | None = None
    """The task that another session opened it for, if one did."""
    accounts: tuple[Account, ...] = ()
    """Its own, if it is bounded as a whole, and those of the sessions above it that are."""
    wait_node: WaitNode | None = None
    """Its place in the graph of waits, while it waits for a session or a session waits for it."""
