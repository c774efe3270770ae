"""Relations of a session to others: parent, children, task, budget accounts, and node in the wait graph."""

import typing
from typing import Generic, TypeVar

import attrs

from actgent.actors.wait_graph import WaitNode
from actgent.journal.session_list_queries import SessionKey
from actgent.limits_and_schedules.budget import Account
from actgent.messages import Sender
from actgent.support.attrs_class_repr import FieldRepr

from .pending.delegated_tasks import Task


class Child(typing.Protocol):
    """Interface of a child session, as `Children` uses it."""

    @property
    def id(self) -> str: ...
    @property
    def key(self) -> SessionKey: ...
    @property
    def task(self) -> Task | None: ...


C = TypeVar("C", bound=Child)


class Children(dict[SessionKey, C], Generic[C]):
    """Open child sessions of a session by key, in order of creation, with indexes of children with tasks and approvals."""

    __slots__ = ("asking", "reporting", "unclaimed")

    def __init__(self) -> None:
        super().__init__()
        self.reporting: set[SessionKey] = set()
        """Keys of children whose task outcomes must be reported to this session."""
        self.unclaimed: dict[SessionKey, C] = {}
        """Children with restored tasks that no resumed turn has requested again."""
        self.asking: dict[SessionKey, C] = {}
        """Children that may have open approvals, themselves or in their descendants; see `open_approvals`."""

    def add(self, child: C) -> None:
        self[child.key] = child
        if child.task is None:
            return
        if child.task.reports:
            self.reporting.add(child.key)
        elif child.task.is_unclaimed:
            self.unclaimed[child.key] = child

    def drop(self, child: C) -> None:
        """Remove a child from the table and its indexes; an unknown child is ignored."""
        self.pop(child.key, None)
        self.reporting.discard(child.key)
        self.unclaimed.pop(child.key, None)
        self.asking.pop(child.key, None)

    def mark_may_have_approvals(self, child: C) -> bool:
        """Mark a child session, so that searches for open approvals visit it. Return False if it is already marked or unknown."""
        is_known = child.key in self.asking or self.get(child.key) is not child
        if not is_known:
            self.asking[child.key] = child
        return not is_known

    def tasks(self, task_id: str) -> list[C]:
        """Return the child sessions that work on the task `task_id`. Several agents may work on one task."""
        tasks = ((child, child.task) for child in self.values())
        return [child for child, task in tasks if task is not None and (task.name or child.id) == task_id]

    def stop_report(self, child: C) -> None:
        """Declare that the outcome of a child's task is not reported to this session any more."""
        if child.task is not None:
            child.task.reports = False
        self.reporting.discard(child.key)

    def find_unclaimed(self) -> list[C]:
        """Return the restored child sessions whose tasks no resumed turn of this session has requested again."""
        self.unclaimed = {key: child for key, child in self.unclaimed.items() if _is_unclaimed(child)}
        return list(self.unclaimed.values())


def _is_unclaimed(child: Child) -> bool:
    return child.task is not None and child.task.is_unclaimed


@attrs.define(eq=False, repr=False)
class SessionTree(FieldRepr, Generic[C]):
    """Relations of a session to other sessions. The object exists only for sessions that have such relations."""

    parent: C | None = None
    """Parent session, if it is in memory; None otherwise."""
    parent_key: SessionKey | None = None
    """Key of the parent session, in memory or not; None without a parent."""
    root_owner: Sender | None = None
    """Owner of the topmost parent session, from the journal. Used while the parent is not in memory; None if unknown."""
    children: Children[C] | None = None
    """Open child sessions; None if the session never had any."""
    task: Task | None = None
    """Task that the session works on for its parent; None without a task."""
    accounts: tuple[Account, ...] = ()
    """Budget accounts of the session's own limits and of its parents' limits."""
    wait_node: WaitNode | None = None
    """Node of the session in the graph of sessions that wait for each other; None if the session is not in the graph."""
