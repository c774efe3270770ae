"""File descriptors of the process: reopen closed standard streams, raise the limit of open files."""

import logging
import os
import resource
import sys
import time

from actgent.errors import ConfigurationError

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
    """Raise the soft limit of open files of this process, within the hard limit.

    Raises:
        ConfigurationError: The limit stays below `MIN_OPEN_FILES`.
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
    """Filter of trio's accept errors: one plain line in 10 s instead of a traceback for each attempt (10 a second)."""

    def __init__(self) -> None:
        super().__init__()
        self._next_time = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Log one line instead of many tracebacks if no connection can be accepted.

        Return False for lines that follow too soon.
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
