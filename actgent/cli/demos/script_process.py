"""The script on loopback in a process of its own, so that its work is not counted as ours.

The process prints its port, and ends when its standard input does, which is when its parent is gone.
"""

import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from subprocess import PIPE

import trio

from actgent.cli.models import open_clients
from actgent.errors import ConfigurationError
from actgent.llm.base import LLM
from actgent.testing.dialects import DIALECTS
from actgent.testing.provider import open_provider

from .offline import script_answer

ENDING = 2.0
"""Seconds that the process gets to end."""
_MODULE = "actgent.cli.demos.script_process"


@asynccontextmanager
async def open_script_process() -> AsyncGenerator[Sequence[LLM], None]:
    """Clients of each wire that the script speaks, which runs in a process of its own.

    Raises:
        ConfigurationError: the process did not begin.
    """
    process = await trio.lowlevel.open_process([sys.executable, "-m", _MODULE], stdin=PIPE, stdout=PIPE)
    try:
        assert process.stdout is not None  # noqa: S101 - a pipe
        said = await process.stdout.receive_some()
        if not said.strip().isdigit():
            raise ConfigurationError(f"the process of the scripted model ended with {await process.wait()}")
        urls = {name: f"http://127.0.0.1:{int(said)}{each.base}" for name, each in DIALECTS.items()}
        async with open_clients(urls) as models:
            yield models
    finally:
        with trio.move_on_after(ENDING, shield=True):
            await _end(process)
        if process.returncode is None:
            process.kill()
            with trio.move_on_after(ENDING, shield=True):
                await process.wait()


async def _end(process: trio.Process) -> None:
    """Close its standard input, which ends it, and wait for that."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            await stream.aclose()
    await process.wait()


async def _serve() -> None:
    async with open_provider(script_answer, keep=0) as provider:
        with suppress(BrokenPipeError):  # the parent was interrupted before it read the port
            os.write(1, f"{provider.port}\n".encode())
        await _wait_for_end_of_input()


async def _wait_for_end_of_input() -> None:
    await trio.lowlevel.wait_readable(sys.stdin.fileno())  # nothing is ever written, so this is its end


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends this
    trio.run(_serve)
