"""An agent as a server of ACP v1, the Agent Client Protocol of editors. Source: agentclientprotocol.com, schema 1.19.

Sessions belong to the user `user`, like those of `actgent chat`. Their ACP ids are their ids in the runtime.
"""

from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

import orjson
import trio

from actgent import __version__
from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.errors import ConfigurationError, SessionClosed, SessionNotFound
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.record_types import MessageAcceptedRecord
from actgent.journal.session_list_queries import Cursor, SessionFilter
from actgent.runtime.runtime import Runtime

from .client_session import OpenSession
from .content_blocks import parts_of_prompt
from .json_rpc import INVALID_PARAMS, NOT_FOUND, JSONRPCConnection, RPCError, RPCRequest, Wire

VERSION = 1
"""Version of the protocol."""
PAGE_SIZE = 50
"""Number of sessions on one page of a list."""
OWNER = "user"
"""Owner of the sessions, as in a terminal."""
TITLE_CHARS = 80
FIRST_RECORDS = 16
"""Number of records that are read to find a session's title and working directory."""
_MCP_SERVERS = (
    "mcpServers of a session are not supported: add the servers to mcp_config.json in the agent's folder"
)


class ACPServer:
    """ACP server for one client over two byte streams. See `serve_acp`."""

    def __init__(
        self,
        runtime: Runtime,
        agent: Agent,
        receive_stream: trio.abc.ReceiveStream,
        send_stream: trio.abc.SendStream,
    ) -> None:
        if runtime.journal is None:
            raise ConfigurationError(
                "ACP sessions require a journal: use open_runtime(journal='sqlite:///FILE'), or 'memory:'"
            )
        self._runtime, self._agent, self._journal = runtime, agent, runtime.journal
        self._sessions: dict[str, OpenSession] = {}
        self._has_forms = False
        self._connection = JSONRPCConnection(
            receive_stream,
            send_stream,
            handlers={
                "initialize": self._initialize,
                "authenticate": self._authenticate,
                "session/new": self._create,
                "session/load": self._load,
                "session/resume": self._resume,
                "session/list": self._list,
                "session/close": self._close,
                "session/delete": self._delete,
                "session/prompt": self._prompt,
            },
            notification_handlers={"session/cancel": self._cancel, "$/cancel_request": self._cancel_request},
        )

    async def run(self) -> None:
        """Serve the client until it closes its stream. Approvals are shown to the client, so the runtime does not log them."""
        with self._runtime.showing_approvals():
            await self._connection.run()

    async def _initialize(self, request: RPCRequest) -> Wire:
        await trio.lowlevel.checkpoint()
        capabilities = request.params.get("clientCapabilities")
        elicitation = capabilities.get("elicitation") if isinstance(capabilities, Mapping) else None
        self._has_forms = isinstance(elicitation, Mapping) and elicitation.get("form") is not None
        return {
            "protocolVersion": VERSION,
            "agentInfo": {"name": "actgent", "title": self._agent.name, "version": __version__},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": False, "sse": False},
                "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
            },
            "authMethods": [],
        }

    async def _authenticate(self, request: RPCRequest) -> Wire:
        await trio.lowlevel.checkpoint()
        raise RPCError(INVALID_PARAMS, "no authentication is needed: initialize offers no authMethods")

    # --- sessions --------------------------------------------------------------------------

    async def _create(self, request: RPCRequest) -> Wire:
        cwd = _check_session_params(request)
        session = await self._agent.create_session(OWNER)
        await self._open(session, cwd)
        return {"sessionId": session.id}

    async def _load(self, request: RPCRequest) -> Wire:
        opened = await self._open_stored(request)
        await opened.send_history()
        opened.ask_for_all()
        return {}

    async def _resume(self, request: RPCRequest) -> Wire:
        opened = await self._open_stored(request)
        opened.ask_for_all()
        return {}

    async def _open_stored(self, request: RPCRequest) -> OpenSession:
        """Open a session from the journal for this client. An unfinished turn resumes."""
        session_id, cwd = request.text("sessionId"), _check_session_params(request)
        try:
            session = await self._agent.open_session(session_id, owner=OWNER)
        except (SessionNotFound, SessionClosed):
            raise _unknown(session_id) from None
        return self._find(session.id) or await self._open(session, cwd)

    async def _open(self, session: Session, cwd: str) -> OpenSession:
        opened = OpenSession(session, cwd, self._connection, has_forms=self._has_forms)
        await self._connection.start_ready(opened.follow, self._journal)
        if (other := self._find(session.id)) is not None:  # another request was faster
            opened.close()
            return other
        self._sessions[session.id] = opened
        return opened

    def _find(self, session_id: str) -> OpenSession | None:
        """Return a session that this connection has opened; None if it is not open, or if its updates have ended."""
        opened = self._sessions.get(session_id)
        return None if opened is None or opened.is_over else opened

    async def _list(self, request: RPCRequest) -> Wire:
        cwd, cursor = request.params.get("cwd"), request.params.get("cursor")
        after = None if cursor is None else self._cursor_of(cursor)
        wanted = SessionFilter(agent=self._agent.name, owner=OWNER, roots=True)
        found = await self._journal.page(wanted, after=after, limit=PAGE_SIZE)
        sessions = [
            described
            for summary in found
            if not summary.closed and (described := await _describe(self._journal, summary)) is not None
        ]
        result: Wire = {"sessions": [each for each in sessions if cwd in (None, each["cwd"])]}
        if len(found) == PAGE_SIZE:
            result["nextCursor"] = orjson.dumps([found[-1].updated_at, found[-1].session_id]).decode()
        return result

    def _cursor_of(self, text: object) -> Cursor:
        try:
            updated_at, session_id = orjson.loads(str(text))
            return Cursor(float(updated_at), self._agent.name, str(session_id))
        except (ValueError, TypeError):
            raise RPCError(INVALID_PARAMS, "cursor must be the nextCursor of an earlier list") from None

    async def _close(self, request: RPCRequest) -> Wire:
        """Stop the turns of a session and remove it from the connection. The session stays in the journal and can be loaded."""
        await self._leave(self._open_for_request(request))
        return {}

    async def _leave(self, opened: OpenSession) -> None:
        await opened.cancel_all()
        opened.close()
        self._sessions.pop(opened.session.id, None)

    async def _delete(self, request: RPCRequest) -> Wire:
        session_id = request.text("sessionId")
        head = await self._journal.head(self._agent.name, session_id)
        if head is None or head.owner != OWNER:
            raise _unknown(session_id)
        if (opened := self._sessions.get(session_id)) is not None:
            await self._leave(opened)
        await self._runtime.delete_session(session_id, agent=self._agent.name)
        return {}

    def _open_for_request(self, request: RPCRequest) -> OpenSession:
        session_id = request.text("sessionId")
        opened = self._find(session_id)
        if opened is None:
            raise RPCError(
                NOT_FOUND, f"session {session_id!r:.200} is not open: send session/load or session/resume"
            )
        return opened

    # --- prompts ---------------------------------------------------------------------------

    def _prompt(self, request: RPCRequest) -> Awaitable[Wire]:
        """Register a prompt when its request is read, so that a later cancellation finds the prompt.

        Return an awaitable that sends the prompt and returns the result of the request.
        """
        opened, parts = self._open_for_request(request), parts_of_prompt(request.params.get("prompt"))
        return opened.answer(opened.add_prompt(request.id), parts)

    async def _cancel(self, params: Mapping[str, Any]) -> None:
        if (opened := self._find(str(params.get("sessionId")))) is not None:
            await opened.cancel_all()

    async def _cancel_request(self, params: Mapping[str, Any]) -> None:
        for opened in [*self._sessions.values()]:
            await opened.cancel_request(params.get("requestId"))


async def serve_acp(
    runtime: Runtime, agent: Agent, receive_stream: trio.abc.ReceiveStream, send_stream: trio.abc.SendStream
) -> None:
    """Serve one client of ACP v1 until it closes its stream. Turns that are then running resume when their session is loaded.

    Args:
        runtime: Runtime with a journal.
        agent: Agent of the sessions, which runs in the runtime.
        receive_stream: Stream with the lines of the client, such as standard input.
        send_stream: Stream for the lines to the client, such as standard output. Nothing else may be written to it.

    Raises:
        ConfigurationError: The runtime has no journal.
    """
    await ACPServer(runtime, agent, receive_stream, send_stream).run()


def _check_session_params(request: RPCRequest) -> str:
    """Validate the parameters of a session request, and return the working directory.

    Raises:
        RPCError: The directory is not an absolute path, or the client asks for MCP servers.
    """
    cwd = request.text("cwd")
    if not PurePath(cwd).is_absolute():
        raise RPCError(INVALID_PARAMS, "cwd must be an absolute path")
    if request.params.get("mcpServers"):
        raise RPCError(INVALID_PARAMS, _MCP_SERVERS)
    return cwd


def _unknown(session_id: str) -> RPCError:
    return RPCError(NOT_FOUND, f"unknown session {session_id!r:.200}")


async def _describe(journal: Journal, summary: SessionSummary) -> Wire | None:
    """Return a session as an entry of ACP's session list; None if an ACP client did not send its first message."""
    records = await journal.read(summary.session_id, agent=summary.agent, after=0, limit=FIRST_RECORDS)
    first = next((each.message for each in records if isinstance(each, MessageAcceptedRecord)), None)
    cwd = None if first is None else first.metadata.get("cwd")
    if first is None or not isinstance(cwd, str):
        return None
    return {
        "sessionId": summary.session_id,
        "cwd": cwd,
        "title": " ".join(first.text.split())[:TITLE_CHARS],
        "updatedAt": datetime.fromtimestamp(summary.updated_at, UTC).isoformat(),
    }
