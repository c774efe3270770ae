"""Connection to an MCP server by the SDK. Imported on connection only, since the SDK is the optional extra `mcp`."""

import base64
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import httpx2
import mcp_types
import trio
from mcp.client.context import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from actgent.approvals import FormAnswer
from actgent.errors import ApprovalRequired, ConfigurationError, OutcomeUnknown, ToolError
from actgent.errors.text_escaping import counted
from actgent.information_flow_labels import label_of, to_ifc
from actgent.messages import ChatMessage, Medium, Text
from actgent.support.safe_logging import logger_of
from actgent.support.untrusted_text_delimiters import join_origins
from actgent.tools.outputs.result_media import make_medium
from actgent.tools.outputs.result_text import replace_control_characters
from actgent.tools.outputs.untrusted_result_delimiters import replace_special_tokens
from actgent.tools.schemas import compile_schema
from actgent.tools.untrusted_sources_of_call import reading_text_of
from actgent.toolsets.http.internal_address_blocking import Guard

from .bounded_result_validation import BoundedSession
from .expired_session_error import SessionExpired
from .http_transport import LOST, RepairingTransport
from .multi_round_requests import Round, RoundRequest, run_rounds
from .sampling import SampledCall, Sampling, sampling_rejection
from .server_command import MAX_MESSAGE_BYTES, ServerCommand
from .stdio_transport import open_process

MAX_PAGES = 100
"""Maximum number of pages read from a paginated list."""
MAX_TOOLS = 5_000
"""Maximum number of tools of a server."""
MAX_RESOURCES = 5_000
"""Maximum number of listed resources of a server."""
MAX_PROMPTS = 1_000
"""Maximum number of listed prompts of a server."""
MAX_PROMPT_MESSAGES = 100
"""Maximum number of messages of a prompt."""
_SESSION_ERROR_CODES = (-32000, -32001, mcp_types.INVALID_REQUEST)
"""JSON-RPC error codes by which servers reject a request with an unknown session."""
_SESSION = re.compile(
    r"session (id )?(was )?(not found|expired|terminated|unknown|invalid|does not exist)"
    r"|(no valid|invalid|unknown|expired) session",
    re.IGNORECASE,
)
_log = logger_of(__name__)
OnProgress = Callable[[float, float | None, str | None], object]
"""Callback that receives the amount done, the total or None, and a text or None."""
Answers = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Function that answers a server's question, given the text and the JSON Schema of the content; None asks an approver."""
T = TypeVar("T")


@attrs.define(eq=False)
class _Call:
    """A running MCP tool call."""

    answer: FormAnswer | None
    """Approver's answer to the server's question; None if the server has not asked."""
    question: mcp_types.ElicitRequestFormParams | None = None
    """Question of the server (elicitation) that an approver must answer."""
    sampled: SampledCall | None = None
    """Handles the server's sampling requests during the call; None if sampling is off."""
    sources: str = ""
    """Untrusted sources of the turn of the call: a question of the server may repeat the arguments of the call."""


@attrs.define(eq=False)
class MCPConnection:
    """An open session with an MCP server."""

    session: BoundedSession = attrs.field(init=False)
    """Client session of the MCP SDK."""
    changed: trio.Event = attrs.field(factory=trio.Event)
    """Set when the server reports that its tools have changed; replaced by a new event each time."""
    calls: list[_Call] = attrs.field(factory=list)
    """Running tool calls."""
    name: str = ""
    """Name of the toolset: the untrusted source of the server's texts."""
    sampling: Sampling | None = None
    """Function that answers sampling requests; None if sampling is off."""
    answers: Answers | None = None
    """Function that answers the server's questions without an approver; None asks an approver."""
    is_ended: bool = False
    """True if a new session must replace this one."""
    replaced: trio.Event = attrs.field(factory=trio.Event)
    """Set after the session has ended, as soon as the next session is open or has failed to open."""
    _idle: trio.Event = attrs.field(factory=trio.Event)

    def end(self) -> None:
        """End the session of this connection. The toolset then opens a new connection."""
        self.is_ended = True
        self.changed.set()

    async def wait_calls(self, seconds: float) -> None:
        """Wait until all running calls have returned, at most `seconds`."""
        with trio.move_on_after(seconds):
            while self.calls:
                self._idle = trio.Event()
                await self._idle.wait()

    async def tools(self) -> list[mcp_types.Tool]:
        """Request all tools of the server. Of several tools with the same name, return only the first.

        Raises:
            MCPError: The server rejected the request, or the connection was lost.
            SessionExpired: The server no longer knows the session.
        """
        found: list[mcp_types.Tool] = []
        try:
            found = await _list_items(self.session.list_tools, "tools", MAX_TOOLS)
        except MCPError as error:
            if _is_about_session(error):
                raise SessionExpired("the MCP server ended its session") from error
            capabilities = self.session.server_capabilities
            if (
                error.code != mcp_types.METHOD_NOT_FOUND
                or capabilities is None
                or capabilities.tools is not None
            ):
                raise
        self.session.set_tools(found)
        return found

    @property
    def identity(self) -> tuple[str, str]:
        """Protocol revision of the session, and name and version of the server; empty texts before the handshake."""
        info, revision = self.session.server_info, self.session.protocol_version
        return revision or "", "" if info is None else f"{info.name} {info.version}".strip()

    @property
    def has_resources(self) -> bool:
        """True if the server provides resources."""
        capabilities = self.session.server_capabilities
        return capabilities is not None and capabilities.resources is not None

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        answer: FormAnswer | None = None,
        on_progress: OnProgress | None = None,
        on_meta: Callable[[Mapping[str, Any]], object] | None = None,
        sources: str = "",
    ) -> str | list[str | Medium]:
        """Run a tool of the server. Cancelling the call notifies the server.

        `on_meta` receives the `_meta` member of the result, also if the tool failed. `sources` names the untrusted sources whose text
        the turn has read. The request sends them to the server as an information-flow label, in `_meta.ifc`.

        Raises:
            ApprovalRequired: The server asks a question; the call runs again with the answer.
            OutcomeUnknown: The connection was lost while the call ran.
            SessionExpired: The server no longer knows the session; the call did not run.
            ToolError: The tool failed.
        """
        call, ifc = _Call(answer, sources=sources), to_ifc(label_of(sources))
        if self.sampling is not None:
            call.sampled = SampledCall(self.sampling, _sampled_message, self.name)
        self.calls.append(call)
        try:
            report = None if on_progress is None else partial(_forward_progress, on_progress)
            send = partial(
                self.session.call_tool,
                name,
                dict(arguments),
                progress_callback=report,
                meta=None if ifc is None else {"ifc": ifc},
                allow_input_required=True,
            )
            ask: Any = partial(self._rounds, send, call)
            result = await (ask() if call.sampled is None else call.sampled.serve(ask))
        except MCPError as error:
            if call.question is not None:
                raise _approval_request(call.question) from error
            # Servers reject unknown sessions with the code that the SDK uses for closed connections.
            if _is_about_session(error):
                self.end()
                raise SessionExpired("the MCP server ended its session: repeat the call") from error
            if error.code == mcp_types.CONNECTION_CLOSED:
                reason = str(error).removeprefix(LOST).removeprefix(": ")
                raise OutcomeUnknown(
                    ": ".join(
                        filter(None, ("the connection to the MCP server was lost while the call ran", reason))
                    )
                ) from error
            raise ToolError(f"the call failed: {error}") from error
        except (RuntimeError, ValueError) as error:
            raise ToolError(str(error)) from error
        finally:
            self.calls.remove(call)
            self._idle.set()
        if call.question is not None:
            raise _approval_request(call.question)
        if on_meta is not None and result.meta:
            on_meta(result.meta)
        value = content_value(result.content, result.structured_content)
        if result.is_error:
            raise ToolError(_text_of(value) or "the tool failed without a reason")
        return value

    async def elicit(
        self, context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult:
        """Answer a question that the server asks during a tool call (elicitation before revision 2026-07-28).

        Use the result of `answers`, or the approver's answer. Without them, cancel, and record the question. An
        approver's answer is valid once and only for its question; other questions are declined.
        """
        await trio.lowlevel.checkpoint()
        call = self.calls[0] if len(self.calls) == 1 else None  # the request does not name its call
        if call is None or not isinstance(params, mcp_types.ElicitRequestFormParams):
            return mcp_types.ElicitResult(action="decline")
        if (result := await self._answer(params, call)) is not None:
            return result
        if call.answer is not None:
            answer, call.answer = call.answer, FormAnswer(content={})
            return _elicit_result(answer, params)
        call.question = call.question or params
        return mcp_types.ElicitResult(action="cancel")

    async def _answer(
        self, params: mcp_types.ElicitRequestFormParams, call: _Call
    ) -> mcp_types.ElicitResult | None:
        """Answer a question of the server by the user function `answers`. Return None if an approver must answer the question."""
        if self.answers is None:
            return None
        try:
            with reading_text_of(join_origins(call.sources, self.name)):
                content = await self.answers(params.message, params.requested_schema)
        except Exception:  # noqa: BLE001 - a function of the program
            _log.exception("answers= failed: an approver is asked the question of an MCP server")
            return None
        if content is None:
            return None
        if not _matches_schema(content, params.requested_schema):
            _log.warning("answers= returned content that does not match the form: an approver is asked")
            return None
        return mcp_types.ElicitResult(action="accept", content=dict(content))

    async def _rounds(self, send: RoundRequest[T], call: _Call) -> T:
        """Send a request with `send`, and answer the server's requests for input, until the server returns the result.

        Raises:
            ApprovalRequired: An approver must answer a question. The exception carries the state of the round.
        """

        async def respond(request: mcp_types.InputRequest, current: Round) -> mcp_types.InputResponse:
            match request:
                case mcp_types.ElicitRequest(params=mcp_types.ElicitRequestFormParams() as params):
                    if (result := await self._answer(params, call)) is not None:
                        return result
                    if call.answer is None:
                        raise _approval_request(params, state=current.dump())
                    answer, call.answer = call.answer, None
                    return _elicit_result(answer, params)
                case mcp_types.ElicitRequest():
                    return mcp_types.ElicitResult(action="decline")
                case mcp_types.CreateMessageRequest(params=sampling) if call.sampled is not None:
                    reply = await call.sampled.ask(sampling)
                    if isinstance(reply, mcp_types.ErrorData):
                        raise MCPError.from_error_data(reply)
                    return reply
                case _:
                    raise ToolError(
                        f"the MCP server requests {request.method}, which this client does not support"
                    )

        current = Round.parse("" if call.answer is None else call.answer.state)
        return await run_rounds(send, respond, current)

    async def sample(
        self, context: ClientRequestContext, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult | mcp_types.ErrorData:
        """Answer a sampling request of the server: it asks for a model answer during a call.

        Reject it unless exactly one call runs and sampling is on.
        """
        await trio.lowlevel.checkpoint()
        call = self.calls[0] if len(self.calls) == 1 else None  # the request does not name its call
        if call is None or call.sampled is None:
            return sampling_rejection("sampling is only available while exactly one call runs")
        return await call.sampled.ask(params)

    @property
    def has_prompts(self) -> bool:
        """True if the server provides prompts."""
        capabilities = self.session.server_capabilities
        return capabilities is not None and capabilities.prompts is not None

    async def resources(self) -> list[dict[str, Any]]:
        """Request the server's resources: URI, name, type and description of each.

        Raises:
            ToolError: The server failed to list its resources.
        """
        with _failures("the server failed to list its resources"):
            found = await _list_items(self.session.list_resources, "resources", MAX_RESOURCES)
        return [_resource_row(each) for each in found]

    async def read(self, uri: str, *, answer: FormAnswer | None = None) -> str | list[str | Medium]:
        """Read a resource of the server, and return its content.

        `answer` is an approver's answer to the server's question; None if the server has not asked.

        Raises:
            ApprovalRequired: The server asks a question; the resource is read again with the answer.
            ToolError: The resource cannot be read.
        """
        send: Any = partial(self.session.read_resource, uri, allow_input_required=True)
        with _failures("the resource cannot be read"):
            result = await self._rounds(send, _Call(answer))
        return _join_texts([_document(each) for each in result.contents])

    async def prompts(self) -> list[dict[str, Any]]:
        """Request the server's prompts: name, description and arguments of each.

        Raises:
            ToolError: The server failed to list its prompts.
        """
        with _failures("the server failed to list its prompts"):
            found = await _list_items(self.session.list_prompts, "prompts", MAX_PROMPTS)
        return [_prompt_row(each) for each in found]

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> list[ChatMessage]:
        """Request the messages of a prompt of the server, filled in with the arguments.

        Raises:
            ToolError: The prompt is unknown, the arguments are invalid, or the prompt has too many messages. Or the server asks a
                question that `answers` does not answer.
        """
        send: Any = partial(self.session.get_prompt, name, dict(arguments), allow_input_required=True)
        try:
            with _failures("the server failed to return the prompt"):
                result = await self._rounds(send, _Call(None))
        except ApprovalRequired as question:
            raise ToolError(f"the prompt asks a question: {question.question}") from None
        if len(result.messages) > MAX_PROMPT_MESSAGES:
            raise ToolError(f"the prompt has more than {MAX_PROMPT_MESSAGES} messages")
        return [_prompt_message(each) for each in result.messages]


@asynccontextmanager
async def open_connection(
    *,
    name: str = "",
    command: ServerCommand | None = None,
    url: str = "",
    headers: Mapping[str, str] | None = None,
    auth: httpx2.Auth | None = None,
    guard: Guard | None = None,
    sampling: Sampling | None = None,
    answers: Answers | None = None,
) -> AsyncGenerator[MCPConnection]:
    """Async context manager: connect to an MCP server, which is a new process or a URL, until the block exits.

    Uses revision 2026-07-28 if the server supports it, else the newest revision that both sides support.
    """
    link = MCPConnection(name=name, sampling=sampling, answers=answers)

    async def on_message(message: object) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(message, mcp_types.ToolListChangedNotification):
            link.changed.set()

    reading: Any
    writing: Any
    async with AsyncExitStack() as stack:
        if command is not None:
            reading, writing = await stack.enter_async_context(open_process(command))
        else:
            # No read timeout: a server may stream for any time, and the tool's timeout limits a call.
            client = (guard or Guard()).client(
                wrap=lambda guarded: RepairingTransport(guarded, MAX_MESSAGE_BYTES, on_unreachable=link.end),
                headers=dict(headers or {}),
                auth=auth,
                timeout=httpx2.Timeout(30, read=None),
            )
            await stack.enter_async_context(client)
            reading, writing = await stack.enter_async_context(
                streamable_http_client(url, http_client=client, max_sse_event_size=None)
            )
        link.session = await stack.enter_async_context(
            BoundedSession(
                reading,
                writing,
                message_handler=on_message,
                elicitation_callback=link.elicit,
                sampling_callback=None if sampling is None else link.sample,
                client_info=mcp_types.Implementation(name="actgent", version="1"),
            )
        )
        # A slow HTTP server, or a slow login, may know only the new revision. A process that is silent knows only earlier ones.
        await _negotiate(link.session, discoveries=1 if command is not None else 2)
        yield link


async def _negotiate(session: BoundedSession, *, discoveries: int) -> None:
    """Agree on a revision: ask for 2026-07-28, and use the handshake of earlier revisions if the server rejects that.

    `mcp.Client` would do this, but has no parameter for the class of the session.

    Args:
        session: Session with the server.
        discoveries: Maximum number of requests `server/discover`. Each has a time limit of 10 s.
    """
    try:
        await session.discover()
    except (MCPError, RuntimeError, ValueError) as error:  # refused, no common revision, or invalid data
        if discoveries > 1 and isinstance(error, MCPError) and error.code == mcp_types.REQUEST_TIMEOUT:
            await _negotiate(session, discoveries=discoveries - 1)
        else:
            await session.initialize()


def _is_about_session(error: MCPError) -> bool:
    """Return True if an error without status 404 means that the server does not know the session."""
    return error.code in _SESSION_ERROR_CODES and _SESSION.search(str(error)) is not None


async def _forward_progress(
    on_progress: OnProgress, progress: float, total: float | None, message: str | None
) -> None:
    on_progress(progress, total, message)


async def _list_items(request: Callable[..., Awaitable[Any]], member: str, maximum: int) -> list[Any]:
    """Request all pages of a list, and return the items. Stop at a page without a cursor or with a repeated cursor.

    Of several items with the same URI or name, keep the first. If the list has more than `maximum` items or `MAX_PAGES`
    pages, cut the list off and log a warning.

    Args:
        request: Method of the session that requests one page.
        member: Attribute of a page with its items.
        maximum: Maximum number of items to return.
    """
    found: dict[str, Any] = {}
    cursors: set[str] = set()
    cursor = None
    for _ in range(MAX_PAGES):
        page = await request(params=mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None)
        for each in getattr(page, member):
            found.setdefault(str(getattr(each, "uri", each.name)), each)
        cursor = page.next_cursor
        if len(found) > maximum:
            break
        if not cursor or cursor in cursors:
            return list(found.values())
        cursors.add(cursor)
    items = list(found.values())[:maximum]
    _log.warning(
        "an MCP server lists too many %s or pages: only the first %d %s are used", member, len(items), member
    )
    return items


@contextmanager
def _failures(label: str) -> Iterator[None]:
    """Context manager: convert errors of the request in its block to `ToolError`, with `label` in front.

    Raises:
        ToolError: The block raised an error of the MCP SDK, or the server's response is invalid.
    """
    try:
        yield
    except (MCPError, RuntimeError, ValueError) as error:
        raise ToolError(f"{label}: {error}") from error


def _resource_row(each: mcp_types.Resource) -> dict[str, Any]:
    return {"uri": str(each.uri), "name": each.name, "type": each.mime_type, "description": each.description}


def _prompt_row(each: mcp_types.Prompt) -> dict[str, Any]:
    arguments = [
        {"name": a.name, "description": a.description, "required": bool(a.required)}
        for a in each.arguments or ()
    ]
    return {"name": each.name, "description": each.description or each.title, "arguments": arguments}


def _sampled_message(message: mcp_types.SamplingMessage) -> ChatMessage:
    """Convert a message of a sampling request to a chat message.

    Content other than text is replaced by its type.
    """
    blocks = message.content if isinstance(message.content, list) else [message.content]
    texts = [
        block.text if isinstance(block, mcp_types.TextContent) else f"[{block.type}]" for block in blocks
    ]
    return ChatMessage(
        message.role, (Text(replace_special_tokens(replace_control_characters("\n".join(texts)))),)
    )


def _prompt_message(message: mcp_types.PromptMessage) -> ChatMessage:
    """Convert a message of a prompt. Media in assistant messages are replaced by their type."""
    value = content_value([message.content], None)
    if message.role == "assistant":
        value = _text_of(value)
    parts = (value,) if isinstance(value, str) else value
    read = tuple(
        Text(replace_special_tokens(replace_control_characters(part))) if isinstance(part, str) else part
        for part in parts
    )
    return ChatMessage(message.role, read)


def content_value(
    content: Sequence[mcp_types.ContentBlock], structured: Mapping[str, Any] | None
) -> str | list[str | Medium]:
    """Convert the content of a result to a tool value: a text, or a list of texts, pictures and files.

    `structured` is the result's structured content, which is used only if `content` is empty.
    """
    items = [_block(block) for block in content]
    if not any(items) and structured is not None:
        return json.dumps(structured, ensure_ascii=False, separators=(",", ":"))
    return _join_texts(items)


def _join_texts(items: list[str | Medium]) -> str | list[str | Medium]:
    texts = [item for item in items if isinstance(item, str)]
    return "\n".join(texts) if len(texts) == len(items) else items


def _text_of(value: str | list[str | Medium]) -> str:
    """Convert the value of a tool to text. Each picture or file is replaced by its type."""
    if isinstance(value, str):
        return value
    return "\n".join(item if isinstance(item, str) else f"[{item.media_type}]" for item in value)


def _block(block: mcp_types.ContentBlock) -> str | Medium:
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return _medium(block.data, block.mime_type, name=block.type)
        case mcp_types.ResourceLink():
            return f"[resource {block.uri}: {block.description or block.name}]"
        case mcp_types.EmbeddedResource():
            return _document(block.resource)


def _document(document: mcp_types.TextResourceContents | mcp_types.BlobResourceContents) -> str | Medium:
    if isinstance(document, mcp_types.TextResourceContents):
        return document.text
    name = PurePosixPath(urlsplit(str(document.uri)).path).name
    return _medium(document.blob, document.mime_type or "", name=name or "file")


def _medium(data: str, kind: str, *, name: str) -> str | Medium:
    try:
        return make_medium(base64.b64decode(data), kind, name=name)
    except ValueError:
        return f"[{kind}: {counted(len(data), 'character')}, invalid base64]"


def _matches_schema(content: Mapping[str, Any] | None, schema: Mapping[str, Any]) -> bool:
    """Return True if the content of an approver's answer matches the schema of the server's question.

    Return False if the schema is invalid.
    """
    try:
        return (
            compile_schema(schema, owner="the question of an MCP server").reason(dict(content or {})) is None
        )
    except (ConfigurationError, ValueError):
        return False


def _elicit_result(answer: FormAnswer, params: mcp_types.ElicitRequestFormParams) -> mcp_types.ElicitResult:
    """Convert an approver's answer to the reply to a server's question.

    The reply declines if the answer is for another question or does not match the question's schema.
    """
    if answer.question == params.message and _matches_schema(answer.content, params.requested_schema):
        return mcp_types.ElicitResult(action="accept", content=dict(answer.content or {}))
    return mcp_types.ElicitResult(action="decline")


def _approval_request(params: mcp_types.ElicitRequestFormParams, state: str = "") -> ApprovalRequired:
    """Return the exception that passes a question of the server to an approver.

    `state` is the encoded round with which the call resumes; empty before revision 2026-07-28.
    """
    return ApprovalRequired(params.message, form=params.requested_schema, again=True, state=state)
