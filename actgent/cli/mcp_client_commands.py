"""`actgent mcp`: list, call, authorize, check and lock the MCP servers of a configuration file, without an agent."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import orjson
import trio

from actgent.definitions.agent_folder import BRAIN
from actgent.definitions.toolset_files import SERVERS
from actgent.errors import (
    ActgentError,
    ApprovalRequired,
    ConfigurationError,
    OutcomeUnknown,
    ParseError,
    did_you_mean_or_list,
)
from actgent.errors.text_escaping import counted
from actgent.messages import Part, Text
from actgent.support.files_shared_by_processes import file_change
from actgent.support.strict_json import loads
from actgent.support.user_code_calls import convert_user_error, leaves
from actgent.tools.outputs.result_media import to_display_text
from actgent.tools.outputs.result_text import error_text
from actgent.tools.tool_interface import Tool, ToolContext
from actgent.toolsets.mcp import (
    LOCK,
    AllowedEnvironment,
    MCPServer,
    ToolLock,
    mcp_servers,
    prompt_digest,
    tool_digest,
)

from .terminal_io import Lines, Terminal, one_line
from .tools_command import short_schema

_UNKNOWN = "; the outcome of the call is unknown"


@attrs.frozen
class Listing:
    """Tools and prompts of one MCP server, or the reason why they could not be listed."""

    tools: Sequence[Any] = ()
    """Tool definitions of the server, as objects of the MCP SDK."""
    prompts: Sequence[Mapping[str, Any]] = ()
    """Prompt definitions of the server, as `MCPServer.prompts` returns them."""
    problem: str = ""
    """Reason why the server could not be listed; empty on success."""

    @property
    def digests(self) -> dict[str, str]:
        """Hash of each tool definition, by tool name."""
        return {each.name: tool_digest(each) for each in self.tools}

    @property
    def prompt_digests(self) -> dict[str, str]:
        """Hash of each prompt definition, by prompt name."""
        return {each["name"]: prompt_digest(each) for each in self.prompts}


async def list_servers(
    target: str, terminal: Terminal, *, json: bool = False, allow_env: Sequence[str] = ()
) -> int:
    """Print all MCP servers with their tools. For a tool that the lock file blocks from agents, print the reason.

    Return the exit code: 1 if a server is not available, else 0.
    """
    servers, _ = _load_servers(target, allow_env)
    listings = await _list_all(servers, terminal)
    if json:
        terminal.json_line(
            orjson.dumps(
                [_server_row(s, a) for s, a in zip(servers, listings, strict=True)], default=str
            ).decode()
        )
    else:
        for server, listing in zip(servers, listings, strict=True):
            _show(terminal, server, listing)
    return 1 if any(listing.problem for listing in listings) else 0


async def call_tool(
    target: str, server: str, tool: str, arguments: str, terminal: Terminal, *, allow_env: Sequence[str] = ()
) -> int:
    """Call one tool of an MCP server and print its result. Return 1 if the call fails, else 0."""
    values = _arguments(arguments)
    chosen = _find_server(_load_servers(target, allow_env)[0], server)
    call_started = False
    problem = ""
    with trio.move_on_after(chosen.connect_timeout) as connecting:
        try:
            async with chosen.connected() as link:
                tools = {each.name: each for each in chosen.make_tools(await link.tools(), link)}
                call_started = tool in tools
                connecting.deadline = trio.current_time() + chosen.timeout
                terminal.line(to_display_text(await _run(tools, tool, values, server)))
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the SDK wraps errors in exception groups
            problem = _describe_error(
                convert_user_error(raised, "MCP server", server), call_started=call_started
            )
    if connecting.cancelled_caught:
        problem = f"{server} did not answer in time{_UNKNOWN if call_started else ''}"
    if problem:
        terminal.report_error(problem)
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
    """Print the prompts of all MCP servers or of one server; with a prompt name, print the text of this prompt.

    Return the exit code: 1 if a server fails, else 0.

    Args:
        target: MCP configuration file, or the folder with it.
        terminal: Output of the command.
        server: Server name; empty selects all servers.
        name: Prompt name; empty lists the prompts.
        arguments: Prompt arguments as a JSON object.
        allow_env: Names of environment variables that the servers may receive.
    """
    servers, _ = _load_servers(target, allow_env)
    values = _arguments(arguments)
    chosen = [_find_server(servers, server)] if server else servers
    failed = False
    for each in chosen:
        try:
            with trio.fail_after(each.connect_timeout + each.timeout):
                await _show_prompts(each, name, values, terminal)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the SDK wraps errors in exception groups
            failed = True
            terminal.report_error(
                f"{each.name}: {_describe_error(convert_user_error(raised, 'MCP server', each.name))}"
            )
    return 1 if failed else 0


async def _show_prompts(server: MCPServer, name: str, values: Mapping[str, Any], terminal: Terminal) -> None:
    if name:
        for message in await server.prompt(name, {key: str(text) for key, text in values.items()}):
            terminal.line(f"{message.role}: {_format_parts(message.parts)}")
        return
    for prompt in await server.prompts():
        arguments = ", ".join(a["name"] + ("" if a["required"] else "?") for a in prompt["arguments"])
        about = one_line(prompt["description"] or "", 200)
        terminal.line(
            f"{server.name}: {one_line(prompt['name'])}({one_line(arguments)}){f'  {about}' if about else ''}"
        )


def _format_parts(parts: Sequence[Part]) -> str:
    return "\n".join(part.text if isinstance(part, Text) else to_display_text(part) for part in parts)


async def log_in(
    target: str, server: str, terminal: Terminal, *, again: bool = False, allow_env: Sequence[str] = ()
) -> int:
    """Authorize access to an MCP server by OAuth in the user's browser. Return 1 if it fails, else 0.

    Args:
        target: MCP configuration file, or the folder with it.
        server: Server name.
        terminal: Output of the command.
        again: True to discard stored tokens first.
        allow_env: Names of environment variables that the servers may receive.
    """
    servers, _ = _load_servers(target, allow_env)
    chosen = _find_server(servers, server)
    if chosen.oauth is None:
        raise ConfigurationError(
            f'{server} has no "oauth" in the configuration file: add the path of its token file, e.g. "oauth": "mcp-tokens.json"'
        )
    problem = ""
    try:
        count = await _authorize(chosen, terminal, again=again)
        terminal.line(
            f"{server} is authorized, and has {counted(count, 'tool')}; its tokens are in {chosen.oauth.tokens}"
        )
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the SDK wraps errors in exception groups
        problem = _describe_error(convert_user_error(raised, "MCP server", server))
    if problem:
        terminal.report_error(problem)
    return 1 if problem else 0


async def _authorize(server: MCPServer, terminal: Terminal, *, again: bool) -> int:
    """Connect to an MCP server, with an OAuth login if its tokens are missing or expired. Return the number of its tools."""
    from actgent.toolsets.mcp.oauth_login import open_login  # noqa: PLC0415 - the SDK takes half a second

    async def show(url: str) -> None:
        await trio.lowlevel.checkpoint()
        terminal.notice(f"to authorize {server.name}, open this address in a browser:")
        terminal.line(url)
        terminal.notice(
            "waiting; if the browser cannot reach this computer, paste the address of its last page here"
        )

    lines = Lines(sys.stdin.fileno()).receive
    async with (
        open_login(server, show=show, lines=lines, again=again) as login,
        server.connected(login) as link,
    ):
        return len(await link.tools())


async def check_servers(target: str, terminal: Terminal, *, allow_env: Sequence[str] = ()) -> int:
    """Compare the tools and prompts of each MCP server with the lock file. Return 1 if a server fails or differs, else 0."""
    servers, _ = _load_servers(target, allow_env)
    listings = await _list_all(servers, terminal)
    wrong = False
    for server, listing in zip(servers, listings, strict=True):
        changes = _changes(server, listing)
        wrong = wrong or bool(listing.problem or changes)
        state = (
            listing.problem
            or f"{_count_words(listing.tools, listing.prompts)}, {_lock_state(server, changes)}"
        )
        terminal.line(f"{server.name}: {one_line(state)}")
        for change in changes:
            terminal.line(f"  {one_line(change)}")
    return 1 if wrong else 0


async def lock_servers(target: str, terminal: Terminal, *, allow_env: Sequence[str] = ()) -> int:
    """Write hashes of the current tools and prompts to the lock file, and print the differences.

    A server that fails keeps its locked hashes. Return the exit code: 1 if a server fails, else 0.
    """
    servers, folder = _load_servers(target, allow_env)
    listings = await _list_all(servers, terminal)
    for path in dict.fromkeys(server.lock or folder / LOCK for server in servers):
        listed = [
            pair for pair in zip(servers, listings, strict=True) if (pair[0].lock or folder / LOCK) == path
        ]
        async with file_change(path):
            _lock(path, listed, terminal)
    return 1 if any(listing.problem for listing in listings) else 0


def _lock(path: Path, listed: Sequence[tuple[MCPServer, Listing]], terminal: Terminal) -> None:
    """Update the lock file at `path` with the listings of its servers. The caller holds the file lock."""
    old = ToolLock.read(path) if path.is_file() else ToolLock()
    new: dict[str, Mapping[str, str]] = {}
    prompts: dict[str, Mapping[str, str]] = {}
    for server, listing in listed:
        before = old.digests_of(server.name)
        if listing.problem:
            terminal.report_error(f"{server.name} keeps its locked digests: {listing.problem}")
        now = before if listing.problem else (listing.digests, listing.prompt_digests)
        new[server.name], prompts[server.name] = now
        for change in _all_differences(before, now):
            terminal.line(f"{server.name}: {one_line(change)}")
    for gone in sorted(old.servers.keys() - new.keys()):
        terminal.line(f"{gone}: - the server was removed from the file")
    ToolLock(new, prompts).write(path)
    locked = _count_words(*([name for each in kind.values() for name in each] for kind in (new, prompts)))
    terminal.line(f"{path}: {locked} of {counted(len(new), 'server')} locked")


def _count_words(tools: Sequence[Any], prompts: Sequence[Any]) -> str:
    """Return the number of tools, and of prompts if there are any, as text."""
    return counted(len(tools), "tool") + (f" and {counted(len(prompts), 'prompt')}" if prompts else "")


def _all_differences(old: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the differences between two lock states of a server: first those of tools, then those of prompts.

    `old` and `new` are pairs of maps: hash by tool name, and hash by prompt name.
    """
    prompts = [f"{change[0]} prompt {change[2:]}" for change in differences(old[1], new[1])]
    return differences(old[0], new[0]) + prompts


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Compare two maps of hashes by name. Return a line for each difference: `+` added, `-` removed, `~` changed."""
    marks = {
        name: "+" if name not in old else "-" if name not in new else "~" for name in old.keys() | new.keys()
    }
    return [f"{mark} {name}" for name, mark in sorted(marks.items()) if old.get(name) != new.get(name)]


# --- servers -----------------------------------------------------------------------------------


def _load_servers(target: str, allow_env: Sequence[str]) -> tuple[list[MCPServer], Path]:
    """Return the MCP servers of a configuration file or folder, and the folder of the file.

    Args:
        target: MCP configuration file, agent folder or its `brain.md`.
        allow_env: Names of environment variables that the servers may receive.

    Raises:
        ConfigurationError: The file is missing or invalid.
    """
    path = Path(target)
    if path.name == BRAIN:
        path = path.parent
    if path.is_dir():
        path /= SERVERS
    return mcp_servers(path, environment=AllowedEnvironment(allow_env)), path.parent


def _find_server(servers: Sequence[MCPServer], name: str) -> MCPServer:
    found = next((server for server in servers if server.name == name), None)
    if found is None:
        known = [server.name for server in servers]
        meant = did_you_mean_or_list(name, known) if known else "no server is configured"
        raise ConfigurationError(f"unknown MCP server {name!r}: {meant}")
    return found


def _arguments(text: str) -> dict[str, Any]:
    try:
        values = loads(text)
    except ParseError as error:
        raise ConfigurationError(f"the arguments are not JSON: {error.reason}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"""the arguments must be a JSON object, e.g. '{{"text": "hi"}}', not {text:.80}"""
        )
    return values


async def _run(tools: Mapping[str, Tool], name: str, arguments: dict[str, Any], server: str) -> object:
    if name not in tools:
        raise ConfigurationError(
            f"{server} has no tool {name!r}, or the lock withholds it (available: {', '.join(tools) or 'none'})"
        )
    return await tools[name].execute(tools[name].argument_validator.validate(arguments), ToolContext())


async def _list_all(servers: Sequence[MCPServer], terminal: Terminal) -> list[Listing]:
    """List the tools and prompts of all MCP servers concurrently, and print the progress.

    The listing of a server that fails has the reason.
    """
    listings: dict[int, Listing] = {}

    async def ask(position: int, server: MCPServer) -> None:
        listings[position] = listing = await _list_server(server)
        terminal.notice(
            f"{len(listings)} of {len(servers)}: {server.name} {'failed' if listing.problem else 'answered'}"
        )

    async with trio.open_nursery() as nursery:
        for position, server in enumerate(servers):
            nursery.start_soon(ask, position, server)
    return [listings[position] for position in range(len(servers))]


async def _list_server(server: MCPServer) -> Listing:
    listing = Listing(problem=f"it did not answer within {server.connect_timeout:g} s")
    with trio.move_on_after(server.connect_timeout):
        try:
            async with server.connected() as link:
                listing = Listing(await link.tools(), await link.prompts() if link.has_prompts else ())
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the SDK and the server may raise anything
            listing = Listing(problem=_describe_error(convert_user_error(raised, "MCP server", server.name)))
    return listing


def _describe_error(error: Exception, *, call_started: bool = False) -> str:
    """Describe an error of an MCP server as text.

    If the connection failed during a tool call (`call_started`), the text says that the outcome is unknown.
    """
    found = list(leaves(error))
    leaf = next((each for each in found if isinstance(each, ActgentError)), found[0])
    if isinstance(leaf, ApprovalRequired):
        return f"the server requests user input, which only an agent can give: {leaf}"
    is_unknown = isinstance(leaf, OutcomeUnknown) or (call_started and not isinstance(leaf, ActgentError))
    words = str(leaf) if isinstance(leaf, ActgentError) else error_text(leaf)
    return f"{words}{_UNKNOWN}" if is_unknown else words


# --- output ------------------------------------------------------------------------------------


def _changes(server: MCPServer, listing: Listing) -> list[str]:
    if server.lock is None or listing.problem:
        return []
    locked = ToolLock.read(server.lock).digests_of(server.name)
    return _all_differences(locked, (listing.digests, listing.prompt_digests))


def _lock_state(server: MCPServer, changes: Sequence[str]) -> str:
    if server.lock is None:
        return "not locked (run `actgent mcp lock`)"
    return f"{len(changes)} differ from the lock" if changes else "all as locked"


def _withheld_reasons(server: MCPServer, listing: Listing) -> dict[str, str]:
    """Return the reasons why the lock file blocks tools from agents, by tool name; empty without a lock file."""
    if server.lock is None:
        return {}
    lock = ToolLock.read(server.lock)
    reasons = {
        name: lock.withheld_reason(server.name, name, digest) for name, digest in listing.digests.items()
    }
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _show(terminal: Terminal, server: MCPServer, listing: Listing) -> None:
    state = f"not available: {listing.problem}" if listing.problem else counted(len(listing.tools), "tool")
    terminal.line(f"{server.name} ({server.command or server.url}): {one_line(state)}")
    withheld = _withheld_reasons(server, listing)
    for each in listing.tools:
        note = f"  [withheld: {withheld[each.name]}]" if each.name in withheld else ""
        terminal.line(f"  {one_line(short_schema(each.name, each.input_schema), 200)}{note}")
        if each.description:
            terminal.line(f"    {one_line(each.description, 200)}")


def _server_row(server: MCPServer, listing: Listing) -> dict[str, Any]:
    withheld = _withheld_reasons(server, listing)
    tools = [
        {
            "name": each.name,
            "description": each.description,
            "parameters": each.input_schema,
            "withheld": withheld.get(each.name),
        }
        for each in listing.tools
    ]
    return {"server": server.name, "problem": listing.problem or None, "tools": tools}
