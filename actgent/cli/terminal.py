"""Reading and writing on a terminal or a pipe. What is shown is data: never markup, never a control sequence."""

import errno
import logging
import os
from collections.abc import Mapping
from typing import Any

import trio
from rich.console import Console

from actgent.errors import ConfigurationError
from actgent.messages import ToolResult

_SHOWN_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
_LINE_BYTES = 1_000_000
_CHUNK = 65_536


def printable(text: str) -> str:
    """The text with its control characters spelled out, so that no model can steer a terminal."""
    return text.translate(_SHOWN_CONTROLS)


def one_line(text: object, limit: int = 500) -> str:
    """The text on one line, cut at `limit` characters."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


class _Output(Console):
    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - rich calls this where it caught BrokenPipeError, and would exit by itself


class Terminal:
    """Standard output for answers, standard error for complaints; without colour and movement in a pipe."""

    def __init__(self) -> None:
        self.console = _Output(highlight=False)
        self._errors = _Output(highlight=False, stderr=True)
        self._log: logging.Logger | None = None

    def logging_to(self, log: logging.Logger) -> "Terminal":
        """Return a terminal whose notices and complaints are log records, for a command that runs as a service."""
        terminal = Terminal()
        terminal._log = log
        return terminal

    @property
    def is_live(self) -> bool:
        """True if a person looks at it, so that lines may be redrawn."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def write(self, text: str, *, style: str | None = None) -> None:
        """A piece of a line."""
        self.console.out(printable(text), style=style, highlight=False, end="")

    def line(self, text: str = "", *, style: str | None = None) -> None:
        self.console.out(printable(text), style=style, highlight=False)

    def raw(self, text: str) -> None:
        """One line as it is, for programs: with no width, and without the spelling out of JSON's own characters."""
        self.console.out(text, highlight=False)

    def complain(self, problem: object) -> None:
        """One line about what went wrong."""
        if self._log is not None:
            self._log.error("%s", one_line(problem))
            return
        self._errors.out(f"actgent: {one_line(problem)}", style="red", highlight=False)

    def notice(self, text: str) -> None:
        """One line beside the answers."""
        if self._log is not None:
            self._log.info("%s", one_line(text))
            return
        self._errors.out(f"actgent: {one_line(text)}", style="dim", highlight=False)


class Lines:
    """The lines of a file descriptor. Waiting for one can be cancelled, which `input()` in a thread cannot."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._is_at_end = False

    async def receive(self) -> str | None:
        """The next line without its end; None when there is no more.

        Raises:
            ConfigurationError: a line has more than a million bytes.
        """
        await trio.lowlevel.checkpoint()
        while (end := self._buffer.find(b"\n")) < 0 and not self._is_at_end:
            if len(self._buffer) > _LINE_BYTES:
                raise ConfigurationError(f"a line of the input is longer than {_LINE_BYTES:,} bytes")
            await self._read()
        if end < 0 and not self._buffer:
            return None
        return self._take(end if end >= 0 else len(self._buffer))

    def _take(self, length: int) -> str:
        line = self._buffer[:length].decode("utf-8", "replace")
        del self._buffer[: length + 1]
        return line.removesuffix("\r")

    async def _read(self) -> None:
        await _wait_readable(self._fd)
        data = os.read(self._fd, _CHUNK)
        self._is_at_end = not data
        self._buffer += data


async def _wait_readable(fd: int) -> None:
    try:
        await trio.lowlevel.wait_readable(fd)
    except OSError as error:
        if error.errno != errno.EPERM:  # epoll refuses plain files, which never make a reader wait
            raise
        await trio.lowlevel.checkpoint()


class ConversationView:
    """Shows what comes of one message: the growing answer, tool calls, events."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._shown = ""
        self._attempt: tuple[str, int] | None = None

    def token(self, text: str, attempt: tuple[str, int]) -> None:
        """A piece of the answer; in a pipe only whole answers are shown."""
        if not self._terminal.is_live:
            return
        if attempt != self._attempt:
            self.break_off()
            self._attempt = attempt
        self._shown += text
        self._terminal.write(text)

    def reply(self, text: str) -> None:
        """The whole answer, of which the beginning may have been shown."""
        if not text.startswith(self._shown):
            self.break_off()
        self._terminal.line(text[len(self._shown) :])
        self._shown, self._attempt = "", None

    def tool(self, result: ToolResult, arguments: Mapping[str, Any] | str) -> None:
        self.aside(f"tool: {result.tool_name}({_arguments(arguments)}) = {one_line(result.text, 200)}")

    def aside(self, text: str) -> None:
        self.break_off()
        self._terminal.line(one_line(text), style="dim")

    def break_off(self) -> None:
        """End the line of an answer that does not go on."""
        if self._shown:
            self._terminal.line()
        self._shown, self._attempt = "", None


def _arguments(arguments: Mapping[str, Any] | str) -> str:
    if isinstance(arguments, str):
        return one_line(arguments, 80)
    return ", ".join(f"{name}={one_line(repr(value), 80)}" for name, value in arguments.items())
