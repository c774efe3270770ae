"""Runs and views of sessions that another process of the cluster owns, with the API of local sessions.

The functions are called only after a local call failed with `SessionMoved`, so a single process has no overhead.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import trio

from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.errors import ConfigurationError, Fenced, SessionMoved, SessionNotFound
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Message, Reply, Usage
from actgent.protocols.protocol_interface import WithOutput
from actgent.runtime.introspection import need_journal, records_up_to
from actgent.runtime.sessions.remote_session_interface import check_sendable
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.waits_between_sessions import running_session
from actgent.sessions.pending.turn_future import CallOptions
from actgent.sessions.restore.session_loader import rebuild
from actgent.sessions.session_context import Status
from actgent.support.attrs_class_repr import FieldRepr

from .run_request import RunRequest


def remote_agent(opener: SessionOpener, moved: Fenced, **arguments: object) -> Any:
    """Return a proxy of the agent in the process that owns the session, because this process does not own it.

    `moved` is the error of the local call. `arguments` are the arguments of the call, which are sent to that process.

    Raises:
        Fenced: The error `moved`, because the process has no cluster, or because the session of the calling turn has also moved.
        ConfigurationError: An argument cannot be sent to another process.
    """
    caller = running_session()
    if opener.remote_sessions is None or (caller is not None and caller.has_moved):
        raise moved
    check_sendable(arguments, moved)
    return opener.remote_sessions.agent(opener.running.name)


def moved_error(opener: SessionOpener, session: object) -> SessionMoved:
    """Return the `SessionMoved` error for `session`, the handle of a session that another process owns.

    The caller raises the error, and the call is repeated in the process that owns the session.

    Raises:
        ConfigurationError: The value is not a handle of a remote session.
    """
    if opener.remote_sessions is None or (session_id := opener.remote_sessions.id_of(session)) is None:
        hint = ": write session=await agent.open_session(session_id)" if isinstance(session, str) else ""
        raise ConfigurationError(f"session= must be a Session, not {session!r:.200}{hint}")
    return SessionMoved(opener.running.name, session_id)


async def run_remotely(
    opener: SessionOpener,
    request: RunRequest,
    moved: Fenced,
    options: CallOptions,
    run_options: Sequence[str],
) -> Reply[Any]:
    """Send a message to the process that owns its session, and wait for the answer.

    If the message was accepted before, in this process or in the other one, only wait for its outcome.

    Args:
        opener: Session opener of the local agent.
        request: Message and session.
        moved: Error of the local call: another process owns the session.
        options: Options of the run.
        run_options: Names of the options that were passed for this run, which cannot be sent.

    Raises:
        SessionMoved: The session that was created for the request was closed before its outcome could be read.
        ActgentError: The error of the `Failure` that ended the turn.
    """
    agent, addressed = remote_agent(opener, moved), _remote_arguments(opener, request, moved)
    if addressed["message_id"] is not None:
        with suppress(SessionNotFound):  # the message was never accepted
            return convert_reply(await agent.outcome(addressed["session"], addressed["message_id"]), options)
    check_sendable({"sender": request.sender, **dict.fromkeys(run_options, True)}, moved)
    try:
        return convert_reply(await agent.run(request.content, **addressed), options)
    except SessionNotFound:
        if request.session is None:
            raise moved from None
        raise


async def remote_outcome(opener: SessionOpener, moved: SessionMoved, options: CallOptions) -> Reply[Any]:
    """Wait for the outcome of a message whose session moved to another process during its turn."""
    agent = remote_agent(opener, moved)
    assert opener.remote_sessions is not None  # noqa: S101 - `remote_agent` has checked it
    session = opener.remote_sessions.session(opener.running.name, moved.session_id, owner="user")
    return convert_reply(await agent.outcome(session, moved.message_id), options)


def convert_reply(reply: Reply[Any], options: CallOptions) -> Reply[Any]:
    """Convert the data of another process's reply to the declared output type. Data that does not match the type stays plain."""
    if reply.data is None or not isinstance(options.protocol, WithOutput):
        return reply
    with suppress(ValueError):
        return attrs.evolve(reply, data=options.protocol.output.convert(reply.data))
    return reply


@asynccontextmanager
async def stream_remotely(
    opener: SessionOpener,
    request: RunRequest,
    moved: Fenced,
    options: CallOptions,
    run_options: Sequence[str],
) -> AsyncGenerator[trio.abc.ReceiveChannel[Any], None]:
    """Send a message to the process that owns its session, and receive the deliveries; see `Agent.stream`."""
    agent, addressed = (
        remote_agent(opener, moved, sender=request.sender),
        _remote_arguments(opener, request, moved),
    )
    check_sendable(dict.fromkeys(run_options, True), moved)
    async with agent.stream(request.content, timeout=request.timeout, **addressed) as deliveries:
        yield _TypedReader(deliveries, options)


@attrs.frozen(eq=False, repr=False)
class _TypedReader(FieldRepr, trio.abc.ReceiveChannel[Any]):
    """Receive channel that converts the replies of another process to the declared output type."""

    _deliveries: trio.abc.ReceiveChannel[Any]
    _options: CallOptions

    async def receive(self) -> Any:
        delivery = await self._deliveries.receive()
        return convert_reply(delivery, self._options) if isinstance(delivery, Reply) else delivery

    async def aclose(self) -> None:
        await self._deliveries.aclose()


def _remote_arguments(opener: SessionOpener, request: RunRequest, moved: Fenced) -> dict[str, Any]:
    """Return the arguments of `run` for a request that is sent to the process that owns the session.

    If this process may have accepted the message before the session moved, the arguments contain the id of the message. So the
    message is processed only once.
    """
    target: Any = request.session
    accepted_id = ""
    if isinstance(moved, SessionMoved) and opener.remote_sessions is not None:
        accepted_id = moved.message_id
        if isinstance(target, Session) or (target is None and accepted_id):
            owner = "user" if target is None else target.owner.name
            target = opener.remote_sessions.session(opener.running.name, moved.session_id, owner=owner)
    return {
        "session": target,
        "message_id": None if target is None else accepted_id or request.message_id,
        "priority": request.priority,
        "metadata": request.metadata,
    }


# --- snapshots -------------------------------------------------------------------------


@attrs.frozen(kw_only=True, repr=False)
class SessionView(FieldRepr):
    """Snapshot of a session, local or remote."""

    status: Status
    """Status of the session."""
    history: Sequence[Message]
    """Messages of the session, oldest first."""
    state: Mapping[str, Any]
    """State of the session."""
    usage: Usage
    """Tokens and cost of the session."""
    approvals: tuple[Approval, ...]
    """Open approvals and calls of the caller's tools; empty unless the session is suspended."""


async def view_session(opener: SessionOpener, session: object) -> SessionView:
    """Return a snapshot of a session: from memory, or from the process that owns it and the journal.

    Raises:
        ConfigurationError: The value is not a session.
        SessionMoved: Another process owns the session, and this process has no cluster.
        JournalError: The journal cannot be read.
    """
    if not isinstance(session, Session):
        return await _view_remotely(opener, moved_error(opener, session))
    try:
        return SessionView(
            status=session.status,
            history=session.history,
            state=session.state,
            usage=session.usage,
            approvals=(*session.approvals, *session.caller_calls),
        )
    except SessionMoved as moved:
        return await _view_remotely(opener, moved)


async def _view_remotely(opener: SessionOpener, moved: SessionMoved) -> SessionView:
    if opener.remote_sessions is None:
        raise moved
    there = opener.remote_sessions.session(moved.agent, moved.session_id, owner="user")
    status = await there.status()
    waiting = await there.approvals() if status == "suspended" else ()
    key = SessionKey(moved.agent, moved.session_id)
    found = await rebuild(await records_up_to(need_journal(opener.running.journal), key, None))
    return SessionView(
        status=status, history=found.history, state=found.state, usage=found.usage, approvals=waiting
    )
