"""A connection to an MCP server by the SDK. Imported when a server is connected: the SDK is the extra `mcp`."""

import base64
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import httpx2
import mcp_types
import trio
from mcp import ClientSession
from mcp.client.context import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from actgent.approvals import FormAnswer
from actgent.errors import AskPerson, ConfigurationError, OutcomeUnknown, ToolError
from actgent.support.logs import logger_of
from actgent.tools.checking import compile_schema
from actgent.toolsets.http.guard import Guard

from .command import ServerCommand
from .stdio import open_process

PAGES = 100
"""How many pages of a list are read from a server that always has one more."""
MOST_TOOLS = 5_000
"""How many tools of a server are taken."""
_log = logger_of(__name__)


@attrs.define(eq=False)
class _Call:
    """A call under way."""

    answer: FormAnswer | None
    """What a person answered to a question of the server; None: nobody was asked."""
    question: mcp_types.ElicitRequestFormParams | None = None
    """What the server asked of a person, who is to be asked now."""


@attrs.define(eq=False)
class Link:
    """A connected server."""

    session: ClientSession = attrs.field(init=False)
    changed: trio.Event = attrs.field(factory=trio.Event)
    """Set when the server says that its tools changed; a new one then."""
    calls: list[_Call] = attrs.field(factory=list)

    async def tools(self) -> list[mcp_types.Tool]:
        """All tools of the server, page by page; of those of one name the first."""
        found: dict[str, mcp_types.Tool] = {}
        cursor = None
        for _ in range(PAGES):
            page = await self.session.list_tools(
                params=mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None
            )
            for each in page.tools:
                found.setdefault(each.name, each)
            cursor = page.next_cursor
            if cursor is None:
                break
            if len(found) > MOST_TOOLS:
                break
        if cursor is not None or len(found) > MOST_TOOLS:
            _log.warning(
                "an MCP server has too many tools, or a list without end: the first %d are taken",
                min(len(found), MOST_TOOLS),
            )
        return list(found.values())[:MOST_TOOLS]

    @property
    def has_resources(self) -> bool:
        """Return True if the server has documents to read."""
        capabilities = self.session.server_capabilities
        return capabilities is not None and capabilities.resources is not None

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        answer: FormAnswer | None = None,
        on_progress: Callable[[float, float | None, str | None], object] | None = None,
    ) -> str:
        """Run a tool of the server; cancelling the call tells the server.

        Raises:
            AskPerson: the server wants to know something of a person; the call runs again with the answer.
            OutcomeUnknown: the connection was lost meanwhile.
            ToolError: the tool failed.
        """

        async def report(progress: float, total: float | None, message: str | None) -> None:
            if on_progress is not None:
                on_progress(progress, total, message)

        call = _Call(answer)
        self.calls.append(call)
        try:
            result = await self.session.call_tool(name, dict(arguments), progress_callback=report)
        except MCPError as error:
            if call.question is not None:
                raise _question_of(call.question) from error
            if error.code == mcp_types.CONNECTION_CLOSED:
                raise OutcomeUnknown("the connection to its server was lost while it ran") from error
            raise ToolError(f"the server refused the call: {error}") from error
        except (RuntimeError, ValueError) as error:
            raise ToolError(f"the server's answer cannot be used: {error}") from error
        finally:
            self.calls.remove(call)
        if call.question is not None:
            raise _question_of(call.question)
        text = content_text(result.content, result.structured_content)
        if result.is_error:
            raise ToolError(text or "the tool failed without a reason")
        return text

    async def elicit(
        self, context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult:
        """Answer a server that asks a person: with what was answered, or else not now, and a person is asked.

        An answer is for its question alone, once: another one is declined.
        """
        await trio.lowlevel.checkpoint()
        call = self.calls[0] if len(self.calls) == 1 else None  # nothing says which call it is for
        if call is None or not isinstance(params, mcp_types.ElicitRequestFormParams):
            return mcp_types.ElicitResult(action="decline")
        if call.answer is not None:
            answer, call.answer = call.answer, FormAnswer(content={})
            if answer.question == params.message and _fits(answer.content, params.requested_schema):
                return mcp_types.ElicitResult(action="accept", content=dict(answer.content or {}))
            return mcp_types.ElicitResult(action="decline")
        call.question = call.question or params
        return mcp_types.ElicitResult(action="cancel")

    async def resources(self) -> list[dict[str, Any]]:
        """What documents the server has."""
        listed = await self.session.list_resources()
        return [
            {
                "uri": str(each.uri),
                "name": each.name,
                "type": each.mime_type,
                "description": each.description,
            }
            for each in listed.resources
        ]

    async def read(self, uri: str) -> str:
        """The text of a document.

        Raises:
            ToolError: there is none.
        """
        try:
            result = await self.session.read_resource(uri)
        except MCPError as error:
            raise ToolError(f"the resource cannot be read: {error}") from error
        return "\n".join(_document(each) for each in result.contents)

    async def prompts(self) -> list[dict[str, Any]]:
        """Which prompts the server suggests."""
        listed = await self.session.list_prompts()
        return [
            {
                "name": each.name,
                "description": each.description,
                "arguments": [a.name for a in each.arguments or ()],
            }
            for each in listed.prompts
        ]

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """The text of a prompt with its arguments.

        Raises:
            ToolError: there is none, or the arguments do not fit.
        """
        try:
            result = await self.session.get_prompt(name, dict(arguments))
        except MCPError as error:
            raise ToolError(f"the prompt cannot be had: {error}") from error
        return "\n\n".join(f"{each.role}: {content_text([each.content], None)}" for each in result.messages)


@asynccontextmanager
async def open_link(
    *,
    command: ServerCommand | None = None,
    url: str = "",
    headers: Mapping[str, str] | None = None,
    auth: httpx2.Auth | None = None,
    guard: Guard | None = None,
) -> AsyncGenerator[Link]:
    """Connect to a server: a process, or an address that speaks streamable HTTP."""
    link = Link()

    async def hear(message: object) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(message, mcp_types.ToolListChangedNotification):
            link.changed.set()

    reading: Any
    writing: Any
    async with AsyncExitStack() as stack:
        if command is not None:
            reading, writing = await stack.enter_async_context(open_process(command))
        else:
            # A server may stream for as long as it likes; what bounds a call is the tool's timeout.
            client = (guard or Guard()).client(
                headers=dict(headers or {}), auth=auth, timeout=httpx2.Timeout(30, read=None)
            )
            await stack.enter_async_context(client)
            reading, writing = await stack.enter_async_context(
                streamable_http_client(url, http_client=client)
            )
        link.session = await stack.enter_async_context(
            ClientSession(
                reading,
                writing,
                message_handler=hear,
                elicitation_callback=link.elicit,
                client_info=mcp_types.Implementation(name="actgent", version="1"),
            )
        )
        await link.session.initialize()
        yield link


def content_text(content: Sequence[mcp_types.ContentBlock], structured: Mapping[str, Any] | None) -> str:
    """A result as a model reads it; what is no text is told by kind and size."""
    texts = [_block(block) for block in content]
    if not any(texts) and structured is not None:
        return json.dumps(structured, ensure_ascii=False, separators=(",", ":"))
    return "\n".join(texts)


def _block(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return f"[{block.type}: {block.mime_type}, {len(block.data) * 3 // 4:,} bytes]"
        case mcp_types.ResourceLink():
            return f"[resource {block.uri}: {block.description or block.name}]"
        case mcp_types.EmbeddedResource():
            return _document(block.resource)


def _document(document: mcp_types.TextResourceContents | mcp_types.BlobResourceContents) -> str:
    if isinstance(document, mcp_types.TextResourceContents):
        return document.text
    return f"[{document.uri}: {document.mime_type}, {len(base64.b64decode(document.blob)):,} bytes]"


def _fits(content: Mapping[str, Any] | None, schema: Mapping[str, Any]) -> bool:
    try:
        return (
            compile_schema(schema, owner="the question of an MCP server").reason(dict(content or {})) is None
        )
    except (ConfigurationError, ValueError):
        return False


def _question_of(params: mcp_types.ElicitRequestFormParams) -> AskPerson:
    return AskPerson(params.message, form=params.requested_schema, again=True)
