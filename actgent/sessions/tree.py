"""A session's place among others: above it, below it, and in the graph of those that wait for each other.

The open sessions below a session, and which of them it has to look after, without a look at the others.
"""

import typing
from typing import Generic, TypeVar

import attrs

from actgent.actors.wait_graph import WaitNode
from actgent.control.budget import Account
from actgent.journal.listing import SessionKey

from .waiting.tasks import Task


class Child(typing.Protocol):
    """A session below another one, as far as that one has to look after it."""

    @property
    def id(self) -> str: ...
    @property
    def key(self) -> SessionKey: ...
    @property
    def task(self) -> Task | None: ...


C = TypeVar("C", bound=Child)


class Children(dict[SessionKey, C], Generic[C]):
    """The contexts of the sessions below one, by their agents and ids, in order of creation."""

    __slots__ = ("asking", "reporting", "unclaimed")

    def __init__(self) -> None:
        super().__init__()
        self.reporting: set[SessionKey] = set()
        """Children whose tasks are to report what they came to."""
        self.unclaimed: dict[SessionKey, C] = {}
        """Children that an earlier process asked, and this one did not ask again when it was last looked."""
        self.asking: dict[SessionKey, C] = {}
        """Children that may ask something of people, themselves or in sessions below them; see `open_approvals`."""

    def add(self, child: C) -> None:
        self[child.key] = child
        if child.task is None:
            return
        if child.task.reports:
            self.reporting.add(child.key)
        elif child.task.is_unclaimed:
            self.unclaimed[child.key] = child

    def drop(self, child: C) -> None:
        """Forget a child; nothing happens if it is none."""
        self.pop(child.key, None)
        self.reporting.discard(child.key)
        self.unclaimed.pop(child.key, None)
        self.asking.pop(child.key, None)

    def mark_asking(self, child: C) -> bool:
        """This one may ask something of people; False where that is known, or it is none of these any more."""
        is_known = child.key in self.asking or self.get(child.key) is not child
        if not is_known:
            self.asking[child.key] = child
        return not is_known

    def tasks(self, task_id: str) -> list[C]:
        """List the children that work at the task of this id; several agents may."""
        tasks = ((child, child.task) for child in self.values())
        return [child for child, task in tasks if task is not None and (task.name or child.id) == task_id]

    def stop_report(self, child: C) -> None:
        """Stop this child's outcome from being reported."""
        if child.task is not None:
            child.task.reports = False
        self.reporting.discard(child.key)

    def take_unclaimed(self) -> list[C]:
        """Take the children that have still not been asked again; the others are not checked a second time."""
        self.unclaimed = {key: child for key, child in self.unclaimed.items() if _is_unclaimed(child)}
        return list(self.unclaimed.values())


def _is_unclaimed(child: Child) -> bool:
    return child.task is not None and child.task.is_unclaimed


@attrs.define(eq=False)
class SessionTree(Generic[C]):
    """The relations of a session; a session without any has none of these."""

    parent: C | None = None
    parent_key: SessionKey | None = None
    """The parent's key, also while the parent is not in memory."""
    root_owner: str = ""
    """The owner of the session at the top, as the journal has it; used while the parent is not in memory."""
    children: Children[C] | None = None
    task: Task | None = None
    """The task that another session opened it for, if one did."""
    accounts: tuple[Account, ...] = ()
    """Its own, if it is bounded as a whole, and those of the sessions above it that are."""
    wait_node: WaitNode | None = None
    """Its place in the graph of waits, while it waits for a session or a session waits for it."""
