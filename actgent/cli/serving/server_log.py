"""Log of `actgent serve` on standard error: one record per line, as text or JSON, with time and level."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import orjson

from actgent.errors.text_escaping import shown

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LOGGER = "actgent.serve"
"""Logger name of the command's own notices."""
_MAX_MESSAGE_CHARACTERS = 8_000
"""Maximum characters of a message. Loggers of actgent limit each argument below that."""


@contextmanager
def logging_to_stderr(log_format: LogFormat, level: LogLevel) -> Iterator[None]:
    """Write log records to standard error during the `with` block.

    Loggers of actgent log records from `level` on. Other libraries log from WARNING on, because their records may quote
    URLs with API keys.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JSONFormatter() if log_format == "json" else _TextFormatter())
    root, ours = logging.getLogger(), logging.getLogger("actgent")
    before = ours.level
    root.addHandler(handler)
    ours.setLevel(level.upper())
    try:
        yield
    finally:
        ours.setLevel(before)
        root.removeHandler(handler)


def _time_of(record: logging.LogRecord) -> str:
    """Format the time of a log record as RFC 3339 in UTC, with milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class _TextFormatter(logging.Formatter):
    """Formatter of log records as `TIME LEVEL LOGGER: MESSAGE`; a traceback follows on indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        line = f"{_time_of(record)} {level:<7} {record.name}: {shown(record.getMessage(), _MAX_MESSAGE_CHARACTERS)}"
        traceback = _traceback_of(self, record)
        return f"{line}\n{traceback}" if traceback else line


class _JSONFormatter(logging.Formatter):
    """Formatter of log records as one JSON object: time, level, logger, message, fields of a request log, and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shown(record.getMessage(), _MAX_MESSAGE_CHARACTERS),
            **getattr(record, "fields", {}),
        }
        if traceback := _traceback_of(self, record):
            row["traceback"] = traceback
        return orjson.dumps(row, default=str).decode()


def _traceback_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback of a log record; empty without one. Lines are indented, so that none looks like a record.

    Loggers of actgent have already escaped and indented their tracebacks (`support/safe_logging.py`).
    """
    if record.exc_text:
        return record.exc_text
    if not record.exc_info:
        return ""
    lines = formatter.formatException(record.exc_info).splitlines()
    return "\n".join(f"  {shown(line, _MAX_MESSAGE_CHARACTERS)}" for line in lines)
