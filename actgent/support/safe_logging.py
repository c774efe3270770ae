"""Loggers of this package: records are sanitized, and repeated records are summarized.

Arguments of a record may contain untrusted text: names, ids, exception texts. A filter on every logger escapes and
shortens the arguments and the traceback before a handler gets them (`printable.shown`).

Records with the same logger, level, template and arguments form a group; arguments that are floats or `LogVariable` (ids) are
ignored in the comparison. Within `WINDOW_SECONDS` the first `MAX_PASSED` different records of a group pass. Further ones are
counted, and one summary record is logged when the window ends or the last runtime closes (`turns/event_loop_watchdog.py`).
"""

import logging
import threading
import time
import traceback

import attrs

from actgent.errors.text_escaping import counted, shown

from .attrs_class_repr import FieldRepr

WINDOW_SECONDS = 60.0
"""Time in seconds during which records of one group are counted together."""
MAX_PASSED = 5
"""Maximum number of different records of a group that pass the filter within a window."""
MAX_GROUPS = 256
"""Maximum number of groups that are tracked; the oldest is summarized early."""
_MAX_ARGUMENT_CHARS = 500
_MAX_TRACEBACK_LINES = 100
"""Maximum number of traceback lines in a record; the last lines are kept."""


class LogVariable(str):
    """A log argument that is ignored when records are grouped, e.g. the id of a session or message."""

    __slots__ = ()


@attrs.define(eq=False, repr=False)
class _Group(FieldRepr):
    """Log records of one group (equal except for ids and floats) within a time window."""

    logger: str
    level: int
    until: float
    """End of the group's time window, as monotonic time in seconds."""
    passed: set[object] = attrs.field(factory=set)
    """Arguments and tracebacks of the log records that passed the filter."""
    suppressed: int = 0
    """Number of log records that the filter suppressed."""
    last: str = ""
    """Text of the last log record that was suppressed."""


class _SanitizingFilter(logging.Filter):
    """Filter of a logger: sanitizes log records, and suppresses and counts repeated records."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._groups: dict[object, _Group] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        given = record.args if isinstance(record.args, tuple) else ()
        record.args = tuple(map(_sanitize, given))
        if record.exc_info and not record.exc_text:
            record.exc_text = _traceback_of(record.exc_info)
        expired = self._pop_expired(time.monotonic())
        passes = self._passes(_group_key(record, given), record)
        for each in expired:
            _log_summary(each)
        return passes

    def _passes(self, key: object, record: logging.LogRecord) -> bool:
        with self._lock:
            kind = self._groups.get(key)
            if kind is None:
                kind = self._groups[key] = _Group(
                    record.name, record.levelno, time.monotonic() + WINDOW_SECONDS
                )
            which = (record.args, record.exc_text)
            if len(kind.passed) < MAX_PASSED and which not in kind.passed:
                kind.passed.add(which)
                return True
            kind.suppressed += 1
            kind.last = record.getMessage()
            return False

    def _pop_expired(self, now: float) -> list[_Group]:
        """Remove and return the groups whose window has ended.

        If there are too many groups, the oldest is returned too.
        """
        with self._lock:
            keys = [key for key, group in self._groups.items() if group.until <= now]
            if not keys and len(self._groups) >= MAX_GROUPS:
                keys = [next(iter(self._groups))]
            return [self._groups.pop(key) for key in keys]

    def summarise(self, now: float) -> None:
        for kind in self._pop_expired(now):
            _log_summary(kind)


_filter = _SanitizingFilter()


def logger_of(name: str) -> logging.Logger:
    """Return the logger of a module. Its records are escaped, and repeated records are suppressed."""
    logger = logging.getLogger(name)
    logger.addFilter(_filter)
    return logger


def summarise(*, all_of_them: bool = False) -> None:
    """Log, for each group, the number of suppressed repeated records.

    Groups whose time window has not ended are only reported if `all_of_them` is True.
    """
    _filter.summarise(float("inf") if all_of_them else time.monotonic())


def _log_summary(kind: _Group) -> None:
    if kind.suppressed:
        # Passed to the handlers directly, because the filter would count it.
        logger = logging.getLogger(kind.logger)
        text = "%s like this one: %s"
        record = logger.makeRecord(
            kind.logger,
            kind.level,
            __file__,
            0,
            text,
            (counted(kind.suppressed, "more record"), kind.last),
            None,
        )
        logger.callHandlers(record)


def _group_key(record: logging.LogRecord, given: tuple[object, ...]) -> object:
    same = [
        each
        for each, raw in zip(record.args or (), given, strict=True)
        if not isinstance(raw, LogVariable | float)
    ]
    error = record.exc_info[0] if record.exc_info else None
    return record.name, record.levelno, record.msg, tuple(same), error


def _sanitize(argument: object) -> object:
    return argument if isinstance(argument, (int, float)) else shown(argument, _MAX_ARGUMENT_CHARS)


def _traceback_of(exc_info: object) -> str:
    """Format a traceback with each line indented, escaped and shortened, so that no line resembles a log record."""
    error = exc_info[1] if isinstance(exc_info, tuple) else None
    if not isinstance(exc_info, tuple) or not isinstance(error, BaseException):
        return ""
    try:
        lines = "".join(traceback.format_exception(type(error), error, exc_info[2])).splitlines()
    except Exception:  # noqa: BLE001 - a third-party error may exceed the recursion limit or have attributes that raise
        lines = [f"{type(error).__name__} (its traceback cannot be written)"]
    return "\n".join(f"  {shown(line, _MAX_ARGUMENT_CHARS)}" for line in lines[-_MAX_TRACEBACK_LINES:])
