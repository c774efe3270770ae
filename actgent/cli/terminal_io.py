"""Input and output on a terminal or a pipe. Shown text is escaped: no markup and no control sequences reach the terminal."""

import errno
import logging
import os
from collections.abc import Mapping
from typing import Any

import trio
from rich.console import Console

from actgent.errors import ConfigurationError
from actgent.messages import ToolResult

_ESCAPED_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
MAX_LINE_BYTES = 1_000_000
"""Longest input line in bytes."""
_CHUNK_BYTES = 65_536


def printable(text: str) -> str:
    r"""Escape the control characters of a text as `\xNN`, so that model output cannot control the terminal."""
    return text.translate(_ESCAPED_CONTROLS)


def one_line(text: object, limit: int = 500) -> str:
    """Return the text as a single escaped line, truncated to `limit` characters."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


class _Output(Console):
    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - rich calls this inside `except BrokenPipeError`, and would exit with its own code


class Terminal:
    """Output of a command: answers on standard output, errors on standard error. In pipes, text has no colours."""

    def __init__(self) -> None:
        self.console = _Output(highlight=False)
        self._errors = _Output(highlight=False, stderr=True)
        self._log: logging.Logger | None = None

    def with_log(self, log: logging.Logger) -> "Terminal":
        """Return a terminal whose notices and errors are log records instead of lines on standard error."""
        terminal = Terminal()
        terminal._log = log
        return terminal

    @property
    def is_live(self) -> bool:
        """True if standard output is an interactive terminal, so that lines can be redrawn."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def write(self, text: str, *, style: str | None = None) -> None:
        """Print text without a line end. Control characters are escaped."""
        self.console.out(printable(text), style=style, highlight=False, end="")

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print text and a line end. Control characters are escaped."""
        self.console.out(printable(text), style=style, highlight=False)

    def json_line(self, text: str) -> None:
        """Print one line of JSON unchanged: without wrapping, colour or escaping."""
        self.console.out(text, highlight=False)

    def report_error(self, problem: object) -> None:
        """Print an error as one line on standard error, or log it."""
        if self._log is not None:
            self._log.error("%s", one_line(problem))
            return
        self._errors.out(f"actgent: {one_line(problem)}", style="red", highlight=False)

    def notice(self, text: str) -> None:
        """Print a notice as one line on standard error, or log it."""
        if self._log is not None:
            self._log.info("%s", one_line(text))
            return
        self._errors.out(f"actgent: {one_line(text)}", style="dim", highlight=False)


class Lines:
    """Reader of the lines of a file descriptor. Unlike `input()` in a thread, a waiting `receive` can be cancelled."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._is_at_end = False

    async def receive(self) -> str | None:
        """Return the next line without its line end; None at the end of the input.

        Raises:
            ConfigurationError: A line is longer than 1,000,000 bytes.
        """
        await trio.lowlevel.checkpoint()
        while (end := self._buffer.find(b"\n")) < 0 and not self._is_at_end:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise ConfigurationError(f"each line of the input must have at most {MAX_LINE_BYTES:,} bytes")
            await self._read()
        if end < 0 and not self._buffer:
            return None
        length = end if end >= 0 else len(self._buffer)
        line = self._buffer[:length].decode("utf-8", "replace")
        del self._buffer[: length + 1]
        return line.removesuffix("\r")

    async def _read(self) -> None:
        await _wait_readable(self._fd)
        data = os.read(self._fd, _CHUNK_BYTES)
        self._is_at_end = not data
        self._buffer += data


async def _wait_readable(fd: int) -> None:
    try:
        await trio.lowlevel.wait_readable(fd)
    except OSError as error:
        if error.errno != errno.EPERM:  # epoll rejects regular files with EPERM; reading those never blocks
            raise
        await trio.lowlevel.checkpoint()


class ConversationView:
    """Prints one answer as it streams, with tool calls and events on separate dim lines."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._shown = ""
        self._attempt: tuple[str, int] | None = None

    def token(self, text: str, attempt: tuple[str, int]) -> None:
        """Print new text of a partial answer. In a pipe do nothing, because only complete answers are printed there.

        Args:
            text: New text of the answer.
            attempt: Reply id and number of the attempt to answer; a new attempt starts on a new line.
        """
        if not self._terminal.is_live:
            return
        if attempt != self._attempt:
            self.end_partial_line()
            self._attempt = attempt
        self._shown += text
        self._terminal.write(text)

    def reply(self, text: str) -> None:
        """Print the complete answer, without the part that was already printed by `token`."""
        if not text.startswith(self._shown):
            self.end_partial_line()
        self._terminal.line(text[len(self._shown) :])
        self._shown, self._attempt = "", None

    def tool(self, result: ToolResult, arguments: Mapping[str, Any] | str) -> None:
        """Print a finished tool call with its arguments and the beginning of its result."""
        self.aside(f"tool: {result.tool_name}({_arguments(arguments)}) = {one_line(result.text, 200)}")

    def aside(self, text: str) -> None:
        """Print a dim line, such as an event, after ending the line of a partial answer."""
        self.end_partial_line()
        self._terminal.line(one_line(text), style="dim")

    def end_partial_line(self) -> None:
        """End the line of a partial answer that will not be continued."""
        if self._shown:
            self._terminal.line()
        self._shown, self._attempt = "", None


def _arguments(arguments: Mapping[str, Any] | str) -> str:
    if isinstance(arguments, str):
        return one_line(arguments, 80)
    return ", ".join(f"{name}={one_line(repr(value), 80)}" for name, value in arguments.items())
