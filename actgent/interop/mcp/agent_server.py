"""MCP server whose tools are the agents of a runtime, for the revisions 2026-07-28 and 2025-11-25."""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import mcp_types as types
import trio
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from actgent import __version__
from actgent.approvals import Approval, Decision
from actgent.errors import ActgentError, ConfigurationError, ToolError
from actgent.interop.approval_forms import decision_of, form_of, question_text
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import SessionKey
from actgent.runtime.agent_directory import AgentCard
from actgent.runtime.runtime import Runtime
from actgent.support.safe_logging import logger_of
from actgent.web.problem_documents import public_text

from .agent_call import MESSAGE_ID, AgentCall, CallAnswer, CallState, Questions, agent_tool_name
from .catalog import MCPCatalog
from .catalog_server import LIST_MILLISECONDS, CatalogServer
from .client_questions import Context, MCPCaller
from .content_blocks import call_label, meta_of

OWNER = "user"
"""Owner of the sessions of a client that has no token, as in a terminal."""
STATE_SECONDS = 86_400.0
"""Seconds for which the state of an open question is accepted."""
_log = logger_of(__name__)
_SESSION_ID = r"^[A-Za-z0-9._-]{1,128}$"
_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "minLength": 1, "description": "Message to the agent"},
        "session_id": {
            "type": "string",
            "pattern": _SESSION_ID,
            "description": "Id of a conversation that continues; without it, the agent knows no earlier message",
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}

OwnerOf = Callable[[Context], str]


def _local_user(_: Context) -> str:
    return OWNER


def make_mcp_server(
    runtime: Runtime,
    *,
    owner_of: OwnerOf = _local_user,
    may_decide: Callable[[Context], bool] | None = None,
    on_message: Callable[[Context, SessionKey], None] | None = None,
    catalog: MCPCatalog | None = None,
    state_key: bytes | None = None,
) -> Server[Any]:
    """Create a server of the MCP SDK with one tool for each agent of the runtime. Run it with `serve_mcp`, or mount its ASGI app.

    Args:
        runtime: Runtime with a journal and with the agents.
        owner_of: Returns the owner of the sessions for a request. The default is `user` for all requests.
        may_decide: Returns True if the client of a request may decide approvals; None allows all clients.
        on_message: Called with the session of each new message, after the inbox has accepted the message.
        catalog: Tools, prompts and resources to offer in addition to the agents; None offers only agents.
        state_key: Secret of at least 32 bytes that encrypts the state of open questions. Servers with the same key accept each
            other's states. None uses a random key.

    Raises:
        ConfigurationError: The runtime has no journal, or a tool of the catalog has the name of an agent.
    """
    if runtime.journal is None:
        raise ConfigurationError(
            "an MCP server requires a journal: use open_runtime(journal='sqlite:///FILE') or 'memory:'"
        )
    may_decide = may_decide or _allow_all
    listed = None if catalog is None else CatalogServer(catalog, owner_of, may_decide)
    tools = _Tools(runtime, runtime.journal, owner_of, may_decide, on_message, listed)
    tools.check_names()
    server = Server(
        "actgent",
        version=__version__,
        on_list_tools=tools.list_tools,
        on_call_tool=tools.call_tool,
        get_tool_input_schema=tools.input_schema,
        cache_hints={"tools/list": CacheHint(ttl_ms=LIST_MILLISECONDS, scope="private")},
    )
    if listed is not None:
        listed.register(server)
    security = RequestStateSecurity(keys=[state_key or os.urandom(32)], ttl=STATE_SECONDS)
    security.bind_principal = owner_of
    server.middleware.append(RequestStateBoundary(security, default_audience=server.name))
    return server


def _allow_all(_: Context) -> bool:
    return True


@attrs.frozen
class _Tools:
    """Handlers of the MCP server for listing and calling tools."""

    runtime: Runtime
    journal: Journal
    owner_of: OwnerOf
    may_decide: Callable[[Context], bool]
    on_message: Callable[[Context, SessionKey], None] | None
    listed: CatalogServer | None
    """Handlers of the catalog; None without a catalog."""

    def check_names(self) -> None:
        """Raise `ConfigurationError` if a tool of the catalog has the name of an agent."""
        names = () if self.listed is None else [each.name for each in self.listed.tools()]
        if twice := sorted(self._agents().keys() & set(names)):
            raise ConfigurationError(f"an agent and a tool of the catalog have the name {twice[0]!r}")

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        await trio.lowlevel.checkpoint()
        agents = self._agents()
        tools = [_tool(name, card) for name, card in agents.items()]
        if self.listed is not None:
            tools += [each for each in self.listed.tools() if each.name not in agents]
        return types.ListToolsResult(tools=tools)

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the JSON Schema of a tool's arguments; None if no tool has this name. Calls over HTTP are validated with it."""
        tool = None if self.listed is None else self.listed.catalog.tools.get(name)
        return _INPUT if name in self._agents() else None if tool is None else tool.parameters

    def _agents(self) -> dict[str, AgentCard]:
        """Return the cards of the agents, by the name of the agent's tool."""
        agents = self.runtime.agents
        return {agent_tool_name(name): agents[name] for name in sorted(agents)}

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        card = self._agents().get(params.name)
        if card is None:
            tool = None if self.listed is None else self.listed.catalog.tools.get(params.name)
            if self.listed is not None and tool is not None:
                return await self.listed.call_tool(context, params, tool)
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        try:
            message, session_id = _arguments(params.arguments or {})
        except ToolError as error:
            await trio.lowlevel.checkpoint()
            return _to_wire(CallAnswer(text=str(error), is_error=True))
        asks = self.may_decide(context) and MCPCaller(context=context).shows_forms
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        call = AgentCall(
            journal=self.journal,
            opener=self.runtime.agents.opener(card.name),
            owner=self.owner_of(context),
            label=call_label(context.meta, self.owner_of(context)),
            report=_progress_of(context, card.name),
            on_message=None if self.on_message is None else partial(self.on_message, context),
            ask=_decide_nothing if not asks else None if is_modern else _asker(context),
        )
        try:
            if params.request_state is not None:
                if not asks:
                    raise MCPError(
                        types.INVALID_PARAMS, "this client may not decide approvals, or cannot show forms"
                    )
                result = await call.resume(CallState.from_text(params.request_state), _responses(params))
            else:
                result = await call.start(message, session_id=session_id, message_id=_message_id(context))
        except ActgentError as error:
            _log.warning("a call of agent %s failed: %s: %s", card.name, type(error).__name__, error)
            result = CallAnswer(text=public_text(error), is_error=True)
        return _to_wire(result)


def _tool(name: str, card: AgentCard) -> types.Tool:
    about = ". ".join(each for each in (card.goal, card.capabilities) if each) or card.role
    return types.Tool(
        name=name, title=card.name, description=about or f"The agent {card.name}", input_schema=_INPUT
    )


def _arguments(arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Validate the arguments of a call of an agent's tool. Return the message and the session id, which may be empty.

    Raises:
        ToolError: The arguments do not match the schema of the tool. The client's model can correct them.
    """
    message, session_id = arguments.get("message"), arguments.get("session_id", "")
    if unknown := arguments.keys() - _INPUT["properties"].keys():
        raise ToolError(f"unknown arguments: {', '.join(sorted(unknown))}")
    if not isinstance(message, str) or not message or "\x00" in message:
        raise ToolError("message must be a string that is not empty")
    if not isinstance(session_id, str) or (session_id and not re.fullmatch(_SESSION_ID, session_id)):
        raise ToolError("session_id must have 1 to 128 of the characters A-Z a-z 0-9 . _ -")
    return message, session_id


def _message_id(context: Context) -> str:
    """Return the id that the client has set for its message; empty if it has set none."""
    found = (context.meta or {}).get(MESSAGE_ID, "")
    if not isinstance(found, str) or (found and not re.fullmatch(_SESSION_ID, found)):
        raise MCPError(
            types.INVALID_PARAMS, f"{MESSAGE_ID} must have 1 to 128 of the characters A-Z a-z 0-9 . _ -"
        )
    return found


def _progress_of(context: Context, agent: str) -> Callable[[str], Any]:
    """Return a function that sends progress texts to the client of a call. Each text begins with the agent's name."""
    steps = 0

    async def report(text: str) -> None:
        nonlocal steps
        steps += 1
        await context.session.report_progress(steps, None, f"{agent} {text}")

    return report


def _asker(context: Context) -> Callable[[Approval], Any]:
    async def ask(approval: Approval) -> Decision | None:
        found = await context.session.elicit_form(
            question_text(approval), form_of(approval), related_request_id=context.request_id
        )
        return decision_of(approval, found.action, found.content)

    return ask


async def _decide_nothing(_: Approval) -> Decision | None:
    await trio.lowlevel.checkpoint()
    return None


def _responses(params: types.CallToolRequestParams) -> dict[str, dict[str, Any]]:
    """Return the client's answers to forms, by approval id. Other responses are left out."""
    given = params.input_responses or {}
    return {
        key: {"action": each.action, "content": each.content}
        for key, each in given.items()
        if isinstance(each, types.ElicitResult)
    }


def _to_wire(result: CallAnswer | Questions) -> types.CallToolResult | types.InputRequiredResult:
    if isinstance(result, Questions):
        requests: types.InputRequests = {
            each.id: types.ElicitRequest(
                params=types.ElicitRequestFormParams(
                    message=question_text(each), requested_schema=form_of(each)
                )
            )
            for each in result.approvals
        }
        return types.InputRequiredResult(input_requests=requests, request_state=result.state.to_text())
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=result.text)],
        structured_content=result.data if isinstance(result.data, dict) else None,
        is_error=result.is_error,
        _meta=meta_of(result.label),
    )
