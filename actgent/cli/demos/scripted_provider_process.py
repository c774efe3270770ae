"""Scripted provider in a separate process, so that its CPU time and memory are not part of the load test.

The process prints its port, and ends when its standard input is closed, which also happens when the parent dies.
"""

import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from subprocess import PIPE

import trio

from actgent.cli.model_selection import open_clients
from actgent.errors import ConfigurationError
from actgent.llm.model_interface import LLM
from actgent.testing.provider import open_provider
from actgent.testing.provider_apis import PROVIDER_APIS

from .scripted_models import scripted_answer

SHUTDOWN_SECONDS = 2.0
"""Time in seconds that the process gets to end, before and after it is killed."""
_MODULE = "actgent.cli.demos.scripted_provider_process"


@asynccontextmanager
async def open_script_process() -> AsyncGenerator[Sequence[LLM], None]:
    """Start a process with the scripted provider, and yield one client for each provider API that it serves.

    Raises:
        ConfigurationError: The process exited before it printed its port.
    """
    process = await trio.lowlevel.open_process([sys.executable, "-m", _MODULE], stdin=PIPE, stdout=PIPE)
    try:
        assert process.stdout is not None  # noqa: S101 - a pipe
        port_line = await process.stdout.receive_some()
        if not port_line.strip().isdigit():
            raise ConfigurationError(
                f"the scripted provider exited with code {await process.wait()} before it printed its port"
            )
        urls = {name: f"http://127.0.0.1:{int(port_line)}{each.base}" for name, each in PROVIDER_APIS.items()}
        async with open_clients(urls) as models:
            yield models
    finally:
        with trio.move_on_after(SHUTDOWN_SECONDS, shield=True):
            await _close(process)
        if process.returncode is None:
            process.kill()
            with trio.move_on_after(SHUTDOWN_SECONDS, shield=True):
                await process.wait()


async def _close(process: trio.Process) -> None:
    """Close the standard streams of the provider process, which ends it, and wait for its exit."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            await stream.aclose()
    await process.wait()


async def _serve() -> None:
    async with open_provider(scripted_answer, keep=0) as provider:
        with suppress(BrokenPipeError):  # the parent exited before it read the port
            os.write(1, f"{provider.port}\n".encode())
        await _wait_for_end_of_input()


async def _wait_for_end_of_input() -> None:
    await trio.lowlevel.wait_readable(sys.stdin.fileno())  # the parent never writes, so readable means closed


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches this process too; the command decides when it ends
    trio.run(_serve)
