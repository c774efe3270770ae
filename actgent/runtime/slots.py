"""A turn that waits for another session: refused where that one waits for it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from weakref import WeakValueDictionary

from actgent.actors.actor import waiting_actor
from actgent.actors.wait_graph import WaitNode, find_cycle, refuse_cycle, waiting
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn, is_inside, running_turn


class _Elsewhere(WaitNode):
    """A session of another process; its name says of which pool."""


_elsewhere: WeakValueDictionary[str, _Elsewhere] = WeakValueDictionary()
"""By their names, as long as one of them waits for something here."""


def running_session() -> SessionContext | None:
    """The session whose turn the calling task is part of; a task of one's own is part of none."""
    turn: Turn | None = running_turn.get()
    if turn is None or turn.host is None or not is_inside(turn):
        return None
    context = turn.host.sessions.get(turn.message.session_id)
    return context if isinstance(context, SessionContext) and context.turn is turn else None


@contextmanager
def slot_lent(target: SessionContext | None = None) -> Iterator[None]:
    """While a turn's tool or handler waits for another turn, its slot is another session's.

    Raises:
        WaitCycle: `target`, the session that is waited for, waits for the one whose turn this is.
    """
    turn = running_turn.get()
    host = turn.host if turn is not None else None
    if (
        turn is None or host is None or not is_inside(turn)
    ):  # a task of one's own may know the turn, and is none of it
        with nullcontext() if target is None else _awaiting_for_actor(target):
            yield
        return
    with nullcontext() if target is None else awaiting(target):
        is_lent = host.lend_slot(turn)
        try:
            yield
        finally:
            if is_lent:
                host.reclaim_slot(turn)


@contextmanager
def awaiting(target: SessionContext) -> Iterator[None]:
    """Note that the session whose turn we are in waits for another one, for as long as the block.

    Raises:
        WaitCycle: the other one waits for it, itself or through others.
    """
    waiter = running_session()
    if waiter is None:
        yield
        return
    check_cycle(waiter, target)
    try:
        with waiting(_node_of(waiter), _node_of(target)):
            yield
    finally:
        _drop_node(waiter)
        _drop_node(target)


@contextmanager
def _awaiting_for_actor(target: SessionContext) -> Iterator[None]:
    """Note that the plain actor that we are part of waits for a session.

    Raises:
        WaitCycle: the session waits for it, itself or through others.
    """
    waiter = waiting_actor()
    if waiter is None:
        yield
        return
    refuse_cycle(waiter, _node_of(target))
    try:
        with waiting(waiter, _node_of(target)):
            yield
    finally:
        _drop_node(target)


@contextmanager
def awaited_by(target: SessionContext, waiter: SessionContext | str) -> Iterator[None]:
    """Note that a session waits for another one by way of another process, for as long as the block.

    Args:
        target: The session that is waited for.
        waiter: Who waits; the name of one that is not here.

    Raises:
        WaitCycle: `target` waits for it, itself or through others.
    """
    if isinstance(waiter, str):
        node: WaitNode = _elsewhere.setdefault(waiter, _Elsewhere(waiter))
    else:
        node = _node_of(waiter)
    refuse_cycle(node, _node_of(target))
    try:
        with waiting(node, _node_of(target)):
            yield
    finally:
        _drop_node(target)
        if not isinstance(waiter, str):
            _drop_node(waiter)


def names_of_waiters(context: SessionContext, *, prefix: str) -> tuple[str, ...]:
    """The names of a session and of all that wait for it, with this before those of this process."""
    names, seen, unseen = [f"{prefix}{context.agent}/{context.id}"], set[WaitNode](), [context.wait_node]
    while unseen:
        node = unseen.pop()
        for each in () if node is None else node.awaited_by:
            if each not in seen:
                seen.add(each)
                unseen.append(each)
                names.append(each.name if isinstance(each, _Elsewhere) else f"{prefix}{each.name}")
    return tuple(names)


def find_waiter() -> WaitNode | None:
    """The session whose turn the calling task is part of, or else the plain actor."""
    context = running_session()
    return waiting_actor() if context is None else _node_of(context)


def would_wait_for_itself(target: SessionContext) -> bool:
    """Return True if the session whose turn we are in would wait for itself if it waited for `target`."""
    waiter = running_session()
    if waiter is None or waiter.wait_node is None:
        return waiter is target
    return target.wait_node is not None and bool(find_cycle(waiter.wait_node, target.wait_node).path)


def check_cycle(waiter: SessionContext, target: SessionContext) -> None:
    """Refuse a wait that would never end.

    Raises:
        WaitCycle: it would not.
    """
    if waiter is target or (waiter.wait_node is not None and target.wait_node is not None):
        refuse_cycle(_node_of(waiter), _node_of(target))


def _node_of(context: SessionContext) -> WaitNode:
    tree = context.tree
    if tree.wait_node is None:
        tree.wait_node = WaitNode(f"{context.agent}/{context.id}")
    return tree.wait_node


def _drop_node(context: SessionContext) -> None:
    """A session that has nothing to do with waits holds nothing for them."""
    if context.wait_node is not None and context.wait_node.is_alone:
        context.tree.wait_node = None
