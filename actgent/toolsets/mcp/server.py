"""`MCPServer`: the tools of a server that speaks the Model Context Protocol, as a toolset.

The connection lives in the toolset's task, and calls come from the tasks of turns. What needs the SDK is imported when a
server is connected.

Specification: https://modelcontextprotocol.io/specification
"""

import importlib.util
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from os import PathLike, fspath
from pathlib import Path, PurePath
from typing import Any, TypeVar
from urllib.parse import urlsplit

import trio

from actgent.approvals import FormAnswer
from actgent.errors import ActgentError, ConfigurationError, ToolError, ToolsetUnavailable
from actgent.errors.printable import shown
from actgent.messages import ChatMessage
from actgent.support.foreign import leaves
from actgent.support.leads import for_servers
from actgent.support.logs import logger_of
from actgent.tools.base import Effect, Tool, ToolContext
from actgent.tools.outputs.results import worded
from actgent.toolsets.http import Guard, is_http_url
from actgent.toolsets.toolset import CONNECT_TIMEOUT, Publish, Toolset, check_name

from .bounded import SessionForgotten
from .command import ServerCommand
from .lock import ToolLock, tool_digest
from .tokens import OAuthSettings

LIST_PAUSE = 0.5
"""Seconds between two looks at the tools of a server that says that they changed, however often it says so."""
SETTLE = 0.3
"""Seconds in which answers that are on their way may still come after a server has ended the session."""
_log = logger_of(__name__)
T = TypeVar("T")


@for_servers
class MCPServer(Toolset):
    """Toolset of an MCP server, which is a program that the toolset starts, or an address.

        Agent(tools=[MCPServer(command="npx", args=["-y", "@modelcontextprotocol/server-filesystem", "/data"])])
        Agent(tools=[MCPServer(url="https://mcp.example/mcp", headers={"Authorization": "Bearer ..."})])

    If the process of the server ends, it is restarted after growing pauses, and running calls get the result `outcome_unknown`.
    If the server has lost its session (HTTP 404), the toolset opens a new session and repeats the refused call. Cancelling a
    call cancels it in the server. A question of the server to a person (elicitation) becomes an approval of the session; the
    call runs again with the answer. Requests of the server to a model are refused without `sampling=`.

    Args:
        command: The program, and `args` its arguments.
        env: Further environment variables of the program, which has few: not those of this process.
        cwd: Its folder.
        url: The address of a server that speaks streamable HTTP.
        headers: Sent with each request to it.
        auth: An `httpx2.Auth` for these requests, e.g. the SDK's `OAuthClientProvider`.
        oauth: The file of tokens of a server that a person authorizes by OAuth, with `actgent mcp login`; or a mapping with
            that as `tokens`, and `scope`, `client_id`, `client_secret`, `redirect_port` where the server needs them.
        allow: Hosts and networks that it may be reached at although they are not public; that of `url` is one.
        name: The toolset's name; by default the program's or the host's.
        required: True: an agent does not start without it.
        connect_timeout: Seconds to connect.
        timeout: Seconds a call may take.
        trust_hints: Believe the server's own word on what its tools do: `readOnlyHint` makes them `pure`,
            `idempotentHint` `idempotent`. Otherwise each call happens `once`.
        sampling: An async function `(messages, system_prompt, max_tokens)` that answers where the server wants a model asked
            during a call; None: it may not. What it asks of agents is paid by the turn that called.
        resources: Give the model `list_resources` and `read_resource`, where the server has any.
        lock: A file of digests, made by `actgent mcp lock`: a tool or prompt that is not in it, or that has changed
            since, is withheld and named in the log.

    Raises:
        ConfigurationError: neither or both of command and url are given.
    """

    def __init__(
        self,
        *,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        oauth: str | Path | Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
        name: str = "",
        required: bool = False,
        connect_timeout: float = CONNECT_TIMEOUT,
        timeout: float = 60.0,
        trust_hints: bool = False,
        sampling: Callable[[Sequence[ChatMessage], str, int], Awaitable[str]] | None = None,
        resources: bool = True,
        lock: str | Path | None = None,
    ) -> None:
        if (command is None) == (url is None):
            raise ConfigurationError(
                "an MCP server has either command=, a program to start, or url=: write MCPServer(command='npx', args=[...])"
            )
        _check_place(command, url)
        arguments, hosts = _texts("args", args), _texts("allow", allow)
        for argument, pairs in (("env", env), ("headers", headers)):
            _check_pairs(argument, pairs)
        if cwd is not None and not isinstance(cwd, str | PathLike):
            raise ConfigurationError(f"cwd= is the path of a folder, not {cwd!r:.200}")
        for flag, value in (("required", required), ("trust_hints", trust_hints), ("resources", resources)):
            if not isinstance(value, bool):  # a text such as "false" would count as true
                raise ConfigurationError(f"{flag}= is true or false, not {value!r:.200}")
        for argument, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if type(seconds) not in (int, float) or not seconds > 0:
                raise ConfigurationError(f"{argument}= is a number of seconds above 0, not {seconds!r:.200}")
        self.command, self.args, self.env = command, arguments, dict(env or {})
        self.cwd = None if cwd is None else fspath(cwd)
        self.url, self.headers, self.auth = url or "", dict(headers or {}), auth
        if oauth is not None and (url is None or auth is not None):
            raise ConfigurationError("oauth= is for a server with url=, and without auth=")
        self.oauth = None if oauth is None else OAuthSettings.made(oauth)
        self.allow = (*hosts, urlsplit(self.url).hostname or "") if url else ()
        self.name = check_name(
            name or (PurePath(command).name if command else urlsplit(self.url).hostname or "")
        )
        self.required = required
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self.trust_hints = trust_hints
        self.sampling = check_sampling(sampling)
        self.resources = resources
        self.lock = None if lock is None else Path(lock)
        self._links: dict[object, list[Any]] = {}
        """The connections, by the run of trio that they belong to: one, unless two runtimes of it have this server."""

    def __repr__(self) -> str:
        return f"<MCPServer {self.name!r}: {self.command or self.url}>"

    async def run(self, publish: Publish) -> None:
        if self.lock is not None:
            ToolLock.read(self.lock)  # a lock that cannot be read is found before the server starts
        before: Any = None
        deadline = math.inf  # the host bounds the first connection
        try:
            while True:
                with trio.CancelScope(deadline=deadline) as scope:
                    async with self.connected() as link:
                        await self._follow(link, publish, scope, before)
                if scope.cancelled_caught:
                    raise ToolsetUnavailable(self.name, f"no new session within {self.connect_timeout:g} s")
                # The server has forgotten the session: it was restarted, or the session ran out.
                _log.info("MCP server %s has ended the session; a new one begins", shown(self.name))
                before, deadline = link, trio.current_time() + self.connect_timeout
        finally:
            if before is not None:
                before.replaced.set()

    async def _follow(self, link: Any, publish: Publish, scope: trio.CancelScope, before: Any) -> None:
        """Publish the server's tools, again whenever they change, until the server ends the session.

        Raises:
            ConnectionResetError: The session has ended at once, as the one before it did.
        """
        begun = trio.current_time()
        while True:
            changed = link.changed = trio.Event()
            try:
                tools = await link.tools()
            except Exception:
                if link.is_forgotten:
                    break
                raise
            publish(self.unlocked(tools, link))
            scope.deadline = math.inf
            if before is not None:
                before.replaced.set()
            if not link.is_ended:
                await changed.wait()
            if link.is_ended:
                break
            await trio.sleep(LIST_PAUSE)
        await link.settle(SETTLE)
        if before is not None and trio.current_time() - begun < SETTLE + LIST_PAUSE:
            raise ConnectionResetError("the server ends each session at once")

    async def next_link(self, ended: Any) -> Any:
        """Wait for the connection after one whose session has ended.

        Raises:
            ToolsetUnavailable: There is none within the time to connect.
        """
        with trio.move_on_after(self.connect_timeout):
            await ended.replaced.wait()
        return self.link()

    @contextmanager
    def _kept(self, link: Any) -> Iterator[None]:
        run = trio.lowlevel.current_trio_token()
        links = self._links.setdefault(run, [])
        links.append(link)
        try:
            yield
        finally:
            links.remove(link)
            if not links:
                del self._links[run]

    @asynccontextmanager
    async def connected(self, asked: Any = None) -> AsyncGenerator[Any]:
        """Connect to the server, for a block that has the connection.

        Args:
            asked: An `AskedForCode`, by which a person authorizes the server now where that is needed.

        Raises:
            ConfigurationError: the SDK is not installed, or there is no such program.
            ToolsetUnavailable: the server has to be authorized.
        """
        sdk = _sdk()
        auth = self.auth if self.oauth is None else _stored_oauth(self, self.oauth, asked)
        process = None
        if self.command is not None:
            process = ServerCommand(command=self.command, args=self.args, env=self.env, cwd=self.cwd)
        opened = sdk.open_link(
            command=process,
            url=self.url,
            headers=self.headers,
            auth=auth,
            guard=Guard(self.allow),
            sampling=self.sampling,
        )
        try:
            async with opened as link:
                with self._kept(link):
                    yield link
        except Exception as error:
            if self.oauth is not None and (failure := auth.failure()) is not None:
                raise failure from error
            raise

    def link(self) -> Any:
        """The connection that there is.

        Raises:
            ToolsetUnavailable: there is none.
        """
        links = self._links.get(trio.lowlevel.current_trio_token())
        if not links:
            raise ToolsetUnavailable(self.name, "it is not connected")
        return links[-1]

    async def prompts(self) -> list[dict[str, Any]]:
        """Which prompts the server suggests: name, description, and arguments with name, description and required.

        By the connection that there is; where there is none, by one for this alone.

        Raises:
            ToolError: the server has none, or cannot tell.
        """
        listed: list[dict[str, Any]] = await self._asked(lambda link: link.prompts())
        withheld = self._withheld_prompts(listed)
        for name, reason in withheld.items():
            _log.warning(
                "MCP server %s: prompt %s is withheld: %s", shown(self.name), shown(name), shown(reason)
            )
        return [each for each in listed if each["name"] not in withheld]

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> Sequence[ChatMessage]:
        """The messages of a prompt, whose last is to be said and whose others came before it.

        After `*before, last = await server.prompt("review", {"language": "Python"})`, those before go into
        `agent.create_session("ada", history=before)`, and the last one into `session.chat(last.parts)`.

        A stranger wrote them: say them where a person has chosen the prompt, and not for a model that asked for it.

        Raises:
            ToolError: there is none of this name, the lock withholds it, or the arguments do not fit.
        """

        async def ask(link: Any) -> Sequence[ChatMessage]:
            if self.lock is not None:
                self._check_prompt(name, await link.prompts())
            messages: Sequence[ChatMessage] = await link.prompt(name, arguments or {})
            return messages

        return await self._asked(ask)

    def _withheld_prompts(self, listed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Why the lock withholds prompts, by name; of two of one name both."""
        if self.lock is None:
            return {}
        lock = ToolLock.read(self.lock)
        reasons = [(each["name"], lock.why_prompt_withheld(self.name, each)) for each in listed]
        return {name: reason for name, reason in reasons if reason is not None}

    def _check_prompt(self, name: str, listed: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a prompt that the lock withholds, and one that the server does not list."""
        if all(each["name"] != name for each in listed):
            raise ToolError(f"the server lists no prompt {name[:100]!r}, and so the lock has none")
        if reason := self._withheld_prompts(listed).get(name):
            raise ToolError(f"the prompt {name[:100]!r} is withheld: {reason}")

    async def _asked(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """Ask by the connection that there is; where there is none, by one for this alone.

        Raises:
            ToolError: as `ask` does, without the groups of the connection round it; or the server cannot be connected.
        """
        links = self._links.get(trio.lowlevel.current_trio_token())
        if links:
            return await ask(links[-1])
        try:
            async with self.connected() as link:
                return await ask(link)
        except Exception as error:
            leaf = next(leaves(error))
            if isinstance(leaf, ActgentError):
                raise leaf from None
            raise ToolsetUnavailable(self.name, worded(leaf)) from error

    def unlocked(self, listed: Sequence[Any], link: Any) -> list[Tool]:
        """The tools of a server as an agent has them, but for those that the lock withholds."""
        lock = None if self.lock is None else ToolLock.read(self.lock)
        tools: list[Tool] = []
        for each in listed:
            withheld = None if lock is None else lock.why_withheld(self.name, each.name, tool_digest(each))
            if withheld is None:
                tools.append(MCPTool(self, each))
            else:
                _log.warning(
                    "MCP server %s: tool %s is withheld: %s", shown(self.name), shown(each.name), withheld
                )
        if self.resources and link.has_resources:
            tools += [ListResources(self), ReadResource(self)]
        return tools


class MCPTool(Tool):
    """A tool of a server."""

    outside = True

    def __init__(self, server: MCPServer, listed: Any) -> None:
        self._server = server
        self._remote = listed.name
        self.name = listed.name
        self.description = listed.description or listed.title or ""
        self.parameters = _object_schema(listed.input_schema)
        self.timeout = server.timeout
        self.effect = _effect(listed.annotations) if server.trust_hints else "once"

    def __repr__(self) -> str:
        return f"<MCPTool {self._remote!r} of {self._server.name!r}>"

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        grant = context.approval
        answer = grant if isinstance(grant, FormAnswer) else None
        report = None if context.report is None else partial(_report, context)
        link = self._server.link()
        try:
            return await link.call(self._remote, arguments, answer=answer, on_progress=report)
        except SessionForgotten:  # the call did not run
            link = await self._server.next_link(link)
            return await link.call(self._remote, arguments, answer=answer, on_progress=report)


def _report(context: ToolContext, done: float, total: float | None, text: str | None) -> None:
    context.progress(done, total, text or "")


class ListResources(Tool):
    """Lists what documents a server has."""

    outside = True
    name = "list_resources"
    description = "List the documents that this server has, with their URIs."
    effect: Effect = "pure"
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

    def __init__(self, server: MCPServer) -> None:
        self._server = server
        self.timeout = server.timeout

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        return await self._server.link().resources()


class ReadResource(Tool):
    """Reads a document of a server."""

    outside = True
    name = "read_resource"
    description = "Read a document of this server by its URI."
    effect: Effect = "pure"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"uri": {"type": "string"}},
        "required": ["uri"],
        "additionalProperties": False,
    }

    def __init__(self, server: MCPServer) -> None:
        self._server = server
        self.timeout = server.timeout

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        return await self._server.link().read(arguments["uri"])


def _sdk() -> Any:
    """Return what speaks MCP, by the SDK.

    Raises:
        ConfigurationError: it is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationError("MCP servers need the extra: pip install 'actgent[mcp]'")
    from . import link  # noqa: PLC0415 - the SDK takes half a second

    return link


def _check_place(command: object, url: object) -> None:
    if command is not None and not (isinstance(command, str) and command):
        raise ConfigurationError(f"command= is the name of a program, not {command!r:.200}")
    if url is not None and not _is_address(url):
        raise ConfigurationError(
            f"url= is the address of a server, such as https://tools.example.com/mcp, not {url!r:.200}"
        )


def _texts(argument: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        raise ConfigurationError(f"{argument}= is a list: {argument}={given.split()!r}")
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"{argument}= is a list of texts, not {given!r:.200}")
    texts = tuple(given)
    for each in texts:
        if not isinstance(each, str):
            raise ConfigurationError(f"{argument}= is a list of texts, and {each!r:.200} is not a text")
    return texts


def _check_pairs(argument: str, given: object) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{argument}= is a dict, such as {argument}={{'NAME': 'value'}}, not a {type(given).__name__}"
        )
    for name, value in () if given is None else given.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise ConfigurationError(
                f"{argument}= is a dict of texts, and the value of {name!r:.200} is of type {type(value).__name__}"
            )


def _is_address(url: object) -> bool:
    return isinstance(url, str) and is_http_url(url)


def check_sampling(sampling: Any) -> Any:
    """Refuse what cannot answer for a model.

    Raises:
        ConfigurationError: it is no async function.
    """
    if sampling is not None and not inspect.iscoroutinefunction(sampling):
        raise ConfigurationError(
            f"sampling= is an async function (messages, system_prompt, max_tokens), not {sampling!r:.100}"
        )
    return sampling


def _stored_oauth(server: MCPServer, settings: OAuthSettings, asked: Any) -> Any:
    from .oauth import StoredOAuth  # noqa: PLC0415 - with the SDK

    return StoredOAuth(server.name, server.url, settings, asked)


def _object_schema(schema: Any) -> Mapping[str, Any]:
    """The schema of a tool's arguments; some servers leave out that they are an object."""
    given = schema if isinstance(schema, Mapping) else {}
    more: dict[str, Any] = {} if "$ref" in given else {"properties": {}}
    return {"type": "object", **more, **given}


def _effect(hints: Any) -> Effect:
    if hints is not None and hints.read_only_hint:
        return "pure"
    if hints is not None and hints.idempotent_hint:
        return "idempotent"
    return "once"
