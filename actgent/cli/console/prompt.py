"""The line that a person types, with editing, history, and pasted text of several lines.

prompt_toolkit runs on asyncio, so each line is read in a thread; a cancelled wait ends the reading there.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import outcome
import trio
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle

HISTORY_BYTES = 1_000_000
"""A longer file of what was typed loses its older half."""


class PromptInterrupted(Exception):
    """Ctrl-C was pressed where nothing is typed."""


class Prompt:
    """Asks for lines at a terminal.

    Enter sends, Alt-Enter or a backslash at the end begins a new line, and what is pasted stays one text. Ctrl-C throws
    away what is typed.
    """

    def __init__(self, *, history: Path | None = None, words: Sequence[str] = ()) -> None:
        """Offer these words for completion by Tab; without a file the history ends with this."""
        output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
        output.enable_cpr = False  # an answer to the question for the cursor could meet what a tool reads
        self._words = WordCompleter(list(words), sentence=True)
        self._session: PromptSession[str] = PromptSession(
            history=_open_history(history),
            output=output,
            color_depth=ColorDepth.DEPTH_1_BIT,
            multiline=True,
            key_bindings=_keys(),
            complete_style=CompleteStyle.READLINE_LIKE,
            enable_history_search=True,
            prompt_continuation="  ",
        )
        self._is_left = False

    async def ask(self, label: str = "> ", *, default: str = "") -> str | None:
        """Return what is typed, without line ends around it; None at the end of the input, by Ctrl-D.

        Raises:
            PromptInterrupted: Ctrl-C was pressed where nothing was typed.
        """
        self._is_left = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_when_cancelled)
            typed = await trio.to_thread.run_sync(outcome.capture, self._read, label, default)
            nursery.cancel_scope.cancel()
        try:
            text: str = typed.unwrap()
        except EOFError:
            return None
        except KeyboardInterrupt:
            raise PromptInterrupted from None
        return text.strip("\n")

    def _read(self, label: str, default: str) -> str:
        completer: Completer | None = None if default else self._words
        return self._session.prompt(
            label, default=default, completer=completer, pre_run=self._leave_if_late, handle_sigint=False
        )

    def _leave_if_late(self) -> None:
        if self._is_left:
            self._session.app.exit(exception=EOFError)

    async def _leave_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._leave()

    def _leave(self) -> None:
        """End the reading from outside of its thread."""
        self._is_left = True
        app = self._session.app
        if app.is_running and app.loop is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed by now
                app.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        app = self._session.app
        if app.is_running and app.future is not None and not app.future.done():
            app.exit(exception=EOFError)


def history_file() -> Path:
    """Where what was typed is kept: `$XDG_STATE_HOME/actgent/chat_history`."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "actgent" / "chat_history"


def _open_history(path: Path | None) -> History:
    """The history of a file that this user alone reads; where it cannot be written, one that ends with the process."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        if path.stat().st_size > HISTORY_BYTES:
            _halve(path)
        with path.open("ab"):
            return FileHistory(path)
    except OSError:
        return InMemoryHistory()


def _halve(path: Path) -> None:
    """Keep the newer entries; each begins behind an empty line."""
    text = path.read_bytes()[-HISTORY_BYTES // 2 :]
    path.write_bytes(text[text.find(b"\n\n") + 1 :])


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=~Condition(_is_searching))
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def _is_searching() -> bool:
    return get_app().layout.is_searching
