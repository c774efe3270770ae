"""The loggers of this package: each record on one line, bounded, and equal ones told once with their number.

What a record is made of may come from strangers: names, ids, the words of exceptions. So every logger has one filter, which
escapes and bounds the arguments and the traceback before any handler sees them (`printable.shown`).

Records are of one kind if logger, level, template and arguments are the same, apart from floats and those that are
`Each`: ids, which differ from record to record. Of a kind the first `PASSED` different ones pass within `WINDOW` seconds; the others are counted, and
told as one record when the window is over or the last runtime closes (`turns/watchdog.py`).
"""

import logging
import threading
import time
import traceback

import attrs

from actgent.errors.printable import counted, shown

WINDOW = 60.0
"""Seconds in which records of one kind are counted together."""
PASSED = 5
"""Different records of a kind that are told one by one."""
MAX_KINDS = 256
_ARGUMENT = 500
_LINES = 100
"""Of a traceback, the last of which count most."""


class Each(str):
    """An argument that differs from record to record without making it another one: the id of a session, of a message."""

    __slots__ = ()


@attrs.define(eq=False)
class _Kind:
    """Records of one kind in a window."""

    logger: str
    level: int
    until: float
    told: set[object] = attrs.field(factory=set)
    """Arguments and tracebacks of those that passed."""
    more: int = 0
    last: str = ""


class _Plain(logging.Filter):
    """Makes records safe to write, and counts those that repeat."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._kinds: dict[object, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        given = record.args if isinstance(record.args, tuple) else ()
        record.args = tuple(map(_plain, given))
        if record.exc_info and not record.exc_text:
            record.exc_text = _traceback_of(record.exc_info)
        over = self._over(time.monotonic())
        passes = self._passes(_kind_of(record, given), record)
        for each in over:
            _tell(each)
        return passes

    def _passes(self, key: object, record: logging.LogRecord) -> bool:
        with self._lock:
            kind = self._kinds.get(key)
            if kind is None:
                kind = self._kinds[key] = _Kind(record.name, record.levelno, time.monotonic() + WINDOW)
            which = (record.args, record.exc_text)
            if len(kind.told) < PASSED and which not in kind.told:
                kind.told.add(which)
                return True
            kind.more += 1
            kind.last = record.getMessage()
            return False

    def _over(self, now: float) -> list[_Kind]:
        """Take out the kinds whose window is over, and the oldest if there are too many."""
        with self._lock:
            keys = [key for key, kind in self._kinds.items() if kind.until <= now]
            if not keys and len(self._kinds) >= MAX_KINDS:
                keys = [next(iter(self._kinds))]
            return [self._kinds.pop(key) for key in keys]

    def summarise(self, now: float) -> None:
        for kind in self._over(now):
            _tell(kind)


_filter = _Plain()


def logger_of(name: str) -> logging.Logger:
    """The logger of a module, with the filter."""
    logger = logging.getLogger(name)
    logger.addFilter(_filter)
    return logger


def summarise(*, all_of_them: bool = False) -> None:
    """Tell how many records were left out, of the kinds whose window is over, or of all."""
    _filter.summarise(float("inf") if all_of_them else time.monotonic())


def _tell(kind: _Kind) -> None:
    if kind.more:
        # Handed over below the filter, which would count it.
        logger = logging.getLogger(kind.logger)
        text = "%s like this one: %s"
        record = logger.makeRecord(
            kind.logger, kind.level, __file__, 0, text, (counted(kind.more, "more record"), kind.last), None
        )
        logger.callHandlers(record)


def _kind_of(record: logging.LogRecord, given: tuple[object, ...]) -> object:
    same = [
        each for each, raw in zip(record.args or (), given, strict=True) if not isinstance(raw, Each | float)
    ]
    error = record.exc_info[0] if record.exc_info else None
    return record.name, record.levelno, record.msg, tuple(same), error


def _plain(argument: object) -> object:
    return argument if isinstance(argument, (int, float)) else shown(argument, _ARGUMENT)


def _traceback_of(exc_info: object) -> str:
    """A traceback whose lines cannot be taken for records: each is indented, escaped and bounded."""
    error = exc_info[1] if isinstance(exc_info, tuple) else None
    if not isinstance(exc_info, tuple) or not isinstance(error, BaseException):
        return ""
    try:
        lines = "".join(traceback.format_exception(type(error), error, exc_info[2])).splitlines()
    except Exception:  # noqa: BLE001 - a stranger's error: nested deeper than recursion goes, or with attributes that raise
        lines = [f"{type(error).__name__} (its traceback cannot be written)"]
    return "\n".join(f"  {shown(line, _ARGUMENT)}" for line in lines[-_LINES:])
