"""Waits between sessions: release of the waiting turn's concurrency slot, and detection of deadlocks."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from weakref import WeakValueDictionary

from actgent.actors.actor import running_actor, waiting_actor
from actgent.actors.wait_graph import WaitNode, find_cycle, reject_cycle, waiting
from actgent.information_flow_labels import TRUSTED, Label, text_of
from actgent.sessions.session_context import (
    SessionContext,
    Turn,
    TurnHost,
    is_inside,
    running_turn,
    sources_of_turn,
)
from actgent.support.untrusted_text_delimiters import join_origins
from actgent.tools.untrusted_sources_of_call import running_call, sources_outside_of_turns


class _RemoteNode(WaitNode):
    """Wait-graph node of a session in another process; the node's name includes the pool."""


_remote_nodes: WeakValueDictionary[str, _RemoteNode] = WeakValueDictionary()
"""Wait-graph nodes of remote sessions that wait for a session in this process, by session name."""
_NOTHING_LENT = nullcontext()
ANY_SESSION = Label({"sessions"}, readers=())
"""Label of text that comes from sessions with unknown labels: the source `sessions`, and no permitted readers."""


def running_session() -> SessionContext | None:
    """Return the session whose turn the calling task belongs to; None for other tasks."""
    turn: Turn | None = running_turn.get()
    if turn is None or turn.host is None or not is_inside(turn):
        return None
    context = turn.host.sessions.get(turn.message.session_id)
    return context if isinstance(context, SessionContext) and context.turn is turn else None


def sources_of_caller() -> str:
    """Return the untrusted sources that may have influenced the calling turn, as text for the label of a message that it sends.

    Outside of turns, return the sources of the incoming request.
    """
    turn = running_turn.get()
    return sources_outside_of_turns() if turn is None else sources_of_turn(turn)


def add_sources_of_session(target: SessionContext) -> None:
    """Add the untrusted sources of the session `target` to the label of the calling turn, which has read an answer of `target`."""
    turn = running_turn.get()
    if turn is None or turn.session is not target:
        revealed = join_origins(target.conversation.revealed, target.shown_sources)
        _add_sources_to_caller(join_origins(target.conversation.sources, revealed))


def add_withheld_sources(sources: str) -> None:
    """Add untrusted sources to the label of the calling turn, although isolation hides their text from the model.

    The code that runs in the turn can still react to the hidden text. `sources` has the form of `Message.origin`.
    """
    if sources:
        _add_sources_to_caller(sources)


def add_remote_label(label: Label) -> None:
    """Add the label of an answer or message from another process to the label of the calling turn."""
    if label != TRUSTED:
        _add_sources_to_caller(text_of(label))


def add_unknown_session_source() -> None:
    """Add the source `sessions` to the label of the calling turn, which reads texts of sessions with unknown labels.

    The permitted readers of these texts are also unknown. So no owner may read values that depend on them.
    """
    add_remote_label(ANY_SESSION)


def collects_sources() -> bool:
    """Return True if the calling task belongs to a turn or a tool call, or was started by one. It then collects untrusted sources."""
    return running_turn.get() is not None or running_call.get() is not None


def _add_sources_to_caller(sources: str) -> None:
    """Add untrusted sources to the turn that runs or has started the calling task.

    After the end of the turn, store them in `late_sources`: only messages that the task sends depend on them, not the session.
    """
    turn = running_turn.get()
    running = running_call.get()
    if turn is None or turn.session.turn is turn or (running is not None and running.owner is turn.session):
        add_untrusted_sources(None if turn is None else turn.session, sources)
    else:
        turn.late_sources = join_origins(turn.late_sources, sources)


def add_untrusted_sources(context: SessionContext | None, sources: str) -> None:
    """Add untrusted sources to the label of a session, or to the label of its running tool call if the call has its own label.

    If `context` is None, add them to the running call of a tool that has no session. Outside of tool calls, do nothing then.
    """
    running = running_call.get()
    if running is not None and running.owner is context:
        running.add(sources)
    elif context is not None:
        context.conversation.add_unrecorded_via(sources)


def releasing_slot(target: SessionContext | None = None) -> AbstractContextManager[None]:
    """Return a block that releases the concurrency slot of the calling turn, while the turn waits for another turn or event.

    The wait graph shows the wait for `target`; None shows no wait. A plain actor only adds its wait to the wait graph. For other
    callers the block has no effect.

    Raises:
        DeadlockDetected: `target` waits for the session of the calling turn.
    """
    turn = running_turn.get()
    if turn is not None and turn.host is not None and is_inside(turn):
        return _releasing_slot_of_turn(turn, turn.host, target)
    # Another task of the program may have the turn in its context variables.
    if target is None or running_actor.get() is None or (waiter := waiting_actor()) is None:
        return _NOTHING_LENT
    return _recording_actor_wait(waiter, target)


@contextmanager
def _releasing_slot_of_turn(turn: Turn, host: TurnHost, target: SessionContext | None) -> Iterator[None]:
    with nullcontext() if target is None else awaiting(target):
        is_lent = host.lend_slot(turn)
        try:
            yield
        finally:
            if is_lent:
                host.reclaim_slot(turn)


@contextmanager
def awaiting(target: SessionContext) -> Iterator[None]:
    """Return a block in which the wait graph shows that the calling session waits for `target`.

    Raises:
        DeadlockDetected: `target` waits for the calling session, directly or indirectly.
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
def _recording_actor_wait(waiter: WaitNode, target: SessionContext) -> Iterator[None]:
    """Return a block in which the wait graph shows that the calling plain actor waits for the session `target`.

    Raises:
        DeadlockDetected: `target` waits for the actor, directly or indirectly.
    """
    reject_cycle(waiter, _node_of(target))
    try:
        with waiting(waiter, _node_of(target)):
            yield
    finally:
        _drop_node(target)


@contextmanager
def recording_remote_wait(target: SessionContext, waiter: SessionContext | str) -> Iterator[None]:
    """Return a block in which the wait graph shows that `waiter` waits for `target`. `waiter` may be in another process.

    Args:
        target: Session for which `waiter` waits.
        waiter: Waiting session, or the name of a session in another process.

    Raises:
        DeadlockDetected: `target` waits for `waiter`, directly or indirectly.
    """
    if isinstance(waiter, str):
        node: WaitNode = _remote_nodes.setdefault(waiter, _RemoteNode(waiter))
    else:
        node = _node_of(waiter)
    reject_cycle(node, _node_of(target))
    try:
        with waiting(node, _node_of(target)):
            yield
    finally:
        _drop_node(target)
        if not isinstance(waiter, str):
            _drop_node(waiter)


def names_of_waiters(context: SessionContext, *, prefix: str) -> tuple[str, ...]:
    """Return the names of a session and of all sessions that wait for it. Names of this process begin with `prefix`."""
    names, seen, unseen = [f"{prefix}{context.agent}/{context.id}"], set[WaitNode](), [context.wait_node]
    while unseen:
        node = unseen.pop()
        for each in () if node is None else node.awaited_by:
            if each not in seen:
                seen.add(each)
                unseen.append(each)
                names.append(each.name if isinstance(each, _RemoteNode) else f"{prefix}{each.name}")
    return tuple(names)


def find_waiter() -> WaitNode | None:
    """Return the wait-graph node of the calling session or, outside of a session, of the calling actor; None for other callers."""
    context = running_session()
    return waiting_actor() if context is None else _node_of(context)


def would_wait_for_itself(target: SessionContext) -> bool:
    """Return True if `target` is the calling session or waits for it, so that a wait for `target` would never end."""
    waiter = running_session()
    if waiter is None or waiter.wait_node is None:
        return waiter is target
    return target.wait_node is not None and bool(find_cycle(waiter.wait_node, target.wait_node).path)


def check_cycle(waiter: SessionContext, target: SessionContext) -> None:
    """Raise if the wait of `waiter` for `target` would never end.

    Raises:
        DeadlockDetected: `target` waits for `waiter`, directly or indirectly.
    """
    if waiter is target or (waiter.wait_node is not None and target.wait_node is not None):
        reject_cycle(_node_of(waiter), _node_of(target))


def _node_of(context: SessionContext) -> WaitNode:
    tree = context.open_tree()
    if tree.wait_node is None:
        tree.wait_node = WaitNode(f"{context.agent}/{context.id}")
    return tree.wait_node


def _drop_node(context: SessionContext) -> None:
    """Remove the wait-graph node of a session if the session waits for none, and no session waits for it."""
    tree = context.tree
    if tree is not None and tree.wait_node is not None and tree.wait_node.is_alone:
        tree.wait_node = None
