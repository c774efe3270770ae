"""A server as a child process that speaks MCP over its pipes, a message a line.

The SDK has a client for that, too; this one bounds a message, keeps the end of what the server writes to its standard
error for the log, and ends the connection when the process ends.
"""

import errno
import json
import math
import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from actgent.errors import ConfigurationError
from actgent.errors.printable import shown
from actgent.support.logs import logger_of

from .command import ServerCommand

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]
PATIENCE = 1.0
"""Seconds that a server has to end after its input was closed, and again after SIGTERM."""
KEPT_LINES = 5
_log = logger_of(__name__)


class ServerEnded(Exception):
    """The server's process ended, or it sent what is no message."""


class _Complaints:
    """What a server wrote to its standard error at last."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.ended = trio.Event()
        """Set when it writes no more."""


@asynccontextmanager
async def open_process(command: ServerCommand) -> AsyncGenerator[tuple[Incoming, Outgoing]]:
    """Start a server; the block has its streams of messages, and raises when the process ends.

    Raises:
        ConfigurationError: The program cannot be started.
        ServerEnded: in an ExceptionGroup.
    """
    process = await _start(command)
    said = _Complaints()
    to_us, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_us = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, process, from_us, said)
            nursery.start_soon(_keep_errors, process, said)
            nursery.start_soon(_read, process, to_us, command.max_message, said)
            nursery.start_soon(_watch, process, said)
            yield incoming, outgoing
            nursery.cancel_scope.cancel()
    finally:
        for stream in (to_us, incoming, outgoing, from_us):
            stream.close()
        with trio.CancelScope(shield=True):
            await _end(process)


async def _start(command: ServerCommand) -> trio.Process:
    try:
        return await trio.lowlevel.open_process(
            [command.command, *command.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=get_default_environment() | dict(command.env),
            cwd=command.cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the MCP server {command.command!r} cannot be started: {_remedy(command, error)}"
        ) from error


def _remedy(command: ServerCommand, error: OSError | ValueError) -> str:
    """Say what is wrong with a command that the operating system does not start, and what to change."""
    program, folder = command.command, Path(command.cwd or ".")
    path = folder / program
    first, *rest = program.split() or [program]
    is_missing = isinstance(error, FileNotFoundError)
    causes = (
        (not folder.is_dir(), f"cwd={command.cwd!r} is not a folder"),
        (
            rest and not path.exists(),
            f"command= is the program alone. Write command={first!r}, args={[*rest, *command.args]!r}",
        ),
        (
            is_missing and os.sep not in program,
            "the program was not found on PATH. Install it, or give its whole path",
        ),
        (
            is_missing and not path.exists(),
            f"the file was not found. The folder is {str(folder.absolute())!r}",
        ),
        (is_missing, "the interpreter in the first line of the file (#!) was not found"),
        (path.is_dir(), "it is a folder. Name a program"),
        (
            isinstance(error, PermissionError),
            f"the file is not executable. Run `chmod +x {program}`, or name its interpreter in command=",
        ),
        (
            isinstance(error, OSError) and error.errno == errno.ENOEXEC,
            "the file is not a program. Add a first line such as #!/bin/sh, or name its interpreter in command=",
        ),
    )
    return next((text for applies, text in causes if applies), str(error))


async def _write(
    process: trio.Process, messages: MemoryObjectReceiveStream[SessionMessage], said: _Complaints
) -> None:
    assert process.stdin is not None  # noqa: S101 - it was asked for
    async for each in messages:
        line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            await process.stdin.send_all(line.encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            ended = await _ended(process, said)
            raise ended if process.returncode is not None else ServerEnded("it closed its input") from error


async def _read(
    process: trio.Process, to_us: MemoryObjectSendStream[Any], max_message: int, said: _Complaints
) -> None:
    """Hand the server's messages on until it ends.

    Raises:
        ServerEnded: it did, or a message is too long.
    """
    assert process.stdout is not None  # noqa: S101 - it was asked for
    begun = bytearray()
    async for piece in process.stdout:
        *lines, rest = bytes(piece).split(b"\n")
        for line in lines:
            await _deliver(to_us, bytes(begun + line))
            begun.clear()
        begun += rest
        if len(begun) > max_message:
            raise ServerEnded(f"it sent a message of more than {max_message:,} bytes")
    raise await _ended(process, said)


async def _watch(process: trio.Process, said: _Complaints) -> None:
    """Wait for the process itself: what it started may keep its pipes open without it.

    Raises:
        ServerEnded: it ended, and what it had written is read.
    """
    await process.wait()
    await trio.sleep(PATIENCE)
    raise await _ended(process, said)


async def _ended(process: trio.Process, said: _Complaints) -> ServerEnded:
    """The error of a process that ends, with its last words; what it started may keep them open."""
    with trio.move_on_after(PATIENCE):
        await process.wait()
        await said.ended.wait()
    words = f"; it said: {shown(' / '.join(said.lines))}" if said.lines else ""
    return ServerEnded(f"its process ended with {process.returncode}{words}")


async def _deliver(to_us: MemoryObjectSendStream[Any], line: bytes) -> None:
    if not line.strip():
        return
    try:
        message = _message_in(line)
    except (ValueError, RecursionError):
        _log.warning(
            "an MCP server wrote a line that is no message: %s", shown(line[:200].decode(errors="replace"))
        )
        return
    await to_us.send(SessionMessage(message))


def _message_in(line: bytes) -> Any:
    """Read a message; half a pair of surrogates in it, as by a text that was cut in JavaScript, becomes U+FFFD.

    Raises:
        ValueError: it is none.
    """
    try:
        return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        if b"\\u" not in line:
            raise
    text = json.dumps(json.loads(line), ensure_ascii=False)
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return mcp_types.jsonrpc_message_adapter.validate_json(whole, by_name=False)


async def _keep_errors(process: trio.Process, said: _Complaints) -> None:
    """Read what the server writes to its standard error, so that it never waits; the log has it at level debug."""
    assert process.stderr is not None  # noqa: S101 - it was asked for
    async for piece in process.stderr:
        for line in piece.decode(errors="replace").splitlines():
            if line.strip():
                said.lines.append(line[:500])
                _log.debug("an MCP server wrote: %s", shown(line[:500]))
    said.ended.set()


async def _end(process: trio.Process) -> None:
    """Close the server's input, then end the process and all that it started, by force if need be."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()
    for sent in (None, signal.SIGTERM, signal.SIGKILL):
        if sent is not None:
            _kill(process, sent)
        with trio.move_on_after(PATIENCE if sent is not signal.SIGKILL else math.inf):
            await process.wait()
        if process.returncode is not None:
            break
    _kill(process, signal.SIGKILL)  # what it started and left


def _kill(process: trio.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
