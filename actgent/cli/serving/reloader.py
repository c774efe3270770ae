"""`actgent serve --reload`: restart the server when a file of the agents changes."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import trio

from actgent.cli.signal_handling import Shutdown
from actgent.cli.terminal_io import Terminal
from actgent.errors import ConfigurationError
from actgent.web.access_tokens import new_token, write_tokens
from actgent.web.gateway import check_extra
from actgent.web.server.listen_addresses import is_loopback, split_address

from .serve_options import ServeOptions

POLL_SECONDS = 0.5
"""Time in seconds between two checks of the files' modification times."""
KILL_SECONDS = 5.0
"""Seconds that a server has to end after the second signal, before it is killed."""
_WATCHED_SUFFIXES = (".py", ".md", ".json", ".yaml", ".yml", ".toml", ".j2")
_FAILURE_CODES = (1, 2)
"""Exit codes of a server that ended by an error and not by a signal."""
_SERVER_CODE = "from actgent.cli.serving.reloader import end_with_parent; end_with_parent(); from actgent.cli import main; main()"
"""Program of the child process that runs the server."""
_CHECK_CODE = "from actgent.cli.agent_folders import exit_with_load_errors; exit_with_load_errors()"
"""Program of the child process that checks whether the changed agents can be loaded."""


def end_with_parent() -> None:
    """Watch standard input, and end this process by SIGTERM when standard input is closed.

    The parent process has the other end of this pipe, so the server also ends if the parent is killed.
    """
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    with suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


async def serve_with_reload(options: ServeOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Serve the agents in a child process, and restart the child when a watched file changes.

    A child finishes its running turns before the next child starts. If the changed files cannot be loaded, the error is
    printed and the current child continues to serve. All children accept the same token.
    """
    check_extra()
    if options.target is None:
        raise ConfigurationError("--reload requires an agent folder or Python file, whose files it watches")
    with TemporaryDirectory(prefix="actgent-") as folder:
        tokens = options.tokens or _write_token(Path(folder), options, terminal)
        command = [sys.executable, "-c", _SERVER_CODE, *attrs.evolve(options, tokens=tokens).to_arguments()]
        while not shutdown.is_requested:
            stamps = _file_stamps(options.target)
            # In its own process group the child receives Ctrl-C only from the parent, not also from the terminal.
            process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, start_new_session=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_report_failure, process, shutdown, terminal)
                try:
                    with shutdown.interruptible():
                        await _wait_for_change(options, stamps, terminal)
                        terminal.notice("a file has changed: restarting the server")
                    _send(process, signal.SIGTERM)
                    await process.wait()
                finally:
                    await _end(process)  # noqa: ASYNC102 - it shields itself, for at most 5 s
                nursery.cancel_scope.cancel()
    return 0


def _send(process: trio.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        process.send_signal(number)


async def _end(process: trio.Process) -> None:
    """End the child process without waiting for its running turns. Kill it if it has not ended after `KILL_SECONDS`.

    Do nothing if the child has already ended.
    """
    with trio.CancelScope(shield=True):
        _send(process, signal.SIGTERM)
        with trio.move_on_after(KILL_SECONDS):
            await process.wait()
        _send(process, signal.SIGKILL)
        await process.wait()
        if process.stdin is not None:
            await process.stdin.aclose()


async def _wait_for_change(
    options: ServeOptions, stamps: dict[str, tuple[int, int]], terminal: Terminal
) -> None:
    """Wait until a watched file has changed and the agents can be loaded. Print the errors of failed attempts to load them.

    `stamps` are the modification times and sizes of the files, and are updated.
    """
    target = options.target
    while True:
        while (now := _file_stamps(target)) == stamps:  # noqa: ASYNC110 - there is no event for changed files
            await trio.sleep(POLL_SECONDS)
        stamps = now
        problem = await _load_error(target, offline=options.operation.offline)
        if not problem:
            return
        terminal.report_error(f"a changed file cannot be loaded, the previous agents keep running: {problem}")


async def _load_error(target: str, *, offline: bool) -> str:
    """Try to load the agents in a child process. Return the error text; empty if they can be loaded."""
    done = await trio.run_process(
        [sys.executable, "-c", _CHECK_CODE, target, *(["--offline"] if offline else [])],
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    words = done.stdout.decode("utf-8", "replace").strip()
    return (words or f"code {done.returncode}") if done.returncode else ""


async def _report_failure(process: trio.Process, shutdown: Shutdown, terminal: Terminal) -> None:
    """Wait until the server process ends. If it failed, print that the server restarts at the next change of a file."""
    code = await process.wait()
    if code in _FAILURE_CODES and not shutdown.is_requested:
        terminal.notice("no server is running: it restarts when a file changes")


def _write_token(folder: Path, options: ServeOptions, terminal: Terminal) -> str:
    """Write a token file for this run, print the token, and return the file's path."""
    if not is_loopback(split_address(options.bind)[0]):
        raise ConfigurationError("--reload with an address other than loopback requires --tokens")
    secret, token = new_token("serve --reload", owner="admin", scopes=("admin",))
    write_tokens(folder / "tokens.toml", [token])
    terminal.line(f"token (for this run only): {secret}")
    return str(folder / "tokens.toml")


def _file_stamps(target: str) -> dict[str, tuple[int, int]]:
    """Return modification time in nanoseconds and size in bytes of each watched file, by path."""
    path = Path(target.partition(":")[0])
    folder = path if path.is_dir() else path.parent
    found = {}
    for file in folder.rglob("*"):
        if file.suffix in _WATCHED_SUFFIXES and not any(
            part.startswith(".") for part in file.relative_to(folder).parts
        ):
            with suppress(OSError):  # the file was removed after it was listed
                seen = file.stat()
                found[str(file)] = (seen.st_mtime_ns, seen.st_size)
    return found
