"""A conversation at a terminal, in which a person types."""

from collections import deque

import attrs
import outcome
import trio

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Lines, Terminal, one_line
from actgent.control.limits import Limits
from actgent.errors import ActgentError
from actgent.messages import Part, Text
from actgent.sessions.incoming import Content

from .answering import OWNER, Answering, answer
from .commands import COMMANDS, QUIT, find_command, run_command
from .prompt import Prompt, PromptInterrupted, history_file
from .views import TextView

STDIN = 0
RECENT = 4
"""Messages of a session that goes on, which are shown again."""


def _prompt() -> Prompt:
    return Prompt(history=history_file(), words=tuple(COMMANDS))


@attrs.define
class TerminalConversation:
    """Who talks with whom, and what is typed ahead."""

    agent: Agent
    session: Session
    terminal: Terminal
    shutdown: Shutdown
    attached: list[Part] = attrs.field(factory=list, kw_only=True)
    limits: Limits | None = attrs.field(default=None, kw_only=True)
    _prompt: Prompt = attrs.field(factory=_prompt, init=False)
    _lines: Lines = attrs.field(factory=lambda: Lines(STDIN), init=False)
    """What is typed while an answer runs."""
    _ahead: deque[str] = attrs.field(factory=deque, init=False)
    _reading: trio.CancelScope | None = attrs.field(default=None, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)

    async def talk(self) -> None:
        """Talk until the person ends it."""
        self.terminal.line(
            f"Talking to {self.agent.name}. /help lists the commands; /quit or Ctrl-D ends it.", style="dim"
        )
        self._show_recent()
        answering = Answering(
            self.agent, self.session, self.terminal, self._receive, self._revise, TextView(self.terminal)
        )
        await answering.decide_all()
        while (line := await self._next_line()) is not None:
            command = find_command(line)
            if command is not None:
                await run_command(self, *command)
            elif line.strip():
                await self._say(line)

    async def begin_anew(self) -> None:
        """Have a new session in the place of this one."""
        self.session = await self.agent.create_session(OWNER, limits=self.limits)

    def _show_recent(self) -> None:
        for message in self.session.history[-RECENT:]:
            if message.text.strip():
                self.terminal.line(
                    f"{one_line(message.sender.name, 60)}: {one_line(message.text, 300)}", style="dim"
                )

    # --- what is typed -----------------------------------------------------------------------

    async def _next_line(self) -> str | None:
        """The next line; None where the conversation ends."""
        if self._ahead:
            line = self._ahead.popleft()
            self.terminal.line(f"> {line}", style="bold")
        elif self._has_ended or self.shutdown.is_asked:
            return None
        else:
            typed = await self._ask("> ")
            if typed is None:
                return None
            line = typed
        return None if line.strip() in QUIT else line

    async def _ask(self, label: str, default: str = "") -> str | None:
        """A line of the editor. Ctrl-C on an empty one is told of, and a second one is the end."""
        has_warned = False
        text: str | None = None
        with self.shutdown.waiting():
            while True:
                try:
                    text = await self._prompt.ask(label, default=default)
                    break
                except PromptInterrupted:
                    if has_warned:
                        break
                    has_warned = True
                    self.terminal.line(
                        "(Ctrl-C once more, Ctrl-D or /quit ends the conversation)", style="dim"
                    )
        return text

    async def _receive(self) -> str | None:
        """Return what a person answers to a question in the middle of an answer."""
        if self._reading is not None:
            self._reading.cancel()
        return await self._ask("")

    async def _revise(self, text: str) -> str | None:
        if self._reading is not None:
            self._reading.cancel()
        return await self._ask("arguments: ", text)

    # --- what is said ------------------------------------------------------------------------

    async def _say(self, line: str) -> None:
        said: Content = [*self.attached, Text(line)] if self.attached else line
        self.attached.clear()
        with self.shutdown.stopping() as stop:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_ahead, stop)
                nursery.start_soon(self._stop_when, stop)
                answered = await outcome.acapture(self._answer, said)
                nursery.cancel_scope.cancel()
        answered.unwrap()

    async def _answer(self, said: Content) -> None:
        try:
            await answer(
                self.agent, self.session, said, self.terminal, receive=self._receive, revise=self._revise
            )
        except ActgentError as error:  # such as a message that its model could not take
            self.terminal.complain(error)

    async def _stop_when(self, stop: trio.Event) -> None:
        await stop.wait()
        await self.session.interrupt("stopped at the terminal")

    async def _read_ahead(self, stop: trio.Event) -> None:
        """Take what is typed while the answer runs: /stop ends it, all else waits for its end."""
        with trio.CancelScope() as self._reading:
            while (line := await self._lines.receive()) is not None:
                if line.strip() == "/stop":
                    stop.set()
                elif line.strip():
                    self._ahead.append(line)
                    self.terminal.notice("this is said when the answer has ended; /stop ends it now")
            self._has_ended = True
