"""Runs that wait for one reply: to a new message, or to decisions on approvals of a suspended turn."""

from collections.abc import Mapping
from contextlib import nullcontext

import trio

from actgent.agents.session import Session, context_of
from actgent.approvals import Decision
from actgent.errors import SessionMoved
from actgent.messages import Message, Reply, Sender
from actgent.runtime.approval_decisions import follow
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.waits_between_sessions import add_sources_of_session, releasing_slot, running_session
from actgent.sessions.pending.turn_future import CallOptions, TurnFuture
from actgent.sessions.session_context import SessionContext, host_of

from .run_request import RunRequest
from .runs_on_other_cluster_nodes import moved_error


async def send_and_wait(opener: SessionOpener, request: RunRequest, options: CallOptions) -> Reply:
    """Send a message to a session and wait for the reply of its turn. Raise the same errors as `Agent.run`.

    A calling turn releases its concurrency slot during the wait. If the call is cancelled, the answering turn is stopped.
    """
    target = target_session(opener, request.session)
    caller = running_session()
    future = TurnFuture(options, waits_for_approvals=caller is not None)
    future.bind_time_limits(caller)
    with releasing_slot(target):  # before the request is sent, since the wait may be rejected
        message = await send(opener, request, target, future)
        try:
            await future.done.wait()
        except trio.Cancelled:
            await future.leave(host_of(target if caller is None else caller))  # noqa: ASYNC102 - one shielded checkpoint
            raise
        finally:
            add_sources_of_session(target)
    return await _outcome(target, future, message)


async def _outcome(context: SessionContext, future: TurnFuture, message: Message) -> Reply:
    """Return the reply of the turn that answered a message, or raise the error of the turn.

    If the message was withdrawn, first write its end to the journal, so that a restart does not process the message. If the session
    moved to another process, store the message id in the `SessionMoved` error.
    """
    try:
        if future.is_withdrawn and (log := context.log) is not None:
            await log.flush()  # so that a restart does not resume the cancelled message
        return future.outcome()
    except SessionMoved as moved:
        moved.message_id = message.id
        raise


async def resume(
    session: Session, options: CallOptions, decisions: Mapping[str, Decision], *, by: Sender | str | None
) -> Reply:
    """Decide the approvals of a suspended turn, and wait for the reply of the turn. Raise the same errors as `Agent.resume`."""
    context = context_of(session)
    context.ledger().find(
        next(iter(decisions)), session.id
    )  # raises ApprovalAlreadyDecided before the caller waits
    caller = running_session()
    future = TurnFuture(options, waits_for_approvals=caller is not None)
    future.bind_time_limits(caller)
    with releasing_slot(context), follow(context, future) as message:
        try:
            for approval_id, decision in decisions.items():
                await session.answer(approval_id, decision, by=by)
            if (
                context.ledger().undecided and not context.has_moved
            ):  # a moved session has its open approvals in another process
                raise context.ledger().suspended()
            await future.done.wait()
        except trio.Cancelled:
            await future.leave(host_of(context if caller is None else caller))  # noqa: ASYNC102 - one shielded checkpoint
            raise
        finally:
            add_sources_of_session(context)
    return await _outcome(context, future, message)


def target_session(opener: SessionOpener, session: object) -> SessionContext:
    """Return the session to which a message is sent: `session`, or a new session for this request if `session` is None.

    If a turn makes the call, the new session is a child of the session of the turn.

    Raises:
        WouldDeadlock: The call is made in a turn of the given session.
        SessionNotFound: The session belongs to another agent.
        SessionMoved: Another process owns the session.
    """
    if session is None:
        return opener.new_for_request()
    if not isinstance(session, Session):
        raise moved_error(opener, session)
    context = context_of(session)
    context.check_not_inside("run()")
    opener.running.sessions.check_member(context)
    return context


async def send(
    opener: SessionOpener, request: RunRequest, context: SessionContext, future: TurnFuture
) -> Message:
    """Enqueue the message of a request in the session `context`, and return the message.

    `future` receives the outcome. A session that was created for the request is initialized first, and ends after the message.
    """
    async with opener.single_message_block(context) if request.session is None else nullcontext():
        message = context.new_message(
            request.content,
            request.sender,
            request.priority,
            message_id=request.message_id,
            # A message with a waiting caller is never answered together with others.
            on_busy="queue" if context.on_busy == "collect" else None,
            metadata=request.metadata,
        )
        once = request.message_id is not None
        try:
            await opener.admission.accept(context, message, once=once, future=future)
        except SessionMoved as moved:
            moved.message_id = message.id
            raise
    return message
