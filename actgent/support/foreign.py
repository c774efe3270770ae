"""The edge to code that is not ours: tools, models, handlers, hooks, rules, reducers.

Such code may raise anything, in groups too. At this edge it comes to one of three things:

    we are cancelled     `Cancelled`, alone; what else failed, in a clean-up, is logged
    `KeyboardInterrupt`  itself, alone
    all else             an `Exception`; what is none (SystemExit, asyncio's CancelledError) in a `ForeignExit`

An exception whose class redefines what Python and trio do with exceptions may raise wherever it is only looked at, in trio's
own tasks, too. A `ForeignExit` with its words stands for it; `call_foreign` and `unwrap_foreign` bring it so out of a thread.

So what a stranger raises is the outcome of the call that he was asked in, and of nothing else.
"""

import functools
import inspect
import math
import pathlib
import traceback
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import attrs
import trio

from actgent.errors import ForeignExit

from .logs import logger_of

T = TypeVar("T")
_log = logger_of(__name__)


_cause_of: Callable[[BaseException], BaseException | None]
_context_of: Callable[[BaseException], BaseException | None]
_cause_of, _context_of = (vars(BaseException)[name].__get__ for name in ("__cause__", "__context__"))
"""What an exception comes from, past what a foreign class makes of the attributes."""
_members_of: Callable[[BaseException], tuple[BaseException, ...]] = vars(BaseExceptionGroup)[
    "exceptions"
].__get__
_mro_of, _flags_of, _names_of, _name_of = (
    vars(type)[name].__get__ for name in ("__mro__", "__flags__", "__dict__", "__name__")
)
"""The same of classes, past what a foreign metaclass makes of them."""
_HANDLED_BY = ("__class__", "__getattribute__", "__traceback__", "with_traceback")
"""What is asked of an exception wherever it is handled."""
_TAKEN_APART_BY = ("exceptions", "split", "subgroup")
"""What is asked of a group besides; in other classes these are words as any other."""
_MOST_WORDS = 1000
_WRITTEN_IN_PYTHON = 1 << 9
"""The flag of classes that are made while a program runs (`Py_TPFLAGS_HEAPTYPE`)."""


def _is(error: BaseException, kind: type) -> bool:
    """`isinstance` that does not ask the exception."""
    return issubclass(type(error), kind)


def _redefined_by(error: BaseException) -> str:
    """What the class of an exception redefines of how it is handled; empty where that is nothing."""
    kind = type(error)
    if _redefines(type(kind), "__getattribute__"):
        return "its metaclass"
    names = (*_HANDLED_BY, *_TAKEN_APART_BY) if _is(error, BaseExceptionGroup) else _HANDLED_BY
    return next((name for name in names if _redefines(kind, name)), "")


def _redefines(kind: type, name: str) -> bool:
    definer = next((each for each in _mro_of(kind) if name in _names_of(each)), None)
    return definer is not None and bool(_flags_of(definer) & _WRITTEN_IN_PYTHON)


def tamed(error: BaseException) -> BaseException:
    """An exception that can be handled: itself, or what stands for it."""
    if not (redefined := _redefined_by(error)):
        return error
    words = (readable_text(error) or "")[:_MOST_WORDS]
    return ForeignExit(_name_of(type(error)), redefined=redefined, words=words)


@attrs.frozen(eq=False)
class Raised:
    """What a foreign function raised, on its way out of a thread."""

    error: BaseException


def call_foreign(fn: Callable[..., T], *args: object) -> tuple[T] | Raised:
    """Call a foreign function in a thread of trio's, which is to see nothing of what it raises; for `unwrap_foreign`."""
    try:
        return (fn(*args),)
    except BaseException as error:  # noqa: ASYNC103, BLE001 - it is raised where the thread is waited for
        return Raised(error)  # noqa: ASYNC104 - as above


def unwrap_foreign(ended: tuple[T] | Raised) -> T:
    """Return what a foreign function in a thread returned, or raise what it raised."""
    if not isinstance(ended, Raised):
        return ended[0]
    try:
        raise tamed(ended.error)
    finally:
        del ended  # the error leads to this frame


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, however deep, tamed; one that is no group is its only leaf, and a `ForeignExit` its cause."""
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if _is(each, ForeignExit) and (cause := _cause_of(each)) is not None:
            waiting.append(cause)
        elif _is(each, BaseExceptionGroup):
            waiting += reversed(_members_of(each))
        else:
            yield tamed(each)


def failure_of(error: BaseException, kind: str, name: str) -> Exception:
    """Convert what foreign code raised into our error; `kind` and `name` name that code in the log.

    Call it where the error is caught, inside of all cancel scopes of ours.

    Raises:
        Cancelled: we are cancelled, and the error comes from that.
        KeyboardInterrupt: it is among what was raised.
    """
    raised, error = error, tamed(error)
    if raised is not error or not isinstance(error, Exception):
        _let_through(raised)
    cancelled = _cancellation_in(raised)
    if cancelled is not None and _are_we_cancelled():
        if cancelled is not raised:
            _log_rest(raised, kind, name)
        try:
            raise cancelled
        finally:
            del cancelled, error, raised  # a thousand that are cancelled leave no cycles to collect
    if isinstance(error, Exception):
        return error
    failure = ForeignExit(type(error).__name__)
    failure.__cause__ = error
    return failure


def _let_through(error: BaseException) -> None:
    """Raise what is for the program as a whole."""
    for leaf in leaves(error):
        if _is(leaf, KeyboardInterrupt):
            raise leaf
    if _is(error, GeneratorExit) and not trio.lowlevel.in_trio_task():
        raise error  # our own coroutine is being closed


def _are_we_cancelled() -> bool:
    return trio.lowlevel.in_trio_task() and trio.current_effective_deadline() == -math.inf


def _cancellation_in(error: BaseException) -> trio.Cancelled | None:
    """The `Cancelled` that is in an error, or was being dealt with when it was raised."""
    waiting, seen = [error], set[int]()
    for each in waiting:
        if _is(each, trio.Cancelled):
            return typing.cast("trio.Cancelled", each)
        if id(each) in seen:
            continue
        seen.add(id(each))
        waiting += _members_of(each) if _is(each, BaseExceptionGroup) else ()
        waiting += [one for one in (_cause_of(each), _context_of(each)) if one is not None]
    return None


def _log_rest(error: BaseException, kind: str, name: str) -> None:
    """Without the errors' words, which may tell contents: their classes and places are enough to look further."""
    failed = [leaf for leaf in leaves(error) if not _is(leaf, trio.Cancelled)]
    if failed:
        words = "; ".join(dict.fromkeys(f"{type(leaf).__name__} at {place_of(leaf)}" for leaf in failed))
        _log.warning("%s %s was cancelled, and failed in its clean-up: %s", kind, name, words)


# --- in threads ------------------------------------------------------------------------------


MOST_THREADS = 40
"""Threads in which the sync function of one stranger runs at a time."""


@attrs.define(eq=False)
class OwnThreads:
    """Threads for one sync function of a stranger, so that those that hang keep nobody waiting but its own callers.

    Python cannot stop a thread: the call is cancelled, and its place is free again when the function returns.
    """

    _limiters: weakref.WeakKeyDictionary[trio.lowlevel.TrioToken, trio.CapacityLimiter] = attrs.field(
        factory=weakref.WeakKeyDictionary, init=False, repr=False
    )
    """One for each run of trio that uses it."""

    async def run_sync(self, fn: Callable[..., T], *args: Any) -> T:
        """Call the function in a thread; cancelled, it is left there."""
        token = trio.lowlevel.current_trio_token()
        if (limiter := self._limiters.get(token)) is None:
            limiter = self._limiters[token] = trio.CapacityLimiter(MOST_THREADS)
        work = functools.partial(call_foreign, fn, *args)
        return unwrap_foreign(await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter))


def is_awaitable(value: object) -> bool:
    """Return True if a value that foreign code returned can be awaited; False if the value fails when it is asked."""
    try:
        return inspect.isawaitable(value)
    except Exception:  # noqa: BLE001 - of its `__class__`, for example of a proxy without a target
        return False


def type_name(value: object) -> str:
    """Return the name of a value's class, also if its metaclass redefines attribute access."""
    return str(_name_of(type(value)))


# --- the words of an error -------------------------------------------------------------------


def readable_text(error: BaseException) -> str | None:
    """Read an exception's own words; None where they cannot be read, since a foreign `__str__` may raise anything."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: ASYNC103, BLE001 - it is asked while an error is told, which goes on
        return None  # noqa: ASYNC104


_NO_REASON = ("all attempts to connect", "All connection attempts")
"""How trio and anyio say that a host was reached at none of its addresses; why, only the errors say that theirs comes from."""


def telling_text(error: BaseException) -> str | None:
    """The same, and the reason with it where an exception says nothing, or only that all attempts failed to reach a host."""
    text = readable_text(error)
    if text is None or (text and not any(each in text for each in _NO_REASON)):
        return text
    seen, reasons, each = set[int](), list[str](), error
    while not reasons and id(each) not in seen:
        seen.add(id(each))
        reasons = _refusals(each)
        each = _cause_of(each) or _context_of(each) or each
    why = "; ".join(reason for reason in reasons if reason not in text)
    return ": ".join(filter(None, (text, why)))


def _refusals(error: BaseException) -> list[str]:
    """What an operating system said of the addresses of a host, each once; nothing where an exception is not its."""
    found = [each for each in leaves(error) if isinstance(each, OSError) and each.errno is not None]
    return list(dict.fromkeys(map(str, found)))


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
