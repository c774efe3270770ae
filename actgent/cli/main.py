"""Entry point of the `actgent` command: parse arguments, run the command, turn errors into exit codes."""

import io
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence

from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

from actgent.errors import ActgentError, ConfigurationError, InvalidFolder

from .commands import app
from .signal_handling import handled_signals
from .terminal_io import Terminal, one_line

_OPTION_HINTS = {
    **dict.fromkeys(
        ("--port", "--listen", "--address", "-p"),
        "Set the listening address of a server with --bind HOST:PORT",
    ),
    **dict.fromkeys(("--server", "--url", "--endpoint", "--gateway"), "Name a running server with --at URL"),
    **dict.fromkeys(("--db", "--database", "--store"), "Store sessions with --journal FILE"),
    "--llm": "Choose a model with --model PROVIDER:MODEL",
}
"""Options of other tools, mapped to a sentence that names the matching actgent option."""
FAILED, WRONG_USE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command of `actgent`, and exit the process with the command's exit code.

    Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 129/130/143 ended by SIGHUP/SIGINT/SIGTERM.

    Args:
        arguments: Command-line words; None reads `sys.argv`.
    """
    open_standard_streams()
    logging.getLogger("trio.serve_listeners").addFilter(RefusedConnections())
    ending = handled_signals()
    for number in ending:
        if number != signal.SIGINT:
            signal.signal(number, _exit_early)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # an answer may contain characters that the terminal's encoding lacks
    code = _run_command(arguments)
    for number in ending:  # the exit code is final; a signal during interpreter shutdown must not change it
        signal.signal(number, signal.SIG_IGN)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _silence_output(error)
    sys.exit(code)


def _exit_early(number: int, _frame: object) -> None:
    """Signal handler that exits with 128 plus the signal number, until the command installs its own handling."""
    sys.exit(128 + number)


def _run_command(arguments: Sequence[str] | None) -> int:
    """Run the command of these arguments, print any error to standard error, and return the exit code."""
    try:
        raise_file_limit()
        return app(arguments, exit_on_error=False, print_error=False) or 0
    except CycloptsError as error:
        Terminal().report_error(_describe_usage_error(error))
        return WRONG_USE
    except ConfigurationError as error:
        for problem in error.problems if isinstance(error, InvalidFolder) else (error,):
            Terminal().report_error(problem)
        return WRONG_USE
    except ActgentError as error:
        for line in (error, *getattr(error, "__notes__", ())):
            Terminal().report_error(line)
        return FAILED
    except KeyboardInterrupt:  # raised before trio installs its signal receiver, or after it closed
        return INTERRUPTED
    except OSError as error:
        return _silence_output(error)


def _describe_usage_error(error: CycloptsError) -> str:
    """Return the error message for a wrong command line, with a hint and the `--help` command to run."""
    command = " ".join(("actgent", *(error.command_chain or ())))
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        word = one_line(error.unused_tokens[0], 100)
        text = f"unexpected argument {word!r}: quote text that has spaces, and start options with --."
    elif isinstance(error, UnknownOptionError) and (hint := _OPTION_HINTS.get(error.token.keyword or "")):
        text = f"Unknown option: {error.token.keyword}. {hint}."
    else:
        text = str(error)
    return f"{text} See `{command} --help`."


def _silence_output(error: OSError) -> int:
    """Redirect standard output to /dev/null after a failed write, and return the exit code.

    Without the redirect the interpreter prints a second error when it flushes at exit. A closed pipe (`| head`) is
    reported only by the exit code 141; other errors, such as a full disk, are printed.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    Terminal().report_error(f"{error.filename}: {error.strerror}" if error.filename else error)
    return FAILED


# --- file descriptors ------------------------------------------------------------------------

MIN_OPEN_FILES = 64
"""Least number of open files with which a command starts: event loop, journal, model connections, a few server sockets."""
WANTED_OPEN_FILES = 4096
"""Soft limit of open files that a command requests, capped by the hard limit. Each server stream uses one descriptor."""
_LOG_SECONDS = 10.0
"""Minimum time in seconds between two log lines about refused connections."""


def open_standard_streams() -> None:
    """Open /dev/null on each standard stream that the parent process closed.

    Otherwise the next socket or journal file gets descriptor 0, 1 or 2, and prints are written into it. `sys.stdin` stays None,
    so that a command that reads messages reports the missing input.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is `number`
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def raise_file_limit() -> None:
    """Increase the soft limit of open files of this process, up to the hard limit.

    Raises:
        ConfigurationError: The possible limit is below `MIN_OPEN_FILES`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED_OPEN_FILES:
        return
    limit = WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_OPEN_FILES)
    if limit < MIN_OPEN_FILES:
        raise ConfigurationError(
            f"the limit of open files is {limit}, and a command needs at least {MIN_OPEN_FILES}: "
            "raise it with `ulimit -n 1024`"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class RefusedConnections(logging.Filter):
    """Log filter that replaces the tracebacks of rejected connections, 10 a second, by one line in 10 seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._next_time = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the traceback of a log record by a plain line if a connection could not be accepted.

        Return False to drop the record, if a line was logged less than 10 seconds ago.
        """
        now = time.monotonic()
        if now < self._next_time:
            return False
        self._next_time = now + _LOG_SECONDS
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        record.msg, record.args, record.exc_info = (
            "no new connection is accepted: too many open files (limit %s); raise it with `ulimit -n`",
            (limit,),
            None,
        )
        return True
