"""Transport to an MCP server in a child process: one message per line over the pipes.

Unlike the SDK's client, this one limits the size of messages, logs the last lines of standard error, and ends the
connection when the process ends.
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
from actgent.errors.text_escaping import shown
from actgent.support.json_rpc_decoding import message_id
from actgent.support.safe_logging import logger_of

from .message_repair import error_response, read_messages
from .server_command import ServerCommand

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]
SHUTDOWN_TIMEOUT_SECONDS = 1.0
"""Time that a server has to exit after its input was closed, and again after SIGTERM."""
MAX_STDERR_LINES = 5
"""Number of lines of standard error to keep for errors."""
MAX_SHOWN_STDERR_CHARS = 120
"""Maximum length of the standard error in an error, so that a log line does not cut its end."""
_log = logger_of(__name__)


class ServerEnded(Exception):
    """The server process ended, or it sent a message that is too long."""


class _StderrTail:
    """The last lines that a server wrote to standard error."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self.ended = trio.Event()
        """Event that is set when standard error is closed."""


class _OpenRequests:
    """Ids of the requests that the server has not answered."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def note_sent(self, message: mcp_types.JSONRPCMessage) -> None:
        """Add the id of a sent request to the ids of unanswered requests. If the message cancels a request, remove its id."""
        match message:
            case mcp_types.JSONRPCRequest(id=number):
                self._ids.add(str(number))
            case mcp_types.JSONRPCNotification(
                method="notifications/cancelled", params={"requestId": number}
            ):
                self._ids.discard(str(number))

    def note_received(self, message: mcp_types.JSONRPCMessage) -> None:
        """Remove the id of an answered request from the ids of unanswered requests.

        A server that cannot read a request answers by an error without an id. If exactly one request is unanswered, set the
        id of that request in the error. Otherwise log the text of the error as a warning.
        """
        if not isinstance(message, mcp_types.JSONRPCResponse | mcp_types.JSONRPCError):
            return
        if isinstance(message, mcp_types.JSONRPCError) and message.id is None:
            if len(self._ids) != 1:
                _log.warning(
                    "an MCP server sent an error without an id: %s", shown(message.error.message[:200])
                )
                return
            (message.id,) = self._ids
        self._ids.discard(str(message.id))


@asynccontextmanager
async def open_process(command: ServerCommand) -> AsyncGenerator[tuple[Incoming, Outgoing]]:
    """Async context manager: run a server process, and give the block its incoming and outgoing messages.

    When the process ends, the block is cancelled and `ServerEnded` is raised.

    Raises:
        ConfigurationError: The program cannot be started.
        ServerEnded: The process ended; raised in an ExceptionGroup.
    """
    process = await _start(command)
    stderr_tail, open_requests = _StderrTail(), _OpenRequests()
    to_us, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_us = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, process, from_us, open_requests, stderr_tail)
            nursery.start_soon(_keep_errors, process, stderr_tail)
            nursery.start_soon(_read, process, to_us, command.max_message, open_requests, stderr_tail)
            nursery.start_soon(_watch, process, stderr_tail)
            yield incoming, outgoing
            nursery.cancel_scope.cancel()
    finally:
        for stream in (to_us, incoming, outgoing, from_us):
            stream.close()
        with trio.CancelScope(shield=True):
            await _end(process)


async def _start(command: ServerCommand) -> trio.Process:
    """Start the server process, with pipes for standard input, output and error.

    The process inherits only a few safe environment variables.

    Raises:
        ConfigurationError: The program cannot be started.
    """
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
    """Return an error text for a program that cannot be started, with the reason and the change that fixes it."""
    program, folder = command.command, Path(command.cwd or ".")
    path = folder / program
    first, *rest = program.split() or [program]
    is_missing = isinstance(error, FileNotFoundError)
    causes = (
        (not folder.is_dir(), f"cwd={command.cwd!r} is not a folder"),
        (
            rest and not path.exists(),
            f"command= must be only the program. Write command={first!r}, args={[*rest, *command.args]!r}",
        ),
        (
            is_missing and os.sep not in program,
            "the program was not found on PATH. Install it, or pass its full path",
        ),
        (
            is_missing and not path.exists(),
            f"the file was not found. The folder is {str(folder.absolute())!r}",
        ),
        (is_missing, "the interpreter in the first line of the file (#!) was not found"),
        (path.is_dir(), "it is a folder. Pass a program"),
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
    process: trio.Process,
    messages: MemoryObjectReceiveStream[SessionMessage],
    open_requests: _OpenRequests,
    stderr_tail: _StderrTail,
) -> None:
    assert process.stdin is not None  # noqa: S101 - opened with a pipe
    async for each in messages:
        open_requests.note_sent(each.message)
        line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            await process.stdin.send_all(line.encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            ended = await _server_ended_error(process, stderr_tail)
            raise ended if process.returncode is not None else ServerEnded("it closed its input") from error


async def _read(
    process: trio.Process,
    to_us: MemoryObjectSendStream[Any],
    max_message: int,
    open_requests: _OpenRequests,
    stderr_tail: _StderrTail,
) -> None:
    """Forward the messages in the server's standard output, one per line, to `to_us`, until the output ends.

    Raises:
        ServerEnded: The output ended, or a message is too long.
    """
    assert process.stdout is not None  # noqa: S101 - opened with a pipe
    begun = bytearray()
    async for piece in process.stdout:
        *lines, rest = bytes(piece).split(b"\n")
        for line in lines:
            await _deliver(to_us, bytes(begun + line), open_requests)
            begun.clear()
        begun += rest
        if len(begun) > max_message:
            raise ServerEnded(f"the server sent a message of more than {max_message:,} bytes")
    if begun.endswith(b"}"):
        await _deliver(to_us, bytes(begun), open_requests)
    raise await _server_ended_error(process, stderr_tail)


async def _watch(process: trio.Process, stderr_tail: _StderrTail) -> None:
    """Wait until the server process has exited. Then wait a short time, so that the last output is read.

    The pipes do not show the exit, because children of the process may keep them open.

    Raises:
        ServerEnded: The process has exited.
    """
    await process.wait()
    await trio.sleep(SHUTDOWN_TIMEOUT_SECONDS)
    raise await _server_ended_error(process, stderr_tail)


async def _server_ended_error(process: trio.Process, stderr_tail: _StderrTail) -> ServerEnded:
    """Return the error for an ended server process, with the exit code and the last lines of standard error."""
    with trio.move_on_after(SHUTDOWN_TIMEOUT_SECONDS):
        await process.wait()
        await stderr_tail.ended.wait()
    output = " / ".join(line.strip() for line in stderr_tail.lines)
    if len(output) > MAX_SHOWN_STDERR_CHARS:  # the end of a traceback names the error
        output = f"...{output[-MAX_SHOWN_STDERR_CHARS:]}"
    words = f"; its last output: {shown(output)}" if output else ""
    return ServerEnded(f"its process ended with {process.returncode}{words}")


async def _deliver(to_us: MemoryObjectSendStream[Any], line: bytes, open_requests: _OpenRequests) -> None:
    """Send the messages in one line of the server's output to `to_us`. A line without a message is logged and dropped."""
    if not line.strip():
        return
    try:
        messages = read_messages(line)
    except ValueError as error:
        _log.warning(
            "an MCP server wrote a line that is not a message: %s", shown(line[:200].decode(errors="replace"))
        )
        if (number := message_id(line, b"result", b"error")) is None:
            return
        failed = error_response(number, f"the response cannot be read: {error}"[:200])
        messages = read_messages(json.dumps(failed).encode())
    for message in messages:
        open_requests.note_received(message)
        await to_us.send(SessionMessage(message))


async def _keep_errors(process: trio.Process, stderr_tail: _StderrTail) -> None:
    """Read and log the standard error of the server, so that the server cannot block on a full pipe.

    The last lines are kept for the texts of errors.
    """
    assert process.stderr is not None  # noqa: S101 - opened with a pipe
    async for piece in process.stderr:
        for line in piece.decode(errors="replace").splitlines():
            if line.strip():
                stderr_tail.lines.append(line[:500])
                _log.debug("an MCP server wrote: %s", shown(line[:500]))
    stderr_tail.ended.set()


async def _end(process: trio.Process) -> None:
    """Stop the server: close its pipes, then terminate its processes, with SIGKILL if necessary."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()
    for sent in (None, signal.SIGTERM, signal.SIGKILL):
        if sent is not None:
            _kill(process, sent)
        with trio.move_on_after(SHUTDOWN_TIMEOUT_SECONDS if sent is not signal.SIGKILL else math.inf):
            await process.wait()
        if process.returncode is not None:
            break
    _kill(process, signal.SIGKILL)  # children that are still running


def _kill(process: trio.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
