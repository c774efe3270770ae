"""`MCPCaller`: sends questions and log messages to the MCP client that called a tool, prompt or resource of a catalog."""

import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import attrs
import mcp_types as types
import trio
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from actgent.errors import ApprovalRequired, ConfigurationError, ToolError
from actgent.forms import to_form
from actgent.tools.schemas import compile_schema

Context = ServerRequestContext[Any, Any]
LOG_LEVELS: tuple[types.LoggingLevel, ...] = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
"""Levels of log messages, least severe first (RFC 5424)."""
_LOG_LEVEL = "actgent.log_level"
"""Key of the minimum log level in the state of a connection."""
_RESULTS: Mapping[type, tuple[type, ...]] = {
    types.ElicitRequest: (types.ElicitResult,),
    types.CreateMessageRequest: (types.CreateMessageResult, types.CreateMessageResultWithTools),
    types.ListRootsRequest: (types.ListRootsResult,),
}
"""Classes of the response to each request."""


class InputRequested(ApprovalRequired):
    """Ends a function because its client must first respond to requests. The client then calls again with the responses."""

    def __init__(self, requests: Mapping[str, types.InputRequest]) -> None:
        super().__init__("the client has to respond to requests first")
        self.requests = dict(requests)


class MissingCapability(ToolError):
    """The function needs a capability that the client has not declared."""

    def __init__(self, method: str, required: types.ClientCapabilities) -> None:
        super().__init__(f"the client does not support {method}")
        self.required = required


@attrs.frozen(kw_only=True)
class MCPCaller:
    """The MCP client that called a tool, prompt or resource of a catalog. `mcp_caller()` returns it.

    A client of MCP 2026-07-28 responds with a second call, which runs the function again from its start, with all responses
    so far. Therefore a function must ask before it has a side effect. Only async functions can ask.
    """

    context: Context = attrs.field(repr=False)
    """Context of the MCP request, from the SDK."""
    responses: dict[str, types.InputResponse] = attrs.field(factory=dict, repr=False)
    """Responses of the client so far, by the key of the question."""

    @property
    def is_modern(self) -> bool:
        """True if the client uses MCP 2026-07-28 or later, and answers questions by repeating the call."""
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> types.ClientCapabilities:
        """Capabilities that the client has declared, as an object of the SDK (`mcp_types`)."""
        return self.context.session.client_capabilities or types.ClientCapabilities()

    @property
    def shows_forms(self) -> bool:
        """True if the client can show forms to its user."""
        elicitation = self.capabilities.elicitation
        return elicitation is not None and (elicitation.form is not None or elicitation.url is None)

    async def ask(self, question: str, form: object, *, key: str = "answer") -> dict[str, Any] | None:
        """Ask the client's user to fill in a form, and return the values by field; None if the user has declined.

        Args:
            question: Question to show to the user.
            form: JSON Schema of an object with flat members, or a list of `Field` objects of `actgent.forms`.
            key: Key of the question, which must be unique in the function.

        Raises:
            ToolError: The client cannot show forms, or the user's values do not match the form.
        """
        schema = dict(to_form(form) or {})  # type: ignore[arg-type] # it checks
        params = types.ElicitRequestFormParams(message=question, requested_schema=schema)
        request = types.ElicitRequest(params=params)
        result = (await self.request({key: request}))[key]
        if not isinstance(result, types.ElicitResult) or result.action != "accept":
            return None
        values = dict(result.content or {})
        reason = compile_schema(schema, owner="the question").reason(values)
        if reason is None:
            return values
        if self.is_modern:
            self.responses.pop(key)
            raise InputRequested({key: request})
        raise ToolError(f"the values from the client do not match the form: {reason}")

    async def request(self, requests: Mapping[str, types.InputRequest]) -> dict[str, types.InputResponse]:
        """Send requests to the client, and return its responses by key.

        Args:
            requests: Requests of the SDK by key: `ElicitRequest`, `CreateMessageRequest` or `ListRootsRequest` of `mcp_types`.
                Each key must be unique in the function.

        Raises:
            ToolError: The client has not declared the capability, or it has rejected a request.
        """
        for each in requests.values():
            self._check_capability(each)
        if not self.is_modern:
            return {key: await self._send(each) for key, each in requests.items()}
        await trio.lowlevel.checkpoint()
        is_open = {
            key: each
            for key, each in requests.items()
            if not isinstance(self.responses.get(key), _RESULTS[type(each)])
        }
        if is_open:
            raise InputRequested(is_open)
        return {key: self.responses[key] for key in requests}

    async def _send(self, request: types.InputRequest) -> types.InputResponse:
        metadata = ServerMessageMetadata(related_request_id=self.context.request_id)
        try:
            found: Any = await self.context.session.send_request(
                request, _RESULTS[type(request)][0], metadata=metadata
            )
        except MCPError as error:
            raise ToolError(f"the client has rejected {request.method}: {error}") from error
        result: types.InputResponse = found
        return result

    def _check_capability(self, request: types.InputRequest) -> None:
        known = self.capabilities
        match request:
            case types.ElicitRequest(params=types.ElicitRequestURLParams()):
                is_known = known.elicitation is not None and known.elicitation.url is not None
                required = types.ClientCapabilities(
                    elicitation=types.ElicitationCapability(url=types.UrlElicitationCapability())
                )
            case types.ElicitRequest():
                is_known = self.shows_forms
                required = types.ClientCapabilities(
                    elicitation=types.ElicitationCapability(form=types.FormElicitationCapability())
                )
            case types.CreateMessageRequest():
                is_known = known.sampling is not None
                required = types.ClientCapabilities(sampling=types.SamplingCapability())
            case _:
                is_known = known.roots is not None
                required = types.ClientCapabilities(roots=types.RootsCapability())
        if not is_known:
            raise MissingCapability(request.method, required)

    async def log(self, level: types.LoggingLevel, data: object, *, logger: str = "actgent") -> None:
        """Send a log message to the client, if the client asks for messages of this level.

        Args:
            level: Severity: `debug`, `info`, `notice`, `warning`, `error`, `critical`, `alert` or `emergency`.
            data: Text, or a value that JSON can represent.
            logger: Name of the logger that the client shows.
        """
        least = connection_of(self.context).state.get(_LOG_LEVEL, LOG_LEVELS[0])
        if LOG_LEVELS.index(level) < LOG_LEVELS.index(least):
            await trio.lowlevel.checkpoint()
            return
        with warnings.catch_warnings():  # deprecated by the protocol, without a replacement in it
            warnings.simplefilter("ignore")
            sending = self.context.session.send_log_message(
                level, data, logger, related_request_id=self.context.request_id
            )
        await sending


async def set_log_level(context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    """Handle `logging/setLevel`: store the lowest severity of the log messages that the connection gets."""
    await trio.lowlevel.checkpoint()
    connection_of(context).state[_LOG_LEVEL] = params.level
    return types.EmptyResult()


def connection_of(context: Context) -> Connection:
    """Return the SDK's connection object of a request, which the SDK does not expose."""
    connection: Connection = context.session._connection  # noqa: SLF001
    return connection


current_caller: ContextVar[MCPCaller | None] = ContextVar("mcp_caller", default=None)
"""Caller of the function that runs in this task; None outside of a call by an MCP client."""


def mcp_caller() -> MCPCaller:
    """Return the MCP client that called the running tool, prompt or resource of a catalog.

    Raises:
        ConfigurationError: No MCP client called the function: an agent or a program did.
    """
    caller = current_caller.get()
    if caller is None:
        raise ConfigurationError(
            "mcp_caller() works only in functions of an MCPCatalog that an MCP client calls: "
            "for a question that also works in agents, raise ApprovalRequired"
        )
    return caller
