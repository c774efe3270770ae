"""`actgent mcp list`, `call`, `login`, `check` and `lock`: the MCP servers of a file or a folder, without an agent."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import orjson
import trio

from actgent.cli.terminal import Lines, Terminal, one_line
from actgent.cli.tool_list import short_schema
from actgent.definitions.instructions import BRAIN
from actgent.definitions.toolset_files import SERVERS
from actgent.errors import ActgentError, AskPerson, ConfigurationError, OutcomeUnknown, ParseError, nearest
from actgent.errors.printable import counted
from actgent.messages import Part, Text
from actgent.support.files import file_change
from actgent.support.foreign import failure_of, leaves
from actgent.support.strict_json import loads
from actgent.tools.base import Tool, ToolContext
from actgent.tools.outputs.media import in_words
from actgent.tools.outputs.results import worded
from actgent.toolsets.mcp import (
    LOCK,
    AllowedEnvironment,
    MCPServer,
    ToolLock,
    mcp_servers,
    prompt_digest,
    tool_digest,
)

_UNKNOWN = "; nobody knows whether the call took effect"


@attrs.frozen
class Listing:
    """What a server said of its tools and prompts, or why it said nothing."""

    tools: Sequence[Any] = ()
    """As the SDK has them."""
    prompts: Sequence[Mapping[str, Any]] = ()
    """As `MCPServer.prompts` lists them."""
    problem: str = ""

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each tool, by name."""
        return {each.name: tool_digest(each) for each in self.tools}

    @property
    def prompt_digests(self) -> dict[str, str]:
        """The digest of each prompt, by name."""
        return {each["name"]: prompt_digest(each) for each in self.prompts}


async def list_servers(
    target: str, terminal: Terminal, *, json: bool = False, allow_env: Sequence[str] = ()
) -> int:
    """Show the servers with their tools, and what withholds one. 1 if one is not available."""
    servers, _ = _servers(target, allow_env)
    answers = await _ask(servers, terminal)
    if json:
        terminal.raw(
            orjson.dumps([_data(s, a) for s, a in zip(servers, answers, strict=True)], default=str).decode()
        )
    else:
        for server, answer in zip(servers, answers, strict=True):
            _show(terminal, server, answer)
    return 1 if any(answer.problem for answer in answers) else 0


async def call_tool(
    target: str, server: str, tool: str, arguments: str, terminal: Terminal, *, allow_env: Sequence[str] = ()
) -> int:
    """Run one tool and show its result. 1 if it fails."""
    given = _arguments(arguments)
    chosen = _named(_servers(target, allow_env)[0], server)
    has_begun = False
    problem = ""
    with trio.move_on_after(chosen.connect_timeout) as connecting:
        try:
            async with chosen.connected() as link:
                tools = {each.name: each for each in chosen.unlocked(await link.tools(), link)}
                has_begun = tool in tools
                connecting.deadline = trio.current_time() + chosen.timeout
                terminal.line(in_words(await _run(tools, tool, given, server)))
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - groups of the connection round one error
            problem = _words_of(failure_of(raised, "MCP server", server), has_begun=has_begun)
    if connecting.cancelled_caught:
        problem = f"{server} did not answer in time{_UNKNOWN if has_begun else ''}"
    if problem:
        terminal.complain(problem)
    return 1 if problem else 0


async def show_prompts(
    target: str,
    terminal: Terminal,
    *,
    server: str = "",
    name: str = "",
    arguments: str = "{}",
    allow_env: Sequence[str] = (),
) -> int:
    """List the prompts of all servers, or of one; or show one with its arguments. 1 if a server fails."""
    servers, _ = _servers(target, allow_env)
    given = _arguments(arguments)
    chosen = [_named(servers, server)] if server else servers
    failed = False
    for each in chosen:
        try:
            with trio.fail_after(each.connect_timeout + each.timeout):
                await _show_prompts(each, name, given, terminal)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - groups of the connection round one error
            failed = True
            terminal.complain(f"{each.name}: {_words_of(failure_of(raised, 'MCP server', each.name))}")
    return 1 if failed else 0


async def _show_prompts(server: MCPServer, name: str, given: Mapping[str, Any], terminal: Terminal) -> None:
    if name:
        for message in await server.prompt(name, {key: str(text) for key, text in given.items()}):
            terminal.line(f"{message.role}: {_in_words(message.parts)}")
        return
    for prompt in await server.prompts():
        arguments = ", ".join(a["name"] + ("" if a["required"] else "?") for a in prompt["arguments"])
        about = one_line(prompt["description"] or "", 200)
        terminal.line(
            f"{server.name}: {one_line(prompt['name'])}({one_line(arguments)}){f'  {about}' if about else ''}"
        )


def _in_words(parts: Sequence[Part]) -> str:
    return "\n".join(part.text if isinstance(part, Text) else in_words(part) for part in parts)


async def log_in(
    target: str, server: str, terminal: Terminal, *, again: bool = False, allow_env: Sequence[str] = ()
) -> int:
    """Let a person authorize a server by OAuth, where its tokens do not do. 1 if it fails."""
    servers, _ = _servers(target, allow_env)
    chosen = _named(servers, server)
    if chosen.oauth is None:
        raise ConfigurationError(
            f'{server} has no "oauth" in the file: name the file of its tokens, as in "oauth": "mcp-tokens.json"'
        )
    problem = ""
    try:
        count = await _authorize(chosen, terminal, again=again)
        terminal.line(
            f"{server} is authorized, and has {counted(count, 'tool')}; its tokens are in {chosen.oauth.tokens}"
        )
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - groups of the connection round one error
        problem = _words_of(failure_of(raised, "MCP server", server))
    if problem:
        terminal.complain(problem)
    return 1 if problem else 0


async def _authorize(server: MCPServer, terminal: Terminal, *, again: bool) -> int:
    """Connect to a server, with a person; returns how many tools it has."""
    from actgent.toolsets.mcp.login import open_login  # noqa: PLC0415 - the SDK takes half a second

    async def show(url: str) -> None:
        await trio.lowlevel.checkpoint()
        terminal.notice(f"to authorize {server.name}, open this address in a browser:")
        terminal.line(url)
        terminal.notice("waiting; where the browser cannot come back here, paste the address that it ends at")

    lines = Lines(sys.stdin.fileno()).receive
    async with (
        open_login(server, show=show, lines=lines, again=again) as asked,
        server.connected(asked) as link,
    ):
        return len(await link.tools())


async def check_servers(target: str, terminal: Terminal, *, allow_env: Sequence[str] = ()) -> int:
    """Connect to each server and compare its tools and prompts with the lock. 1 if one fails or differs."""
    servers, _ = _servers(target, allow_env)
    answers = await _ask(servers, terminal)
    wrong = False
    for server, answer in zip(servers, answers, strict=True):
        changes = _changes(server, answer)
        wrong = wrong or bool(answer.problem or changes)
        state = answer.problem or f"{_counted(answer.tools, answer.prompts)}, {_locked(server, changes)}"
        terminal.line(f"{server.name}: {one_line(state)}")
        for change in changes:
            terminal.line(f"  {one_line(change)}")
    return 1 if wrong else 0


async def lock_servers(target: str, terminal: Terminal, *, allow_env: Sequence[str] = ()) -> int:
    """Show how tools and prompts differ from the lock, and write it anew; a server that fails keeps what it had. 1 if one does."""
    servers, place = _servers(target, allow_env)
    answers = await _ask(servers, terminal)
    for path in dict.fromkeys(server.lock or place / LOCK for server in servers):
        its = [pair for pair in zip(servers, answers, strict=True) if (pair[0].lock or place / LOCK) == path]
        async with file_change(path):
            _lock(path, its, terminal)
    return 1 if any(answer.problem for answer in answers) else 0


def _lock(path: Path, its: Sequence[tuple[MCPServer, Listing]], terminal: Terminal) -> None:
    """Write one lock anew, with what its servers said; alone, since another process may do so at the same time."""
    old = ToolLock.read(path) if path.is_file() else ToolLock()
    new: dict[str, Mapping[str, str]] = {}
    prompts: dict[str, Mapping[str, str]] = {}
    for server, answer in its:
        before = old.of(server.name)
        if answer.problem:
            terminal.complain(f"{server.name} keeps what was locked: {answer.problem}")
        now = before if answer.problem else (answer.digests, answer.prompt_digests)
        new[server.name], prompts[server.name] = now
        for change in _all_differences(before, now):
            terminal.line(f"{server.name}: {one_line(change)}")
    for gone in sorted(old.servers.keys() - new.keys()):
        terminal.line(f"{gone}: - the server is not in the file any more")
    ToolLock(new, prompts).write(path)
    told = _counted(*([name for each in kind.values() for name in each] for kind in (new, prompts)))
    terminal.line(f"{path}: {told} of {counted(len(new), 'server')} locked")


def _counted(tools: Sequence[Any], prompts: Sequence[Any]) -> str:
    """Word how many there are; prompts only where there are any."""
    return counted(len(tools), "tool") + (f" and {counted(len(prompts), 'prompt')}" if prompts else "")


def _all_differences(old: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, str]]) -> list[str]:
    """Word how tools and prompts differ."""
    prompts = [f"{change[0]} prompt {change[2:]}" for change in differences(old[1], new[1])]
    return differences(old[0], new[0]) + prompts


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Word how the digests of a server's tools differ: `+` came, `-` went, `~` changed."""
    marks = {
        name: "+" if name not in old else "-" if name not in new else "~" for name in old.keys() | new.keys()
    }
    return [f"{mark} {name}" for name, mark in sorted(marks.items()) if old.get(name) != new.get(name)]


# --- the servers -------------------------------------------------------------------------------


def _servers(target: str, allow_env: Sequence[str]) -> tuple[list[MCPServer], Path]:
    """The servers of a file, or of the one in a folder, and the folder.

    `allow_env` are the environment variables that the servers may use.

    Raises:
        ConfigurationError: there is no such file, or something is wrong in it.
    """
    path = Path(target)
    if path.name == BRAIN:
        path = path.parent
    if path.is_dir():
        path /= SERVERS
    return mcp_servers(path, environment=AllowedEnvironment(allow_env)), path.parent


def _named(servers: Sequence[MCPServer], name: str) -> MCPServer:
    found = next((server for server in servers if server.name == name), None)
    if found is None:
        known = [server.name for server in servers]
        meant = nearest(name, known) if known else "none is configured"
        raise ConfigurationError(f"there is no server {name!r}: {meant}")
    return found


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = loads(text)
    except ParseError as error:
        raise ConfigurationError(f"the arguments are not JSON: {error.reason}") from error
    if not isinstance(given, dict):
        raise ConfigurationError(
            f"""the arguments are a JSON object, e.g. '{{"text": "hi"}}', not {text:.80}"""
        )
    return given


async def _run(tools: Mapping[str, Tool], name: str, arguments: dict[str, Any], server: str) -> object:
    if name not in tools:
        raise ConfigurationError(
            f"{server} has no tool {name!r}, or the lock withholds it (there are: {', '.join(tools) or 'none'})"
        )
    return await tools[name].execute(tools[name].argument_validator.validate(arguments), ToolContext())


async def _ask(servers: Sequence[MCPServer], terminal: Terminal) -> list[Listing]:
    """Connect to all servers side by side; each that is done is told of."""
    answers: dict[int, Listing] = {}

    async def ask(place: int, server: MCPServer) -> None:
        answers[place] = answer = await _answer(server)
        terminal.notice(
            f"{len(answers)} of {len(servers)}: {server.name} {'failed' if answer.problem else 'answered'}"
        )

    async with trio.open_nursery() as nursery:
        for place, server in enumerate(servers):
            nursery.start_soon(ask, place, server)
    return [answers[place] for place in range(len(servers))]


async def _answer(server: MCPServer) -> Listing:
    answer = Listing(problem=f"it did not answer within {server.connect_timeout:g} s")
    with trio.move_on_after(server.connect_timeout):
        try:
            async with server.connected() as link:
                answer = Listing(await link.tools(), await link.prompts() if link.has_prompts else ())
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            answer = Listing(problem=_words_of(failure_of(raised, "MCP server", server.name)))
    return answer


def _words_of(error: Exception, *, has_begun: bool = False) -> str:
    """Word what went wrong; a connection that ends in a call has left it somewhere."""
    found = list(leaves(error))
    leaf = next((each for each in found if isinstance(each, ActgentError)), found[0])
    if isinstance(leaf, AskPerson):
        return f"the server asks a person, which needs an agent: {leaf}"
    is_unknown = isinstance(leaf, OutcomeUnknown) or (has_begun and not isinstance(leaf, ActgentError))
    words = str(leaf) if isinstance(leaf, ActgentError) else worded(leaf)
    return f"{words}{_UNKNOWN}" if is_unknown else words


# --- what is shown -----------------------------------------------------------------------------


def _changes(server: MCPServer, answer: Listing) -> list[str]:
    if server.lock is None or answer.problem:
        return []
    locked = ToolLock.read(server.lock).of(server.name)
    return _all_differences(locked, (answer.digests, answer.prompt_digests))


def _locked(server: MCPServer, changes: Sequence[str]) -> str:
    if server.lock is None:
        return "not locked (`actgent mcp lock` does that)"
    return f"{len(changes)} of them not as they were locked" if changes else "as they were locked"


def _withheld(server: MCPServer, answer: Listing) -> dict[str, str]:
    """Why tools are withheld, by name."""
    if server.lock is None:
        return {}
    lock = ToolLock.read(server.lock)
    reasons = {name: lock.why_withheld(server.name, name, digest) for name, digest in answer.digests.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _show(terminal: Terminal, server: MCPServer, answer: Listing) -> None:
    state = f"not available: {answer.problem}" if answer.problem else counted(len(answer.tools), "tool")
    terminal.line(f"{server.name} ({server.command or server.url}): {one_line(state)}")
    withheld = _withheld(server, answer)
    for each in answer.tools:
        note = f"  [withheld: {withheld[each.name]}]" if each.name in withheld else ""
        terminal.line(f"  {one_line(short_schema(each.name, each.input_schema), 200)}{note}")
        if each.description:
            terminal.line(f"    {one_line(each.description, 200)}")


def _data(server: MCPServer, answer: Listing) -> dict[str, Any]:
    withheld = _withheld(server, answer)
    tools = [
        {
            "name": each.name,
            "description": each.description,
            "parameters": each.input_schema,
            "withheld": withheld.get(each.name),
        }
        for each in answer.tools
    ]
    return {"server": server.name, "problem": answer.problem or None, "tools": tools}
