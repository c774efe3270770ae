"""`actgent acp` and `actgent mcp serve`: agents for an editor (ACP) or an MCP host, over standard input and output."""

import hashlib
import importlib.util
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from actgent.agents.agent import Agent
from actgent.cli.agent_folders import agents_at
from actgent.cli.journals.journal_commands import SingleSessionJournal, open_or_create, to_journal_url
from actgent.cli.signal_handling import Shutdown
from actgent.cli.terminal_io import Terminal
from actgent.errors import ConfigurationError, Fenced
from actgent.journal.journal_interface import Journal
from actgent.journal.journal_url import open_journal
from actgent.runtime.runtime import open_runtime

from .serve_options import ACPOptions, MCPServeOptions

LOCK_SECONDS = 3.0
"""Time for which an ending process may keep the default journal."""
MAX_FILES = 20
"""Default journals of one agent and folder, each for one process at a time."""


@contextmanager
def protocol_streams() -> Iterator[tuple[trio.abc.ReceiveStream, trio.abc.SendStream]]:
    """Yield standard input and output as byte streams for a protocol.

    Descriptors 0 and 1 become /dev/null and standard error, so that output of tools and their child processes does not mix
    with the protocol.
    """
    streams = trio.lowlevel.FdStream(os.dup(0)), trio.lowlevel.FdStream(os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        yield streams
    finally:
        for stream in streams:
            stream.close()


async def serve_host(options: MCPServeOptions, shutdown: Shutdown) -> int:
    """Serve one MCP client until it closes standard input, or until the first signal. Return the exit code.

    Raises:
        ConfigurationError: The target has no agent, an option is invalid, or the extra `mcp` is missing.
        Fenced: Another process owns the journal.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationError("an MCP server needs the package extra mcp: pip install 'actgent[mcp]'")
    from actgent.interop.mcp import MCPCatalog, serve_mcp  # noqa: PLC0415 - of the extra
    from actgent.interop.mcp.catalog import tools_of  # noqa: PLC0415

    with protocol_streams() as (receive_stream, send_stream):
        agents = agents_at(options.target, offline=options.offline)
        catalog = MCPCatalog(tools=tools_of(agents)) if options.tools else None
        async with open_runtime(journal=to_journal_url(options.journal or "memory:")) as runtime:
            async with runtime.starting():
                for agent in agents:
                    agent.grace = 0.0
                    await runtime.start(agent)
            with shutdown.interruptible():
                await serve_mcp(runtime, receive_stream, send_stream, catalog=catalog)
    return 0


# --- the editor ------------------------------------------------------------------------------


async def serve_editor(options: ACPOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Serve one ACP client until it closes standard input, or until the first signal. Return the exit code.

    Running turns are then stopped, and resume when their session is loaded again.

    Raises:
        ConfigurationError: The target has no agent or several, or an option is invalid.
        Fenced: Another process owns the journal.
    """
    from actgent.interop.acp import serve_acp  # noqa: PLC0415 - an MCP host does not need it

    with protocol_streams() as (receive_stream, send_stream):
        agent = _load(options)
        agent.grace = 0.0
        async with (
            _open_journal(options, agent, terminal) as journal,
            # Sessions resume when the client loads them, not when the process starts.
            open_runtime(journal=SingleSessionJournal(journal, "")) as runtime,
        ):
            await runtime.start(agent)
            with shutdown.interruptible():
                await serve_acp(runtime, agent, receive_stream, send_stream)
    return 0


def _load(options: ACPOptions) -> Agent:
    agents = agents_at(options.target, offline=options.offline)
    if len(agents) > 1:
        names = ", ".join(each.name for each in agents)
        raise ConfigurationError(
            f"{options.target} has several agents ({names}): pass the folder of one agent, or FILE.py:NAME"
        )
    return agents[0]


@asynccontextmanager
async def _open_journal(
    options: ACPOptions, agent: Agent, terminal: Terminal
) -> AsyncGenerator[Journal, None]:
    """Acquire and yield the journal of the options.

    The first process of an agent and working directory uses the default journal file; further ones use numbered files.
    """
    if options.journal is not None:
        async with open_or_create(options.journal) as journal:
            yield journal
        return
    path = default_journal(options.target, agent.name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(1, MAX_FILES + 1):
        file = path if number == 1 else path.with_suffix(f".{number}.db")
        async with open_journal(f"sqlite:///{file}") as journal:
            if await _acquire(journal, LOCK_SECONDS if number == 1 else 0):
                if number > 1:
                    terminal.notice(
                        f"another process has the sessions in {path.name}: this one stores its sessions in {file}"
                    )
                yield journal
                return
    raise Fenced(
        f"{MAX_FILES} processes already use journals next to {path}: stop one, or pass --journal FILE"
    )


async def _acquire(journal: Journal, seconds: float) -> bool:
    """Try for at most `seconds` to acquire a journal. Return False if another process owns it during this time."""
    deadline = trio.current_time() + seconds
    while True:
        try:
            await journal.acquire()
        except Fenced:
            if trio.current_time() >= deadline:
                return False
            await trio.sleep(0.05)
        else:
            return True


def default_journal(target: str, name: str) -> Path:
    """Return the path of the default journal file: `$XDG_DATA_HOME/actgent/acp/NAME-DIGEST.db`.

    The digest is a hash of the agent's path and the working directory, in which an editor starts the agent for a project.
    """
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    places = f"{Path(target).resolve()}\n{Path.cwd()}"
    digest = hashlib.blake2b(places.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    shown = "".join(each if each.isalnum() or each in "-_" else "_" for each in name)[:40]
    return Path(home) / "actgent" / "acp" / f"{shown}-{digest}.db"
