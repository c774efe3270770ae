"""Waiting for the answer to what is said, and for that of a turn that people let go on."""

from collections.abc import Mapping
from contextlib import nullcontext

import trio

from actgent.agents.session import Session, context_of
from actgent.approvals import Decision
from actgent.errors import SessionMoved
from actgent.messages import Message, Reply, Sender
from actgent.runtime.approval_decisions import follow
from actgent.runtime.sessions.opener import SessionOpener
from actgent.runtime.slots import running_session, slot_lent
from actgent.sessions.context import SessionContext, host_of
from actgent.sessions.incoming import question_to
from actgent.sessions.waiting.turn_future import CallOptions, TurnFuture

from .elsewhere import moved_of
from .question import Question


async def answer_to(opener: SessionOpener, said: Question, options: CallOptions) -> Reply:
    """Say something, and wait for what comes of it; see `Agent.run`."""
    asked = address(opener, said.session)
    asker = running_session()
    future = TurnFuture(options, is_patient=asker is not None)
    future.take_limit(asker)
    with slot_lent(asked):  # before anything is said: it may be refused
        message = await send(opener, said, asked, future)
        try:
            await future.done.wait()
        except trio.Cancelled:
            await future.leave(host_of(asked if asker is None else asker))  # noqa: ASYNC102 - one shielded checkpoint
            raise
    return await _outcome(asked, future, message)


async def _outcome(asked: SessionContext, future: TurnFuture, message: Message) -> Reply:
    """What a message came to; if its session has moved, the error says under which id it is known there."""
    try:
        if future.is_sent_away and (log := asked.log) is not None:
            await log.flush()  # nothing of it comes back after a crash
        return future.outcome()
    except SessionMoved as moved:
        moved.message_id = message.id
        raise


async def resume(
    session: Session, options: CallOptions, decisions: Mapping[str, Decision], *, by: Sender | str | None
) -> Reply:
    """Decide over the calls of a session's suspended turn, and wait for its answer; see `Agent.resume`."""
    context = context_of(session)
    context.ledger().find(next(iter(decisions)), session.id)  # who comes too late is told that, and no less
    asker = running_session()
    future = TurnFuture(options, is_patient=asker is not None)
    future.take_limit(asker)
    with slot_lent(context), follow(context, future) as message:
        try:
            for approval_id, decision in decisions.items():
                await session.answer(approval_id, decision, by=by)
            if context.ledger().undecided and not context.has_moved:  # then another process knows what waits
                raise context.ledger().suspended()
            await future.done.wait()
        except trio.Cancelled:
            await future.leave(host_of(context if asker is None else asker))  # noqa: ASYNC102 - one shielded checkpoint
            raise
    return await _outcome(context, future, message)


def address(opener: SessionOpener, session: object) -> SessionContext:
    """Find the session to send a request to: the one given, or a fresh transient one.

    A fresh one belongs to the session whose turn asks, if there is one, and is closed with it.

    Raises:
        WouldDeadlock: we are in a turn of this session.
        SessionNotFound: it is another agent's.
        SessionMoved: another process has it.
    """
    if session is None:
        return opener.fresh()
    if not isinstance(session, Session):
        raise moved_of(opener, session)
    context = context_of(session)
    opener.running.lifecycle.check_not_inside(context, "run()")
    opener.running.sessions.check_member(context)
    return context


async def send(opener: SessionOpener, said: Question, context: SessionContext, future: TurnFuture) -> Message:
    """Put what is said into the agent's inbox; a fresh session is begun with it. Returns the message."""
    async with opener.beginning(context) if said.session is None else nullcontext():
        message = question_to(
            context, said.content, said.sender, said.priority, said.message_id, metadata=said.metadata
        )
        once = said.message_id is not None
        try:
            await opener.intake.accept(context, message, once=once, future=future)
        except SessionMoved as moved:
            moved.message_id = message.id
            raise
    return message
