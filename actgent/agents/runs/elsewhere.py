"""Sessions that live in another process of the cluster: asked for there, by the words that they have here.

Nothing of this is looked at before something is refused here because it lives elsewhere, so one process pays nothing for it.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import trio

from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.errors import ConfigurationError, Fenced, SessionMoved, SessionNotFound
from actgent.journal.listing import SessionKey
from actgent.messages import Message, Reply, Usage
from actgent.protocols.base import WithOutput
from actgent.runtime.insight import need_journal, records_up_to
from actgent.runtime.sessions.leaving import check_sendable
from actgent.runtime.sessions.opener import SessionOpener
from actgent.runtime.slots import running_session
from actgent.sessions.context import Status
from actgent.sessions.restore import rebuild
from actgent.sessions.waiting.turn_future import CallOptions

from .question import Question


def agent_elsewhere(opener: SessionOpener, moved: Fenced, **given: object) -> Any:
    """The agent as other processes have it, for a session that lives there.

    Raises:
        Fenced: `moved`, as there is no other process; or as the turn that we are in has moved itself.
        ConfigurationError: what was given stays in its process.
    """
    asker = running_session()
    if opener.elsewhere is None or (asker is not None and asker.has_moved):
        raise moved
    check_sendable(given, moved)
    return opener.elsewhere.agent(opener.running.name)


def moved_of(opener: SessionOpener, session: object) -> SessionMoved:
    """Return the error of a session that another process has.

    Raises:
        ConfigurationError: it is no session.
    """
    if opener.elsewhere is None or (session_id := opener.elsewhere.id_of(session)) is None:
        raise ConfigurationError(f"session= takes a Session, not {session!r:.200}")
    return SessionMoved(opener.running.name, session_id)


async def run_elsewhere(
    opener: SessionOpener, said: Question, moved: Fenced, options: CallOptions, own: Sequence[str]
) -> Reply[Any]:
    """Say something where its session lives, or a fresh one may, and wait for the answer; see `Agent.run`.

    What was accepted before, here or there, is only waited for: the journal has it, with the options of its turn.

    Args:
        opener: Of the agent here.
        said: What is said.
        moved: Why it is not answered here.
        options: Of the run.
        own: Names of those that were given for this run alone, which cannot be sent.

    Raises:
        SessionMoved: the fresh session of this question ended there before its answer was asked for.
    """
    agent, addressed = agent_elsewhere(opener, moved), _addressed(opener, said, moved)
    if addressed["message_id"] is not None:
        with suppress(SessionNotFound):  # then it was not accepted
            return typed(await agent.outcome(addressed["session"], addressed["message_id"]), options)
    check_sendable({"sender": said.sender, **dict.fromkeys(own, True)}, moved)
    try:
        return typed(await agent.run(said.content, **addressed), options)
    except SessionNotFound:
        if said.session is None:
            raise moved from None
        raise


async def outcome_elsewhere(opener: SessionOpener, moved: SessionMoved, options: CallOptions) -> Reply[Any]:
    """Wait for what the message comes to that was being answered here when its session moved."""
    agent = agent_elsewhere(opener, moved)
    assert opener.elsewhere is not None  # noqa: S101 - there is an agent
    session = opener.elsewhere.session(opener.running.name, moved.session_id, owner="user")
    return typed(await agent.outcome(session, moved.message_id), options)


def typed(reply: Reply[Any], options: CallOptions) -> Reply[Any]:
    """A reply from another process with the value of the form that is declared here; plain data where it does not fit that."""
    if reply.data is None or not isinstance(options.protocol, WithOutput):
        return reply
    with suppress(ValueError):
        return attrs.evolve(reply, data=options.protocol.output.convert(reply.data))
    return reply


@asynccontextmanager
async def stream_elsewhere(
    opener: SessionOpener, said: Question, moved: Fenced, options: CallOptions, own: Sequence[str]
) -> AsyncGenerator[trio.abc.ReceiveChannel[Any], None]:
    """Say something where its session lives, and read what comes of it; see `Agent.stream`."""
    agent, addressed = agent_elsewhere(opener, moved, sender=said.sender), _addressed(opener, said, moved)
    check_sendable(dict.fromkeys(own, True), moved)
    async with agent.stream(said.content, timeout=said.timeout, **addressed) as deliveries:
        yield _TypedReader(deliveries, options)


@attrs.frozen(eq=False)
class _TypedReader(trio.abc.ReceiveChannel[Any]):
    """What comes of a turn in another process, its values in the form that is declared here."""

    _deliveries: trio.abc.ReceiveChannel[Any]
    _options: CallOptions

    async def receive(self) -> Any:
        delivery = await self._deliveries.receive()
        return typed(delivery, self._options) if isinstance(delivery, Reply) else delivery

    async def aclose(self) -> None:
        await self._deliveries.aclose()


def _addressed(opener: SessionOpener, said: Question, moved: Fenced) -> dict[str, Any]:
    """The session and the id of what is said: if it may have been accepted here, it is the same message there."""
    session: Any = said.session
    known = ""
    if isinstance(moved, SessionMoved) and opener.elsewhere is not None:
        known = moved.message_id
        if isinstance(session, Session) or (session is None and known):
            owner = "user" if session is None else session.owner.name
            session = opener.elsewhere.session(opener.running.name, moved.session_id, owner=owner)
    return {
        "session": session,
        "message_id": None if session is None else known or said.message_id,
        "priority": said.priority,
        "metadata": said.metadata,
    }


# --- looked at -------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SessionView:
    """What is known of a session, all of one moment."""

    status: Status
    history: Sequence[Message]
    state: Mapping[str, Any]
    usage: Usage
    approvals: tuple[Approval, ...]
    """What it waits for, of a session that is suspended."""


async def view_session(opener: SessionOpener, session: object) -> SessionView:
    """Look at a session: one that lives here as it is, any other one as its process says, and as the journal has it.

    Raises:
        ConfigurationError: it is no session.
        SessionMoved: another process has it, and there is no way to that.
        JournalError: the journal could not be read.
    """
    if not isinstance(session, Session):
        return await _view_elsewhere(opener, moved_of(opener, session))
    try:
        return SessionView(
            status=session.status,
            history=session.history,
            state=session.state,
            usage=session.usage,
            approvals=session.approvals,
        )
    except SessionMoved as moved:
        return await _view_elsewhere(opener, moved)


async def _view_elsewhere(opener: SessionOpener, moved: SessionMoved) -> SessionView:
    if opener.elsewhere is None:
        raise moved
    there = opener.elsewhere.session(moved.agent, moved.session_id, owner="user")
    status = await there.status()
    waiting = await there.approvals() if status == "suspended" else ()
    key = SessionKey(moved.agent, moved.session_id)
    found = await rebuild(await records_up_to(need_journal(opener.running.journal), key, None))
    return SessionView(
        status=status, history=found.history, state=found.state, usage=found.usage, approvals=waiting
    )
