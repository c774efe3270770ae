"""`MCPServer`: the tools of an MCP server as a toolset.

The toolset's task owns the connection, and tasks of turns send calls through it. The SDK is imported when a server
connects.

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
from urllib.parse import parse_qsl, urlsplit

import trio

from actgent.approvals import FormAnswer
from actgent.errors import ActgentError, ConfigurationError, ToolError, ToolsetUnavailable
from actgent.errors.text_escaping import shown
from actgent.information_flow_labels import from_ifc, text_of
from actgent.messages import ChatMessage
from actgent.support.common_mistake_hints import hints_for_servers
from actgent.support.safe_logging import logger_of
from actgent.support.untrusted_text_delimiters import join_origins
from actgent.support.user_code_calls import leaves
from actgent.tools.outputs.result_text import error_text
from actgent.tools.tool_interface import Effect, Tool, ToolContext
from actgent.tools.untrusted_sources_of_call import running_call
from actgent.toolsets.http.bounded_http_requests import is_http_url
from actgent.toolsets.http.internal_address_blocking import Guard
from actgent.toolsets.toolset import CONNECT_TIMEOUT_SECONDS, ConnectionInfo, Publish, Toolset, check_name

from .expired_session_error import SessionExpired
from .oauth_token_file import OAuthSettings
from .server_command import ServerCommand
from .tool_lock_file import ToolLock, tool_digest

LIST_INTERVAL_SECONDS = 0.5
"""Minimum time between two requests for the tool list, regardless of how often the server reports changes."""
DRAIN_SECONDS = 0.3
"""Time for pending responses to arrive after a server has ended the session."""
MIN_SECRET_CHARS = 6
"""Minimum length of a text that is removed from error messages. Shorter texts, such as `-y`, occur in other words."""
_log = logger_of(__name__)
T = TypeVar("T")


@hints_for_servers
class MCPServer(Toolset):
    """Toolset of an MCP server, either a program that the toolset starts or a URL.

        Agent(tools=[MCPServer(command="npx", args=["-y", "@modelcontextprotocol/server-filesystem", "/data"])])
        Agent(tools=[MCPServer(url="https://mcp.example/mcp", headers={"Authorization": "Bearer ..."})])

    If the server process ends, it is restarted after growing delays, and running calls get the result
    `outcome_unknown`. If the server has lost its session (HTTP 404), the toolset opens a new session and repeats the
    rejected call. Cancelling a call cancels it in the server. A question of the server (elicitation) becomes an
    approval of the session, unless `answers=` answers it. The call runs again with the approver's answer; with
    revision 2026-07-28 the server continues it from its state. Sampling requests are rejected without `sampling=`.

    Args:
        command: Program to start.
        args: Arguments of the program.
        env: Environment variables of the program. It does not inherit those of this process, except a few basic ones.
        cwd: Working directory of the program.
        url: URL of a server with streamable HTTP.
        headers: Headers sent with each request.
        auth: An `httpx2.Auth` for the requests, e.g. the SDK's `OAuthClientProvider`.
        oauth: Path of the token file of a server that is authorized by `actgent mcp login`; or a mapping with the
            path as `tokens`, and optionally `scope`, `client_id`, `client_secret`, `client_metadata_url` and
            `redirect_port`.
        allow: Hosts and networks that are reachable although they are not public. The host of `url` is always
            allowed.
        name: Name of the toolset; defaults to the name of the program or host.
        required: True if agents do not start without the server.
        connect_timeout: Time limit of a connection attempt in seconds.
        timeout: Time limit of a call in seconds.
        trust_hints: Trust the server's hints: `readOnlyHint` makes a tool `pure`, `idempotentHint` makes it
            `idempotent`. Otherwise every tool is `once`.
        sampling: Async function `(messages, system_prompt, max_tokens)` that answers sampling requests during calls.
            None rejects them. Its model usage counts for the turn of the call.
        answers: Async function `(question, schema)` that returns the content of an answer to a server's question, or
            None to ask an approver. It may only return values that the program may disclose to the server.
        resources: True gives the model `list_resources` and `read_resource` if the server has resources.
        lock: Lock file created by `actgent mcp lock`. Tools and prompts that are not in it or have changed since are
            blocked and logged.

    Raises:
        ConfigurationError: Neither or both of command and url are given, or an argument is invalid.
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
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        timeout: float = 60.0,
        trust_hints: bool = False,
        sampling: Callable[[Sequence[ChatMessage], str, int], Awaitable[str]] | None = None,
        answers: Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]] | None = None,
        resources: bool = True,
        lock: str | Path | None = None,
    ) -> None:
        if (command is None) == (url is None):
            raise ConfigurationError(
                "pass either command= (a program to start) or url=: MCPServer(command='npx', args=[...])"
            )
        _check_place(command, url)
        arguments, hosts = _texts("args", args), _texts("allow", allow)
        for argument, pairs in (("env", env), ("headers", headers)):
            _check_pairs(argument, pairs)
        if cwd is not None and not isinstance(cwd, str | PathLike):
            raise ConfigurationError(f"cwd= must be the path of a folder, not {cwd!r:.200}")
        for flag, value in (("required", required), ("trust_hints", trust_hints), ("resources", resources)):
            if not isinstance(value, bool):  # text such as "false" would be true
                raise ConfigurationError(f"{flag}= must be True or False, not {value!r:.200}")
        for argument, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if type(seconds) not in (int, float) or not seconds > 0:
                raise ConfigurationError(
                    f"{argument}= must be a number of seconds above 0, not {seconds!r:.200}"
                )
        self.command, self.args, self.env = command, arguments, dict(env or {})
        self.cwd = None if cwd is None else fspath(cwd)
        self.url, self.headers, self.auth = url or "", dict(headers or {}), auth
        if oauth is not None and (url is None or auth is not None):
            raise ConfigurationError("oauth= requires url= and excludes auth=")
        self.oauth = None if oauth is None else OAuthSettings.parse(oauth)
        self.allow = (*hosts, urlsplit(self.url).hostname or "") if url else ()
        self.name = check_name(
            name or (PurePath(command).name if command else urlsplit(self.url).hostname or "")
        )
        self.required = required
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self.trust_hints = trust_hints
        self.sampling = check_sampling(sampling)
        if answers is not None and not inspect.iscoroutinefunction(answers):
            raise ConfigurationError(
                f"answers= must be an async function (question, schema), not {answers!r:.100}"
            )
        self.answers = answers
        self.resources = resources
        self.lock = None if lock is None else Path(lock)
        self._connections: dict[object, list[Any]] = {}
        """Open connections by trio run. More than one only if two runtimes of a run use this server."""

    def __repr__(self) -> str:
        return f"<MCPServer {self.name!r}: {self.command or self.url}>"

    @property
    def connection_info(self) -> ConnectionInfo:
        links = self._connections.get(trio.lowlevel.current_trio_token(), ())
        revision, server = links[-1].identity if links else ("", "")
        return ConnectionInfo(
            kind="mcp",
            address=PurePath(self.command).name if self.command else _origin_of(self.url),
            protocol=revision,
            server=server,
            secrets=tuple(self._secrets()),
        )

    def _secrets(self) -> Iterator[str]:
        """Yield the secret texts to remove from error messages. Texts below `MIN_SECRET_CHARS` characters are left out."""
        url = urlsplit(self.url)
        texts = [*self.env.values(), *self.args, url.username, url.password, url.query, *url.path.split("/")]
        texts += [value for _, value in parse_qsl(url.query)]
        for header in self.headers.values():
            texts += [header, header.rpartition(" ")[2]]
        if self.oauth is not None:
            texts.append(self.oauth.client_secret)
        yield from (each for each in texts if each and len(each) >= MIN_SECRET_CHARS)

    async def run(self, publish: Publish) -> None:
        if self.lock is not None:
            ToolLock.read(self.lock)  # an unreadable lock fails before the server starts
        before: Any = None
        deadline = math.inf  # the toolset manager limits the first connection
        try:
            while True:
                with trio.CancelScope(deadline=deadline) as scope:
                    async with self.connected() as link:
                        await self._follow(link, publish, scope, before)
                if scope.cancelled_caught:
                    raise ToolsetUnavailable(
                        self.name, f"the MCP server opened no new session within {self.connect_timeout:g} s"
                    )
                # The server has dropped the session: it was restarted, or the session expired.
                _log.info("MCP server %s has ended the session; opening a new one", shown(self.name))
                before, deadline = link, trio.current_time() + self.connect_timeout
        finally:
            if before is not None:
                before.replaced.set()

    async def _follow(self, link: Any, publish: Publish, scope: trio.CancelScope, before: Any) -> None:
        """Publish the server's tools now and whenever they change, until the server ends the session of the connection `link`.

        Args:
            link: The open connection.
            publish: Receives the tools.
            scope: Cancel scope of the connection.
            before: The connection before this one; None for the first.

        Raises:
            ConnectionResetError: The session ended immediately, like the session before it.
        """
        begun = trio.current_time()
        while True:
            changed = link.changed = trio.Event()
            try:
                tools = await link.tools()
            except SessionExpired:
                break
            publish(self.make_tools(tools, link))
            scope.deadline = math.inf
            if before is not None:
                before.replaced.set()
            if not link.is_ended:
                await changed.wait()
            if link.is_ended:
                break
            await trio.sleep(LIST_INTERVAL_SECONDS)
        await link.wait_calls(DRAIN_SECONDS)
        if before is not None and trio.current_time() - begun < DRAIN_SECONDS + LIST_INTERVAL_SECONDS:
            raise ConnectionResetError("the MCP server ends every session immediately")

    async def next_connection(self, ended: Any) -> Any:
        """Wait until a new connection replaces the connection `ended`, and return the new one.

        Raises:
            ToolsetUnavailable: No connection was opened within `connect_timeout`.
        """
        with trio.move_on_after(self.connect_timeout):
            await ended.replaced.wait()
        return self.connection()

    @contextmanager
    def _set_current_connection(self, link: Any) -> Iterator[None]:
        """Context manager: send the calls of this toolset over `link`, its newest connection, while the block runs."""
        run = trio.lowlevel.current_trio_token()
        links = self._connections.setdefault(run, [])
        links.append(link)
        try:
            yield
        finally:
            links.remove(link)
            if not links:
                del self._connections[run]

    @asynccontextmanager
    async def connected(self, login: Any = None) -> AsyncGenerator[Any]:
        """Async context manager: connect to the server, and give the block the connection.

        Args:
            login: A `LoginPrompt` for a browser login if authorization is needed; None fails instead.

        Raises:
            ConfigurationError: The SDK is not installed, or the program cannot be started.
            ToolsetUnavailable: The server is not authorized.
        """
        sdk = _sdk()
        auth = self.auth if self.oauth is None else _stored_oauth(self, self.oauth, login)
        process = None
        if self.command is not None:
            process = ServerCommand(command=self.command, args=self.args, env=self.env, cwd=self.cwd)
        opened = sdk.open_connection(
            name=self.name,
            command=process,
            url=self.url,
            headers=self.headers,
            auth=auth,
            guard=Guard(self.allow),
            sampling=self.sampling,
            answers=self.answers,
        )
        try:
            async with opened as link:
                with self._set_current_connection(link):
                    yield link
        except Exception as error:
            if self.oauth is not None and (failure := auth.failure()) is not None:
                raise failure from error
            raise

    def connection(self) -> Any:
        """Return the newest open connection to the MCP server in this trio run.

        Raises:
            ToolsetUnavailable: The server is not connected.
        """
        links = self._connections.get(trio.lowlevel.current_trio_token())
        if not links:
            raise ToolsetUnavailable(self.name, "it is not connected")
        return links[-1]

    async def prompts(self) -> list[dict[str, Any]]:
        """Return the server's prompts: name, description, and arguments with name, description and required.

        Uses the open connection, or opens one for this request.

        Raises:
            ToolError: The server has no prompts, or failed to list them.
        """
        listed: list[dict[str, Any]] = await self._with_connection(lambda link: link.prompts())
        withheld = self._withheld_prompts(listed)
        for name, reason in withheld.items():
            _log.warning(
                "MCP server %s: prompt %s is withheld: %s", shown(self.name), shown(name), shown(reason)
            )
        return [each for each in listed if each["name"] not in withheld]

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> Sequence[ChatMessage]:
        """Return the messages of a server's prompt. Send the last message, and pass the others as history.

        ```python
        *before, last = await server.prompt("review", {"language": "Python"})
        session = await agent.create_session("ada", history=before)
        await session.chat(last.parts)
        ```

        The messages are untrusted: use a prompt that the user has chosen, not a prompt that a model asked for.

        Raises:
            ToolError: The prompt is unknown, blocked by the lock, or the arguments are invalid.
        """

        async def ask(link: Any) -> Sequence[ChatMessage]:
            if self.lock is not None:
                self._check_prompt(name, await link.prompts())
            messages: Sequence[ChatMessage] = await link.prompt(name, arguments or {})
            return messages

        return await self._with_connection(ask)

    def _withheld_prompts(self, listed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Return why the lock blocks prompts, by prompt name. `listed` are the server's prompts."""
        if self.lock is None:
            return {}
        lock = ToolLock.read(self.lock)
        reasons = [(each["name"], lock.prompt_withheld_reason(self.name, each)) for each in listed]
        return {name: reason for name, reason in reasons if reason is not None}

    def _check_prompt(self, name: str, listed: Sequence[Mapping[str, Any]]) -> None:
        """Raise `ToolError` if the server does not list a prompt, or if the prompt differs from its version in the lock file."""
        if all(each["name"] != name for each in listed):
            raise ToolError(f"the MCP server has no prompt {name[:100]!r}")
        if reason := self._withheld_prompts(listed).get(name):
            raise ToolError(f"the prompt {name[:100]!r} is withheld: {reason}")

    async def _with_connection(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """Call `ask(connection)`, and return its result. If no connection is open, open a connection for this call.

        Raises:
            ToolError: As `ask` raises it, without exception groups; or the server cannot be connected.
        """
        links = self._connections.get(trio.lowlevel.current_trio_token())
        if links:
            return await ask(links[-1])
        try:
            async with self.connected() as link:
                return await ask(link)
        except Exception as error:
            leaf = next(leaves(error))
            if isinstance(leaf, ActgentError):
                raise leaf from None
            raise ToolsetUnavailable(self.name, error_text(leaf)) from error

    def make_tools(self, listed: Sequence[Any], link: Any) -> list[Tool]:
        """Convert the server's listed tools to tools for agents. Leave out tools that differ from the tool lock file."""
        lock = None if self.lock is None else ToolLock.read(self.lock)
        tools: list[Tool] = []
        for each in listed:
            withheld = None if lock is None else lock.withheld_reason(self.name, each.name, tool_digest(each))
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
    """Tool that calls a tool of an MCP server."""

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
        options: dict[str, Any] = {
            "answer": answer,
            "on_progress": report,
            "on_meta": partial(self._restrict, context),
            "sources": _sources_of(context),
        }
        link = self._server.connection()
        try:
            return await link.call(self._remote, arguments, **options)
        except SessionExpired:  # the call did not run, so it may be repeated
            link = await self._server.next_connection(link)
            return await link.call(self._remote, arguments, **options)

    def _restrict(self, context: ToolContext, meta: Mapping[str, Any]) -> None:
        """Add the labels in the result's member `_meta.ifc` to the result of a call. Labels name sources and readers.

        The result is untrusted without the integrity `trusted`. The confidentiality sets its permitted readers: `public`,
        `private` (the owner of the topmost session), or a list of names of owners; other values allow no owner. The server can
        restrict a tool that the program declares trusted, but it can never raise the trust of a result.
        """
        if "ifc" not in meta:
            return
        label = from_ifc(meta["ifc"], source=self._server.name, owner=context.root_owner)
        if not label.is_trusted:
            context.origin = self._server.name
        if label.readers is not None:
            context.readers = sorted(label.readers)


def _sources_of(context: ToolContext) -> str:
    """Return the untrusted sources of the turn that runs a call, of the arguments of the call, and of its outer call."""
    running = running_call.get()
    given = join_origins(context.outer_sources, "" if running is None else running.argument_sources)
    return given if context.session is None else join_origins(text_of(context.session.label), given)


def _report(context: ToolContext, done: float, total: float | None, text: str | None) -> None:
    context.progress(done, total, text or "")


class ListResources(Tool):
    """Tool that lists the resources of a server."""

    outside = True
    name = "list_resources"
    description = "List the documents of this server with their URIs."
    effect: Effect = "pure"
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

    def __init__(self, server: MCPServer) -> None:
        self._server = server
        self.timeout = server.timeout

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        return await self._server.connection().resources()


class ReadResource(Tool):
    """Tool that reads a resource of a server."""

    outside = True
    name = "read_resource"
    description = "Read a document of this server by its URI."
    effect: Effect = "pure"
    sinks = ("uri",)  # an address can carry data out
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
        grant = context.approval
        answer = grant if isinstance(grant, FormAnswer) else None
        return await self._server.connection().read(arguments["uri"], answer=answer)


def _sdk() -> Any:
    """Import and return the module `server_connection`, which requires the MCP SDK.

    Raises:
        ConfigurationError: The SDK is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationError("MCP servers need the extra: pip install 'actgent[mcp]'")
    from . import server_connection  # noqa: PLC0415 - the SDK takes half a second

    return server_connection


def _check_place(command: object, url: object) -> None:
    if command is not None and not (isinstance(command, str) and command):
        raise ConfigurationError(f"command= must be the name of a program, not {command!r:.200}")
    if url is not None and not (isinstance(url, str) and is_http_url(url)):
        raise ConfigurationError(
            f"url= must be the URL of a server, such as https://tools.example.com/mcp, not {url!r:.200}"
        )


def _texts(argument: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        raise ConfigurationError(f"{argument}= must be a list: {argument}={given.split()!r}")
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"{argument}= must be a list of strings, not {given!r:.200}")
    texts = tuple(given)
    for each in texts:
        if not isinstance(each, str):
            raise ConfigurationError(
                f"{argument}= must be a list of strings, but {each!r:.200} is not a string"
            )
    return texts


def _check_pairs(argument: str, given: object) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{argument}= must be a dict, such as {argument}={{'NAME': 'value'}}, not a {type(given).__name__}"
        )
    for name, value in () if given is None else given.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise ConfigurationError(
                f"{argument}= must be a dict of texts, but the value of {name!r:.200} is of type {type(value).__name__}"
            )


def _origin_of(url: str) -> str:
    """Return scheme, host and port of a URL for logs. Path and query are left out, because they may contain tokens."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def check_sampling(sampling: Any) -> Any:
    """Validate the argument `sampling=`, and return it. None is allowed.

    Raises:
        ConfigurationError: The value is not an async function.
    """
    if sampling is not None and not inspect.iscoroutinefunction(sampling):
        raise ConfigurationError(
            f"sampling= must be an async function (messages, system_prompt, max_tokens), not {sampling!r:.100}"
        )
    return sampling


def _stored_oauth(server: MCPServer, settings: OAuthSettings, login: Any) -> Any:
    from .oauth import StoredOAuth  # noqa: PLC0415 - with the SDK

    return StoredOAuth(server.name, server.url, settings, login)


def _object_schema(schema: Any) -> Mapping[str, Any]:
    """Return a tool's input schema with the type `object`, which some servers omit."""
    given = schema if isinstance(schema, Mapping) else {}
    more: dict[str, Any] = {} if "$ref" in given else {"properties": {}}
    return {"type": "object", **more, **given}


def _effect(hints: Any) -> Effect:
    """Convert the server's hints about a tool (`readOnlyHint`, `idempotentHint`) to an effect. Without a hint it is `once`."""
    if hints is not None and hints.read_only_hint:
        return "pure"
    if hints is not None and hints.idempotent_hint:
        return "idempotent"
    return "once"
