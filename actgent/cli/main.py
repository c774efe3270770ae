"""Entry point of the `actgent` command: parse arguments, run the command, turn errors into exit codes."""

import io
import logging
import os
import signal
import sys
from collections.abc import Sequence

from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

from actgent.errors import ActgentError, ConfigurationError, InvalidFolder

from .commands import app
from .file_descriptors import RefusedConnections, open_standard_streams, raise_file_limit
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
    """Run one command and exit the process with its exit code.

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
    """Exit with 128 plus the signal number. Handles signals that arrive before the command installs its own receiver."""
    sys.exit(128 + number)


def _run_command(arguments: Sequence[str] | None) -> int:
    """Run the command, print any error to standard error, and return the exit code."""
    try:
        raise_file_limit()
        return app(arguments, exit_on_error=False, print_error=False) or 0
    except CycloptsError as error:
        Terminal().complain(_describe_usage_error(error))
        return WRONG_USE
    except ConfigurationError as error:
        for problem in error.problems if isinstance(error, InvalidFolder) else (error,):
            Terminal().complain(problem)
        return WRONG_USE
    except ActgentError as error:
        for line in (error, *getattr(error, "__notes__", ())):
            Terminal().complain(line)
        return FAILED
    except KeyboardInterrupt:  # raised before trio installs its signal receiver, or after it closed
        return INTERRUPTED
    except OSError as error:
        return _silence_output(error)


def _describe_usage_error(error: CycloptsError) -> str:
    """Return the text of a wrong command line, with a hint and the `--help` command to run."""
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
    Terminal().complain(f"{error.filename}: {error.strerror}" if error.filename else error)
    return FAILED
