"""The wait graph: which sessions and actors wait for each other. A wait that would close a cycle is rejected.

A turn ends when all waits of its tools and handlers have ended, and a session starts its next message when its turn has
ended. So waiting for a session includes all waits of that session, and a cycle would wait for ever. The edges of parallel
tools all count, since the turn needs each result.

A new edge closes a cycle if a path leads from the target back to the waiter. The search alternates between both ends and
stops when one end has no more edges. Nearly all searches stop at once: a new session waits for no other session, and few
sessions wait for the caller.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import attrs

from actgent.errors import DeadlockDetected
from actgent.support.attrs_class_repr import FieldRepr


@attrs.define(eq=False, repr=False)
class WaitNode(FieldRepr):
    """A session or an actor as a node in the graph of waits, with edges to the nodes that it waits for."""

    name: str
    """Name in error messages: `agent/session`, or the name of the actor."""
    waits_for: "dict[WaitNode, int]" = attrs.field(factory=dict, repr=False)
    """Number of tools and handlers of this node that wait for another node, by the awaited node."""
    awaited_by: "dict[WaitNode, int]" = attrs.field(factory=dict, repr=False)
    on_wait: Callable[[bool], object] | None = attrs.field(default=None, repr=False)
    """Called with True when the first wait of this node begins, and with False when its last wait ends."""

    @property
    def is_alone(self) -> bool:
        """True if the node neither waits for other nodes nor is awaited."""
        return not (self.waits_for or self.awaited_by)


@attrs.frozen(repr=False)
class CycleSearch(FieldRepr):
    """Result of a search for a cycle."""

    path: tuple[WaitNode, ...]
    """Nodes of the cycle, from the waiter back to the waiter. Empty if there is no cycle."""
    steps: int
    """Number of edges that were visited."""


@contextmanager
def waiting(waiter: WaitNode, target: WaitNode) -> Iterator[None]:
    """Record for the block that `waiter` waits for `target`. Call `reject_cycle` first.

    The first wait of a node releases its concurrency slot, and the end of its last wait acquires the slot
    again.
    """
    if waiter.on_wait is not None and not waiter.waits_for:
        waiter.on_wait(True)  # noqa: FBT003 - its only argument
    _count(waiter.waits_for, target, 1)
    _count(target.awaited_by, waiter, 1)
    try:
        yield
    finally:
        _count(waiter.waits_for, target, -1)
        _count(target.awaited_by, waiter, -1)
        if waiter.on_wait is not None and not waiter.waits_for:
            waiter.on_wait(False)  # noqa: FBT003 - as above


def _count(edges: dict[WaitNode, int], other: WaitNode, change: int) -> None:
    edges[other] = edges.get(other, 0) + change
    if not edges[other]:
        del edges[other]


def find_cycle(waiter: WaitNode, target: WaitNode) -> CycleSearch:
    """Search for a cycle of waits that would arise if `waiter` also waited for `target`.

    The path is empty without a cycle.
    """
    if waiter is target:
        return CycleSearch((waiter, waiter), 0)
    ahead: dict[WaitNode, WaitNode | None] = {target: None}
    behind: dict[WaitNode, WaitNode | None] = {waiter: None}
    forwards = _walk(target, lambda node: node.waits_for, ahead)
    backwards = _walk(waiter, lambda node: node.awaited_by, behind)
    steps = 0
    for after, before in zip(forwards, backwards, strict=False):
        steps += 2
        for met in (after, before):
            if met in ahead and met in behind:
                return CycleSearch(
                    (waiter, *reversed(_path_from_start(met, ahead)), *_path_from_start(met, behind)[1:]),
                    steps,
                )
    return CycleSearch((), steps)


def _walk(
    start: WaitNode,
    edges: Callable[[WaitNode], Iterable[WaitNode]],
    reached_from: dict[WaitNode, WaitNode | None],
) -> Iterator[WaitNode]:
    """Traverse the graph from `start`, and yield each node that an edge leads to, also repeatedly.

    `reached_from` receives the predecessor of each newly found node.
    """
    unseen = [start]
    while unseen:
        node = unseen.pop()
        for other in edges(node):
            if other not in reached_from:
                reached_from[other] = node
                unseen.append(other)
            yield other


def _path_from_start(node: WaitNode | None, reached_from: dict[WaitNode, WaitNode | None]) -> list[WaitNode]:
    """Return the nodes from `node` back to the start of a search, in this order.

    `reached_from` has the predecessor of each node; that of the start is None.
    """
    path = []
    while node is not None:
        path.append(node)
        node = reached_from[node]
    return path


def reject_cycle(waiter: WaitNode, target: WaitNode) -> None:
    """Check that a wait of `waiter` for `target` would not be a deadlock.

    Raises:
        DeadlockDetected: The target waits for the waiter, directly or through other nodes.
    """
    if waiter is target or (target.waits_for and waiter.awaited_by):
        found = find_cycle(waiter, target)
        if found.path:
            raise DeadlockDetected([node.name for node in found.path])
