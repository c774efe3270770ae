"""A connection to an MCP server by the SDK. Imported when a server is connected: the SDK is the extra `mcp`."""

import base64
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import attrs
import httpx2
import mcp_types
import trio
from mcp.client.context import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from actgent.approvals import FormAnswer
from actgent.errors import AskPerson, ConfigurationError, OutcomeUnknown, ToolError
from actgent.errors.printable import counted
from actgent.messages import ChatMessage, Medium, Text
from actgent.support.logs import logger_of
from actgent.tools.outputs.media import medium_of
from actgent.tools.outputs.provenance import neutral
from actgent.tools.outputs.results import controls_shown
from actgent.tools.schemas import compile_schema
from actgent.toolsets.http import Guard

from .bounded import BoundedTransport, SessionForgotten
from .command import MAX_MESSAGE, ServerCommand
from .sampling import SampledCall, Sampling, not_asked
from .session import BoundedSession
from .stdio import open_process

PAGES = 100
"""How many pages of a list are read from a server that always has one more."""
MOST_TOOLS = 5_000
"""How many tools of a server are taken."""
MOST_RESOURCES = 5_000
MOST_PROMPTS = 1_000
"""How many documents and prompts of a server are listed."""
MOST_MESSAGES = 100
"""How many messages a prompt may have."""
_REFUSALS = (-32000, -32001, mcp_types.INVALID_REQUEST)
_SESSION = re.compile(
    r"session (id )?(was )?(not found|expired|terminated|unknown|invalid|does not exist)"
    r"|(no valid|invalid|unknown|expired) session",
    re.IGNORECASE,
)
_log = logger_of(__name__)
OnProgress = Callable[[float, float | None, str | None], object]
"""Takes how much is done, of how much, and what."""


@attrs.define(eq=False)
class _Call:
    """A call under way."""

    answer: FormAnswer | None
    """What a person answered to a question of the server; None: nobody was asked."""
    question: mcp_types.ElicitRequestFormParams | None = None
    """What the server asked of a person, who is to be asked now."""
    sampled: SampledCall | None = None
    """By which the server may have a model asked; None: it may not."""


@attrs.define(eq=False)
class Link:
    """A connected server."""

    session: BoundedSession = attrs.field(init=False)
    changed: trio.Event = attrs.field(factory=trio.Event)
    """Set when the server says that its tools changed; a new one then."""
    calls: list[_Call] = attrs.field(factory=list)
    sampling: Sampling | None = None
    """What asks a model for the server; None: nobody does."""
    is_forgotten: bool = False
    """True if a request was refused since the server does not know its session; set before the request is told."""
    is_ended: bool = False
    """True if a new session is to begin."""
    replaced: trio.Event = attrs.field(factory=trio.Event)
    """Set after the session has ended, when the next one is there or cannot be had."""
    _idle: trio.Event = attrs.field(factory=trio.Event)

    def forget(self) -> None:
        """Note that the server has forgotten the session; the refused request ends the connection."""
        self.is_forgotten = True

    def end(self) -> None:
        """End the connection, so that a new session begins."""
        self.is_ended = True
        self.changed.set()

    async def settle(self, seconds: float) -> None:
        """Wait until calls that are under way have their answers, at most so long."""
        with trio.move_on_after(seconds):
            while self.calls:
                self._idle = trio.Event()
                await self._idle.wait()

    async def tools(self) -> list[mcp_types.Tool]:
        """All tools of the server, page by page; of those of one name the first."""
        found: dict[str, mcp_types.Tool] = {}
        cursor = None
        for _ in range(PAGES):
            page = await self.session.list_tools(params=_page(cursor))
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
        tools = list(found.values())[:MOST_TOOLS]
        self.session.take(tools)
        return tools

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
        on_progress: OnProgress | None = None,
    ) -> str | list[str | Medium]:
        """Run a tool of the server; cancelling the call tells the server.

        Raises:
            AskPerson: the server wants to know something of a person; the call runs again with the answer.
            OutcomeUnknown: the connection was lost meanwhile.
            SessionForgotten: the server does not know the session any more; the call did not run.
            ToolError: the tool failed.
        """
        call = _Call(answer)
        if self.sampling is not None:
            call.sampled = SampledCall(self.sampling, _sampled_message)
        self.calls.append(call)
        try:
            report = None if on_progress is None else partial(_report, on_progress)
            ask = partial(self.session.call_tool, name, dict(arguments), progress_callback=report)
            result = await (ask() if call.sampled is None else call.sampled.serve(ask))
        except MCPError as error:
            if call.question is not None:
                raise _question_of(call.question) from error
            # Servers refuse unknown sessions with the code that the SDK has for closed connections.
            is_refused = self.is_forgotten and "connection closed" not in str(error).casefold()
            if is_refused or _is_about_session(error):
                self.end()
                raise SessionForgotten("the server ended its session: call again") from error
            if error.code == mcp_types.CONNECTION_CLOSED:
                raise OutcomeUnknown("the connection to its server was lost while it ran") from error
            raise ToolError(f"the server refused the call: {error}") from error
        except (RuntimeError, ValueError) as error:
            raise ToolError(f"the server's answer cannot be used: {error}") from error
        finally:
            self.calls.remove(call)
            self._idle.set()
        if call.question is not None:
            raise _question_of(call.question)
        value = content_value(result.content, result.structured_content)
        if result.is_error:
            raise ToolError(_text_of(value) or "the tool failed without a reason")
        return value

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

    async def sample(
        self, context: ClientRequestContext, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult | mcp_types.ErrorData:
        """Answer a server that wants a model asked, for the call that runs, where the program allows it."""
        await trio.lowlevel.checkpoint()
        call = self.calls[0] if len(self.calls) == 1 else None  # nothing says which call it is for
        if call is None or call.sampled is None:
            return not_asked("a model is asked during one call only")
        return await call.sampled.ask(params)

    @property
    def has_prompts(self) -> bool:
        """Return True if the server suggests prompts."""
        capabilities = self.session.server_capabilities
        return capabilities is not None and capabilities.prompts is not None

    async def resources(self) -> list[dict[str, Any]]:
        """Return what documents the server has."""
        found: list[dict[str, Any]] = []
        cursor = None
        for _ in range(PAGES):
            listed = await self.session.list_resources(params=_page(cursor))
            found += [_listed_resource(each) for each in listed.resources]
            cursor = listed.next_cursor
            if cursor is None or len(found) > MOST_RESOURCES:
                break
        return found[:MOST_RESOURCES]

    async def read(self, uri: str) -> str | list[str | Medium]:
        """A document: its text, or what else it is.

        Raises:
            ToolError: there is none.
        """
        try:
            result = await self.session.read_resource(uri)
        except MCPError as error:
            raise ToolError(f"the resource cannot be read: {error}") from error
        return _joined([_document(each) for each in result.contents])

    async def prompts(self) -> list[dict[str, Any]]:
        """Which prompts the server suggests, with their arguments.

        Raises:
            ToolError: it cannot tell.
        """
        found: list[dict[str, Any]] = []
        cursor = None
        for _ in range(PAGES):
            try:
                listed = await self.session.list_prompts(params=_page(cursor))
            except MCPError as error:
                raise ToolError(f"the server does not list its prompts: {error}") from error
            found += [_listed_prompt(each) for each in listed.prompts]
            cursor = listed.next_cursor
            if cursor is None or len(found) > MOST_PROMPTS:
                break
        return found[:MOST_PROMPTS]

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> list[ChatMessage]:
        """The messages of a prompt with its arguments.

        Raises:
            ToolError: there is none, the arguments do not fit, or what came cannot be a conversation.
        """
        try:
            result = await self.session.get_prompt(name, dict(arguments))
        except MCPError as error:
            raise ToolError(f"the prompt cannot be had: {error}") from error
        if len(result.messages) > MOST_MESSAGES:
            raise ToolError(f"the prompt has more than {MOST_MESSAGES} messages")
        return [_prompt_message(each) for each in result.messages]


@asynccontextmanager
async def open_link(
    *,
    command: ServerCommand | None = None,
    url: str = "",
    headers: Mapping[str, str] | None = None,
    auth: httpx2.Auth | None = None,
    guard: Guard | None = None,
    sampling: Sampling | None = None,
) -> AsyncGenerator[Link]:
    """Connect to a server: a process, or an address that speaks streamable HTTP."""
    link = Link(sampling=sampling)

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
                wrap=lambda guarded: BoundedTransport(guarded, MAX_MESSAGE, on_session_end=link.forget),
                headers=dict(headers or {}),
                auth=auth,
                timeout=httpx2.Timeout(30, read=None),
            )
            await stack.enter_async_context(client)
            reading, writing = await stack.enter_async_context(
                streamable_http_client(url, http_client=client)
            )
        link.session = await stack.enter_async_context(
            BoundedSession(
                reading,
                writing,
                message_handler=hear,
                elicitation_callback=link.elicit,
                sampling_callback=None if sampling is None else link.sample,
                client_info=mcp_types.Implementation(name="actgent", version="1"),
            )
        )
        await link.session.initialize()
        yield link


def _is_about_session(error: MCPError) -> bool:
    """True if a server refused a call for its session, with another status than 404."""
    return error.code in _REFUSALS and _SESSION.search(str(error)) is not None


async def _report(on_progress: OnProgress, progress: float, total: float | None, message: str | None) -> None:
    on_progress(progress, total, message)


def _page(cursor: str | None) -> mcp_types.PaginatedRequestParams | None:
    return mcp_types.PaginatedRequestParams(cursor=cursor) if cursor else None


def _listed_resource(each: mcp_types.Resource) -> dict[str, Any]:
    return {"uri": str(each.uri), "name": each.name, "type": each.mime_type, "description": each.description}


def _listed_prompt(each: mcp_types.Prompt) -> dict[str, Any]:
    arguments = [
        {"name": a.name, "description": a.description, "required": bool(a.required)}
        for a in each.arguments or ()
    ]
    return {"name": each.name, "description": each.description or each.title, "arguments": arguments}


def _sampled_message(said: mcp_types.SamplingMessage) -> ChatMessage:
    """A message that a server made up; what is no text is told by kind."""
    blocks = said.content if isinstance(said.content, list) else [said.content]
    texts = [
        block.text if isinstance(block, mcp_types.TextContent) else f"[{block.type}]" for block in blocks
    ]
    return ChatMessage(said.role, (Text(neutral(controls_shown("\n".join(texts)))),))


def _prompt_message(said: mcp_types.PromptMessage) -> ChatMessage:
    """A message of a prompt; what a model cannot have said in its own is told by kind."""
    value = content_value([said.content], None)
    if said.role == "assistant":
        value = _text_of(value)
    parts = (value,) if isinstance(value, str) else value
    read = tuple(Text(neutral(controls_shown(part))) if isinstance(part, str) else part for part in parts)
    return ChatMessage(said.role, read)


def content_value(
    content: Sequence[mcp_types.ContentBlock], structured: Mapping[str, Any] | None
) -> str | list[str | Medium]:
    """A result as a tool returns it: text, or a list of texts, pictures and files."""
    items = [_block(block) for block in content]
    if not any(items) and structured is not None:
        return json.dumps(structured, ensure_ascii=False, separators=(",", ":"))
    return _joined(items)


def _joined(items: list[str | Medium]) -> str | list[str | Medium]:
    texts = [item for item in items if isinstance(item, str)]
    return "\n".join(texts) if len(texts) == len(items) else items


def _text_of(value: str | list[str | Medium]) -> str:
    """The words alone, with the kind of what is none."""
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
        return medium_of(base64.b64decode(data), kind, name=name)
    except ValueError:
        return f"[{kind}: {counted(len(data), 'character')}, no base64]"


def _fits(content: Mapping[str, Any] | None, schema: Mapping[str, Any]) -> bool:
    try:
        return (
            compile_schema(schema, owner="the question of an MCP server").reason(dict(content or {})) is None
        )
    except (ConfigurationError, ValueError):
        return False


def _question_of(params: mcp_types.ElicitRequestFormParams) -> AskPerson:
    return AskPerson(params.message, form=params.requested_schema, again=True)
