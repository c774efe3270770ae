"""The way into the command line, and the exit codes out of it."""

import io
import logging
import os
import signal
import sys
from collections.abc import Sequence

from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

from actgent.errors import ActgentError, ConfigurationError, InvalidFolder

from .commands import app
from .descriptors import RefusedConnections, open_standard_streams, raise_file_limit
from .signals import handled_signals
from .terminal import Terminal, one_line

_MEANT = {
    **dict.fromkeys(("--port", "--listen", "--address", "-p"), "A server listens at --bind HOST:PORT"),
    **dict.fromkeys(
        ("--server", "--url", "--endpoint", "--gateway"), "A running server is named by --at URL"
    ),
    **dict.fromkeys(("--db", "--database", "--store"), "Sessions are kept by --journal sqlite:///FILE"),
    "--llm": "A model is named by --model provider:MODEL",
}
"""Options of other programs, and the option that is meant."""
FAILED, WRONG_USE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave the process with its exit code.

    0 is success, 1 a failure, 2 wrong use or configuration, 129, 130 and 143 the end by SIGHUP, SIGINT and SIGTERM.
    """
    open_standard_streams()
    logging.getLogger("trio.serve_listeners").addFilter(RefusedConnections())
    ending = handled_signals()
    for number in ending:
        if number != signal.SIGINT:
            signal.signal(number, _exit_early)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may say what the terminal has no character for
    code = _code_of(arguments)
    for number in ending:  # the exit code is decided; the interpreter takes a while to end
        signal.signal(number, signal.SIG_IGN)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _without_output(error)
    sys.exit(code)


def _exit_early(number: int, _frame: object) -> None:
    """End the process on a signal that arrives before the command listens for signals."""
    sys.exit(128 + number)


def _code_of(arguments: Sequence[str] | None) -> int:
    try:
        raise_file_limit()
        return app(arguments, exit_on_error=False, print_error=False) or 0
    except CycloptsError as error:
        Terminal().complain(_told(error))
        return WRONG_USE
    except ConfigurationError as error:
        for problem in error.problems if isinstance(error, InvalidFolder) else (error,):
            Terminal().complain(problem)
        return WRONG_USE
    except ActgentError as error:
        for line in (error, *getattr(error, "__notes__", ())):
            Terminal().complain(line)
        return FAILED
    except KeyboardInterrupt:  # before trio listens, or after
        return INTERRUPTED
    except OSError as error:
        return _without_output(error)


def _told(error: CycloptsError) -> str:
    command = " ".join(("actgent", *(error.command_chain or ())))
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        word = one_line(error.unused_tokens[0], 100)
        text = f"there is no place for {word!r}: words that belong together stand in quotes, and options begin with --."
    elif isinstance(error, UnknownOptionError) and (meant := _MEANT.get(error.token.keyword or "")):
        text = f"Unknown option: {error.token.keyword}. {meant}."
    else:
        text = str(error)
    return f"{text} See `{command} --help`."


def _without_output(error: OSError) -> int:
    """Keep the interpreter from complaining at its end that nobody reads, e.g. `| head`, or that a disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    Terminal().complain(f"{error.filename}: {error.strerror}" if error.filename else error)
    return FAILED
