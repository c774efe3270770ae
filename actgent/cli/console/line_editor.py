"""Line editor of the terminal conversation, with history and multi-line paste.

prompt_toolkit runs on asyncio, so each line is read in a worker thread. Cancelling the wait also ends the read in the
thread.
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

MAX_HISTORY_BYTES = 1_000_000
"""Size in bytes above which the history file loses its older half."""


class PromptInterrupted(Exception):
    """Ctrl-C was pressed on an empty line."""


class LineEditor:
    """Editor that reads lines from a terminal.

    Enter sends the line. Alt-Enter, or a backslash before Enter, adds a new line. Pasted text stays one message. Ctrl-C
    clears the line.
    """

    def __init__(self, *, history: Path | None = None, words: Sequence[str] = ()) -> None:
        """Create the line editor.

        Args:
            history: File with earlier lines; None keeps the history in memory.
            words: Words that the Tab key completes.
        """
        output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
        output.enable_cpr = False  # the terminal's reply to a cursor query could be read by a tool
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
        self._is_cancelled = False

    async def ask(self, label: str = "> ", *, default: str = "") -> str | None:
        """Read one input, which may have several lines. Return it without surrounding line ends; None at Ctrl-D.

        Args:
            label: Prompt text before the line.
            default: Initial text of the line.

        Raises:
            PromptInterrupted: Ctrl-C was pressed on an empty line.
        """
        self._is_cancelled = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._exit_on_cancel)
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
            label, default=default, completer=completer, pre_run=self._exit_if_cancelled, handle_sigint=False
        )

    def _exit_if_cancelled(self) -> None:
        if self._is_cancelled:
            self._session.app.exit(exception=EOFError)

    async def _exit_on_cancel(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._exit_app()

    def _exit_app(self) -> None:
        """End the read that runs in a worker thread, because the task that waits for it was cancelled."""
        self._is_cancelled = True
        app = self._session.app
        if app.is_running and app.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is already closed
                app.loop.call_soon_threadsafe(self._exit_in_loop)

    def _exit_in_loop(self) -> None:
        app = self._session.app
        if app.is_running and app.future is not None and not app.future.done():
            app.exit(exception=EOFError)


def history_file() -> Path:
    """Return the path of the history file: `$XDG_STATE_HOME/actgent/chat_history`."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "actgent" / "chat_history"


def _open_history(path: Path | None) -> History:
    """Open the file of earlier lines, readable only by the user. Use memory if `path` is None or cannot be written."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        if path.stat().st_size > MAX_HISTORY_BYTES:
            _drop_older_half(path)
        with path.open("ab"):
            return FileHistory(path)
    except OSError:
        return InMemoryHistory()


def _drop_older_half(path: Path) -> None:
    """Remove the older half of the history file. The cut is at an empty line, which separates entries."""
    text = path.read_bytes()[-MAX_HISTORY_BYTES // 2 :]
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
