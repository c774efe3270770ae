"""Interactive conversation: read lines, run slash commands, send messages, and queue lines typed during an answer."""

from collections import deque
from contextlib import suppress

import attrs
import outcome
import trio

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.cli.signal_handling import Shutdown
from actgent.cli.terminal_io import Lines, Terminal, one_line
from actgent.errors import ActgentError, JournalError
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import Content, Part, Text

from .conversation_output import TextView
from .line_editor import LineEditor, PromptInterrupted, history_file
from .slash_commands import COMMANDS, QUIT, find_command, run_command
from .terminal_message_exchange import OWNER, MessageExchange, answer

STDIN = 0
"""File descriptor of standard input."""
RECENT_MESSAGES = 4
"""Number of latest messages that are shown when a session is resumed."""


def _editor() -> LineEditor:
    return LineEditor(history=history_file(), words=tuple(COMMANDS))


@attrs.define
class TerminalConversation:
    """An interactive conversation with one agent in the terminal."""

    agent: Agent
    session: Session
    terminal: Terminal
    shutdown: Shutdown
    attached: list[Part] = attrs.field(factory=list, kw_only=True)
    """Attachments that are sent with the next message."""
    limits: Limits | None = attrs.field(default=None, kw_only=True)
    """Limits of sessions that `/new` creates; None sets no limits."""
    _editor: LineEditor = attrs.field(factory=_editor, init=False)
    _lines: Lines = attrs.field(factory=lambda: Lines(STDIN), init=False)
    """Reader of the lines that the user types while an answer runs; the line editor is inactive then."""
    _queued_lines: deque[str] = attrs.field(factory=deque, init=False)
    """Lines that the user typed while an answer ran; they are sent after the answer."""
    _read_ahead_scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    """Cancel scope of the task that reads lines during an answer, cancelled when the user must decide on a tool call.

    None if no such task runs.
    """
    _input_ended: bool = attrs.field(default=False, init=False)
    """True after standard input has ended."""

    async def talk(self) -> None:
        """Run the conversation until `/quit`, Ctrl-D or a signal."""
        self.terminal.line(
            f"Talking to {self.agent.name}. /help lists the commands; /quit or Ctrl-D ends it.", style="dim"
        )
        self._show_recent()
        answering = MessageExchange(
            self.agent, self.session, self.terminal, self._receive, self._revise, TextView(self.terminal)
        )
        await answering.decide_all()
        while (line := await self._next_line()) is not None:
            command = find_command(line)
            if command is not None:
                await run_command(self, *command)
            elif line.strip():
                await self._send(line)

    async def start_new_session(self) -> None:
        """Create a new session and continue the conversation in it."""
        self.session = await self.agent.create_session(OWNER, limits=self.limits)

    def _show_recent(self) -> None:
        for message in self.session.history[-RECENT_MESSAGES:]:
            if message.text.strip():
                self.terminal.line(
                    f"{one_line(message.sender.name, 60)}: {one_line(message.text, 300)}", style="dim"
                )

    # --- input -------------------------------------------------------------------------------

    async def _next_line(self) -> str | None:
        """Return the next line of the user, queued or typed now; None if the conversation ends."""
        if self._queued_lines:
            line = self._queued_lines.popleft()
            self.terminal.line(f"> {line}", style="bold")
        elif self._input_ended or self.shutdown.is_requested:
            return None
        else:
            typed = await self._prompt_line("> ")
            if typed is None:
                return None
            line = typed
        return None if line.strip() in QUIT else line

    async def _prompt_line(self, label: str, default: str = "") -> str | None:
        """Read a line with the line editor; None at Ctrl-D or a second Ctrl-C.

        The first Ctrl-C on an empty line prints a warning. `label` is the prompt text, `default` the initial text of the line.
        """
        has_warned = False
        text: str | None = None
        with self.shutdown.interruptible():
            while True:
                try:
                    text = await self._editor.ask(label, default=default)
                    break
                except PromptInterrupted:
                    if has_warned:
                        break
                    has_warned = True
                    self.terminal.line(
                        "(press Ctrl-C again, Ctrl-D, or type /quit to end the conversation)", style="dim"
                    )
        return text

    async def _receive(self) -> str | None:
        """Stop reading lines ahead, and read the user's decision on a tool call; None at the end of the input."""
        if self._read_ahead_scope is not None:
            self._read_ahead_scope.cancel()
        return await self._prompt_line("")

    async def _revise(self, text: str) -> str | None:
        if self._read_ahead_scope is not None:
            self._read_ahead_scope.cancel()
        return await self._prompt_line("arguments: ", text)

    # --- messages ----------------------------------------------------------------------------

    async def _send(self, line: str) -> None:
        content: Content = [*self.attached, Text(line)] if self.attached else line
        self.attached.clear()
        with self.shutdown.stoppable() as stop:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._queue_lines, stop)
                nursery.start_soon(self._stop_when, stop)
                answered = await outcome.acapture(self._answer, content)
                nursery.cancel_scope.cancel()
        answered.unwrap()

    async def _answer(self, content: Content) -> None:
        try:
            await answer(
                self.agent, self.session, content, self.terminal, receive=self._receive, revise=self._revise
            )
        except ActgentError as error:  # e.g. the model does not support an attachment
            self.terminal.report_error(error)

    async def _stop_when(self, stop: trio.Event) -> None:
        await stop.wait()
        with suppress(JournalError):  # `_answer` shows it
            await self.session.interrupt("stopped at the terminal")

    async def _queue_lines(self, stop: trio.Event) -> None:
        """Read lines while an answer runs, and queue them until it ends. The line `/stop` sets `stop`, which interrupts it."""
        with trio.CancelScope() as self._read_ahead_scope:
            while (line := await self._lines.receive()) is not None:
                if line.strip() == "/stop":
                    stop.set()
                elif line.strip():
                    self._queued_lines.append(line)
                    self.terminal.notice("queued until the running answer ends; /stop ends the answer now")
            self._input_ended = True
