"""`actgent acp`: an agent for editors with ACP support, over standard input and output."""

import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from actgent.agents.agent import Agent
from actgent.cli.agent_folders import agents_at
from actgent.cli.journals.journal_commands import SingleSessionJournal
from actgent.cli.signal_handling import Shutdown
from actgent.cli.terminal_io import Terminal
from actgent.errors import ConfigurationError, Fenced
from actgent.interop.acp import serve_acp
from actgent.journal.journal_interface import Journal
from actgent.journal.journal_url import open_journal
from actgent.runtime.runtime import open_runtime

from .serve_options import ACPOptions
from .standard_streams import protocol_streams

LOCK_SECONDS = 3.0
"""Time for which an ending process may keep the default journal."""
MAX_FILES = 20
"""Default journals of one agent and folder, each for one process at a time."""


async def serve(options: ACPOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Serve one ACP client until it closes standard input, or until the first signal. Return the exit code.

    Running turns are then stopped, and resume when their session is loaded again.

    Raises:
        ConfigurationError: The target has no agent or several, or an option is invalid.
        Fenced: Another process owns the journal.
    """
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
        url = options.journal if "://" in options.journal else f"sqlite:///{options.journal}"
        async with open_journal("memory:" if options.journal == "memory:" else url) as journal:
            await journal.acquire()
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
