"""Who waits for whom, so that a circle is found by the one who would close it.

Theory. A turn ends when all that its tools and handlers wait for has come, and a session takes its next message when
its turn has ended. So whoever waits for a session waits for all that this session waits for, and a circle never ends.
The edges of parallel tools all count, since the turn needs each of them.

A new edge closes a circle if there is a way back: from the session that is waited for to the one that waits. Both
ends look for it, an edge each in turn, and the search is over as soon as one of them has seen everything on its
side: nearly always at once, because a fresh session waits for nobody, and few wait for the one that asks.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import attrs

from actgent.errors import WaitCycle


@attrs.define(eq=False)
class WaitNode:
    """A session or an actor that waits, or is waited for."""

    name: str
    """As errors show it: `agent/session`, or the actor's name."""
    waits_for: "dict[WaitNode, int]" = attrs.field(factory=dict, repr=False)
    """How many of its tools and handlers wait for each of these."""
    awaited_by: "dict[WaitNode, int]" = attrs.field(factory=dict, repr=False)
    on_wait: Callable[[bool], object] | None = attrs.field(default=None, repr=False)
    """Is told True when it begins to wait, and False when it waits for nobody any more."""

    @property
    def is_alone(self) -> bool:
        return not (self.waits_for or self.awaited_by)


@attrs.frozen
class WayBack:
    """What came of looking for a circle."""

    path: tuple[WaitNode, ...]
    """From the one that would wait through all the others back to it; empty where there is no circle."""
    steps: int
    """How many edges were looked at."""


@contextmanager
def waiting(waiter: WaitNode, target: WaitNode) -> Iterator[None]:
    """The edge between two sessions, for as long as the block; look for a `way_back` first."""
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


def way_back(waiter: WaitNode, target: WaitNode) -> WayBack:
    """The circle that would be closed if `waiter` waited for `target`."""
    if waiter is target:
        return WayBack((waiter, waiter), 0)
    ahead: dict[WaitNode, WaitNode | None] = {target: None}
    behind: dict[WaitNode, WaitNode | None] = {waiter: None}
    forwards = _walk(target, lambda node: node.waits_for, ahead)
    backwards = _walk(waiter, lambda node: node.awaited_by, behind)
    steps = 0
    for after, before in zip(forwards, backwards, strict=False):
        steps += 2
        for met in (after, before):
            if met in ahead and met in behind:
                return WayBack((waiter, *reversed(_trail(met, ahead)), *_trail(met, behind)[1:]), steps)
    return WayBack((), steps)


def _walk(
    start: WaitNode,
    edges: Callable[[WaitNode], Iterable[WaitNode]],
    reached_from: dict[WaitNode, WaitNode | None],
) -> Iterator[WaitNode]:
    """The end of each edge that can be reached, one after the other."""
    unseen = [start]
    while unseen:
        node = unseen.pop()
        for other in edges(node):
            if other not in reached_from:
                reached_from[other] = node
                unseen.append(other)
            yield other


def _trail(node: WaitNode | None, reached_from: dict[WaitNode, WaitNode | None]) -> list[WaitNode]:
    """The way by which a node was reached, back to its beginning."""
    trail = []
    while node is not None:
        trail.append(node)
        node = reached_from[node]
    return trail


def refuse_cycle(waiter: WaitNode, target: WaitNode) -> None:
    """Refuse a wait that would never end.

    Raises:
        WaitCycle: it would not.
    """
    if waiter is target or (target.waits_for and waiter.awaited_by):
        way = way_back(waiter, target)
        if way.path:
            raise WaitCycle([node.name for node in way.path])
