"""The edge to code that is not ours: tools, models, handlers, hooks, rules, reducers.

Such code may raise anything, in groups too. At this edge it comes to one of three things:

    we are cancelled     `Cancelled`, alone; what else failed, in a clean-up, is logged
    `KeyboardInterrupt`  itself, alone
    all else             an `Exception`; what is none (SystemExit, asyncio's CancelledError) in a `ForeignExit`

So what a stranger raises is the outcome of the call that he was asked in, and of nothing else.
"""

import math
import pathlib
import traceback
from collections.abc import Callable, Iterator

import trio

from actgent.errors import ForeignExit

from .logs import logger_of

_log = logger_of(__name__)


_cause_of: Callable[[BaseException], BaseException | None]
_context_of: Callable[[BaseException], BaseException | None]
_cause_of, _context_of = (vars(BaseException)[name].__get__ for name in ("__cause__", "__context__"))
"""What an exception comes from, past what a foreign class makes of the attributes."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, however deep; one that is no group is its only leaf, and a `ForeignExit` its cause."""
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ForeignExit) and each.__cause__ is not None:
            waiting.append(each.__cause__)
        elif isinstance(each, BaseExceptionGroup):
            waiting += reversed(each.exceptions)
        else:
            yield each


def failure_of(error: BaseException, kind: str, name: str) -> Exception:
    """Convert what foreign code raised into our error; `kind` and `name` name that code in the log.

    Call it where the error is caught, inside of all cancel scopes of ours.

    Raises:
        Cancelled: we are cancelled, and the error comes from that.
        KeyboardInterrupt: it is among what was raised.
    """
    if not isinstance(error, Exception):
        _let_through(error)
    cancelled = _cancellation_in(error)
    if cancelled is not None and _are_we_cancelled():
        if cancelled is not error:
            _log_rest(error, kind, name)
        try:
            raise cancelled
        finally:
            del cancelled, error  # a thousand that are cancelled leave no cycles to collect
    if isinstance(error, Exception):
        return error
    failure = ForeignExit(type(error).__name__)
    failure.__cause__ = error
    return failure


def _let_through(error: BaseException) -> None:
    """Raise what is for the program as a whole."""
    for leaf in leaves(error):
        if isinstance(leaf, KeyboardInterrupt):
            raise leaf
    if isinstance(error, GeneratorExit) and not trio.lowlevel.in_trio_task():
        raise error  # our own coroutine is being closed


def _are_we_cancelled() -> bool:
    return trio.lowlevel.in_trio_task() and trio.current_effective_deadline() == -math.inf


def _cancellation_in(error: BaseException) -> trio.Cancelled | None:
    """The `Cancelled` that is in an error, or was being dealt with when it was raised."""
    waiting, seen = [error], set[int]()
    for each in waiting:
        if isinstance(each, trio.Cancelled):
            return each
        if id(each) in seen:
            continue
        seen.add(id(each))
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        waiting += [one for one in (_cause_of(each), _context_of(each)) if one is not None]
    return None


def _log_rest(error: BaseException, kind: str, name: str) -> None:
    """Without the errors' words, which may tell contents: their classes and places are enough to look further."""
    failed = [leaf for leaf in leaves(error) if not isinstance(leaf, trio.Cancelled)]
    if failed:
        words = "; ".join(dict.fromkeys(f"{type(leaf).__name__} at {place_of(leaf)}" for leaf in failed))
        _log.warning("%s %s was cancelled, and failed in its clean-up: %s", kind, name, words)


def readable_text(error: BaseException) -> str | None:
    """Read an exception's own words; None where they cannot be read, since a foreign `__str__` may raise anything."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: ASYNC103, BLE001 - it is asked while an error is told, which goes on
        return None  # noqa: ASYNC104


ASYNCIO = (
    "asyncio is not there: agents run on trio, so write trio.sleep() for asyncio.sleep() and the like, use a library that knows "
    "trio (httpx, anyio), or make the function sync, which runs it in a thread"
)


def advice_on(error: BaseException) -> str:
    """Tell what to do about mistakes whose own words do not tell it; empty where there is nothing to add."""
    if not isinstance(error, (RuntimeError, TypeError, AttributeError)):
        return ""
    text = readable_text(error) or ""
    if text.startswith(("no running event loop", "no current event loop", _FOREIGN_YIELD)):
        return ASYNCIO
    return ASYNCIO if isinstance(error, AttributeError) and _is_of_asyncio(error) else ""


_FOREIGN_YIELD = "trio.run received unrecognized yield message"


def _is_of_asyncio(error: BaseException) -> bool:
    steps = traceback.extract_tb(error.__traceback__)
    return bool(steps) and pathlib.PurePath(steps[-1].filename).parent.name == "asyncio"


def place_of(error: BaseException) -> str:
    """File and line where an error was raised."""
    steps = traceback.extract_tb(error.__traceback__)
    return f"{steps[-1].filename}:{steps[-1].lineno}" if steps else "an unknown place"
