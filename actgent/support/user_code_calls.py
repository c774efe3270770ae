"""The boundary to user code: tools, models, handlers, hooks, rules, reducers.

User code may raise anything, including exception groups. At this boundary it becomes one of three outcomes:

    cancellation         `Cancelled` alone; other errors, e.g. of a clean-up, are logged
    `KeyboardInterrupt`  `KeyboardInterrupt` alone
    any other exception  an `Exception`; a `BaseException` such as SystemExit is wrapped in a `UserCodeExit`

If an exception class redefines attributes that Python and trio need to handle exceptions, merely inspecting the exception
may raise, even inside trio. Such an exception is replaced by a `UserCodeExit` with its text. `call_user_code` and
`unwrap_result` do this for exceptions from threads.

Therefore an exception of user code can only affect the call that ran this code.
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

from actgent.errors import UserCodeExit

from .attrs_class_repr import FieldRepr
from .safe_logging import logger_of

T = TypeVar("T")
_log = logger_of(__name__)


_cause_of: Callable[[BaseException], BaseException | None]
_context_of: Callable[[BaseException], BaseException | None]
_cause_of, _context_of = (vars(BaseException)[name].__get__ for name in ("__cause__", "__context__"))
"""Descriptors that read `__cause__` and `__context__` without running code of the exception's class."""
_members_of: Callable[[BaseException], tuple[BaseException, ...]] = vars(BaseExceptionGroup)[
    "exceptions"
].__get__
_mro_of, _flags_of, _names_of, _name_of = (
    vars(type)[name].__get__ for name in ("__mro__", "__flags__", "__dict__", "__name__")
)
"""Descriptors that read attributes of a class without running code of its metaclass."""
_EXCEPTION_ATTRIBUTES = ("__class__", "__getattribute__", "__traceback__", "with_traceback")
"""Attributes that Python and trio read from every exception they handle."""
_GROUP_ATTRIBUTES = ("exceptions", "split", "subgroup")
"""Additional attributes that Python and trio read from exception groups."""
_MAX_TEXT_CHARS = 1000
_HEAP_TYPE_FLAG = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`, the flag of classes that are defined in Python."""


def _is(error: BaseException, kind: type) -> bool:
    """Return `isinstance(error, kind)` without running code of the exception's class."""
    return issubclass(type(error), kind)


def _redefined_attribute(error: BaseException) -> str:
    """Return the name of an attribute for exception handling that the exception's class redefines in Python; else empty."""
    kind = type(error)
    if kind is trio.Cancelled or kind is BaseExceptionGroup:  # each agent ends with these two
        return ""
    if _redefines(type(kind), "__getattribute__"):
        return "its metaclass"
    names = (
        (*_EXCEPTION_ATTRIBUTES, *_GROUP_ATTRIBUTES)
        if _is(error, BaseExceptionGroup)
        else _EXCEPTION_ATTRIBUTES
    )
    return next((name for name in names if _redefines(kind, name)), "")


def _redefines(kind: type, name: str) -> bool:
    definer = next((each for each in _mro_of(kind) if name in _names_of(each)), None)
    return definer is not None and bool(_flags_of(definer) & _HEAP_TYPE_FLAG)


def safe_exception(error: BaseException) -> BaseException:
    """Return the exception itself, or a `UserCodeExit` with its text if its class redefines exception handling."""
    if not (redefined := _redefined_attribute(error)):
        return error
    text = (readable_text(error) or "")[:_MAX_TEXT_CHARS]
    return UserCodeExit(_name_of(type(error)), redefined=redefined, words=text)


@attrs.frozen(eq=False, repr=False)
class Raised(FieldRepr):
    """Result of `call_user_code` if the user function raised an exception."""

    error: BaseException
    """The exception, which may be unsafe to handle."""


def call_user_code(fn: Callable[..., T], *args: object) -> tuple[T] | Raised:
    """Call a user function in a trio thread and return its result or exception for `unwrap_result`; never raises."""
    try:
        return (fn(*args),)
    except BaseException as error:  # noqa: ASYNC103, BLE001 - `unwrap_result` raises it in the waiting task
        return Raised(error)  # noqa: ASYNC104 - as above


def unwrap_result(result: tuple[T] | Raised) -> T:
    """Return the value that `call_user_code` captured, or raise the captured exception in a safe form."""
    if not isinstance(result, Raised):
        return result[0]
    try:
        raise safe_exception(result.error)
    finally:
        del result  # the traceback refers to this frame: breaks the reference cycle


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in an exception group, at any depth, in a safe form. Of a `UserCodeExit`, yield the cause.

    If `error` is no group, yield `error` itself.
    """
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if _is(each, UserCodeExit) and (cause := _cause_of(each)) is not None:
            waiting.append(cause)
        elif _is(each, BaseExceptionGroup):
            waiting += reversed(_members_of(each))
        else:
            yield safe_exception(each)


def convert_user_error(error: BaseException, kind: str, name: str) -> Exception:
    """Convert an exception of user code to an `Exception`; `kind` and `name` identify that code in the log.

    Call it where the exception is caught, inside all cancel scopes of actgent.

    Raises:
        Cancelled: The current task is cancelled, and the exception results from that.
        KeyboardInterrupt: The exception is or contains a `KeyboardInterrupt`.
    """
    pure = _only_cancellation(error)
    if pure is not None and _is_task_cancelled():  # the usual case: each task of an agent ends so
        try:
            raise pure
        finally:
            del pure, error  # avoids reference cycles, as below
    raised, error = error, safe_exception(error)
    if raised is not error or not isinstance(error, Exception):
        _raise_program_exit(raised)
    cancelled = _cancellation_in(raised)
    if cancelled is not None and _is_task_cancelled():
        if cancelled is not raised:
            _log_cleanup_errors(raised, kind, name)
        try:
            raise cancelled
        finally:
            del (
                cancelled,
                error,
                raised,
            )  # avoids reference cycles, which would have to be collected after mass cancellation
    if isinstance(error, Exception):
        return error
    failure = UserCodeExit(type(error).__name__)
    failure.__cause__ = error
    return failure


def _raise_program_exit(error: BaseException) -> None:
    """Raise `KeyboardInterrupt` and `GeneratorExit`, which the program itself has to handle."""
    for leaf in leaves(error):
        if _is(leaf, KeyboardInterrupt):
            raise leaf
    if _is(error, GeneratorExit) and not trio.lowlevel.in_trio_task():
        raise error  # the coroutine is being closed


def _is_task_cancelled() -> bool:
    return trio.lowlevel.in_trio_task() and trio.current_effective_deadline() == -math.inf


def _only_cancellation(error: BaseException) -> trio.Cancelled | None:
    """Return a `Cancelled` if the exception is one, or is a group of nothing but `Cancelled`; otherwise return None."""
    found, waiting = None, [error]
    while waiting:  # groups may be nested deeper than the recursion limit
        each = waiting.pop()
        if type(each) is trio.Cancelled:
            found = each
        elif type(each) is BaseExceptionGroup:
            waiting += _members_of(each)
        else:
            return None
    return found


def _cancellation_in(error: BaseException) -> trio.Cancelled | None:
    """Return a `Cancelled` in an exception, its causes or its contexts; None if there is none."""
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


def _log_cleanup_errors(error: BaseException, kind: str, name: str) -> None:
    """Log the errors that a cancelled function of the user raised during its clean-up, each with its class and line.

    The texts of the errors are omitted, because they may contain private data. `kind` and `name` identify the function.
    """
    failed = [leaf for leaf in leaves(error) if not _is(leaf, trio.Cancelled)]
    if failed:
        errors = "; ".join(
            dict.fromkeys(f"{type(leaf).__name__} at {source_location(leaf)}" for leaf in failed)
        )
        _log.warning("%s %s was cancelled, and its clean-up failed: %s", kind, name, errors)


# --- threads ------------------------------------------------------------------------------


MAX_THREADS = 40
"""Maximum number of concurrent threads for one sync user function."""


@attrs.define(eq=False, repr=False)
class DedicatedThreadLimiter(FieldRepr):
    """Thread limit of one sync user function, so that hanging calls only delay calls of the same function.

    Python cannot stop a thread: a cancelled call returns, but its slot is released only when the function returns.
    """

    _limiters: weakref.WeakKeyDictionary[trio.lowlevel.TrioToken, trio.CapacityLimiter] = attrs.field(
        factory=weakref.WeakKeyDictionary, init=False, repr=False
    )
    """Thread limiter of the function for each trio run, by the token of the run."""

    async def run_sync(self, fn: Callable[..., T], *args: Any) -> T:
        """Call the function in a thread; on cancellation the thread is abandoned."""
        token = trio.lowlevel.current_trio_token()
        if (limiter := self._limiters.get(token)) is None:
            limiter = self._limiters[token] = trio.CapacityLimiter(MAX_THREADS)
        work = functools.partial(call_user_code, fn, *args)
        return unwrap_result(await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter))


def is_awaitable(value: object) -> bool:
    """Return True if a value of user code is awaitable; False also if the check itself raises."""
    try:
        return inspect.isawaitable(value)
    except Exception:  # noqa: BLE001 - its `__class__` may raise, e.g. of a proxy without a target
        return False


def type_name(value: object) -> str:
    """Return the name of a value's class, even if the metaclass of the class redefines attribute access."""
    return str(_name_of(type(value)))


# --- error texts -------------------------------------------------------------------


def readable_text(error: BaseException) -> str | None:
    """Return `str(error)`, or None if its `__str__` raises."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: ASYNC103, BLE001 - error reporting must continue
        return None  # noqa: ASYNC104


_UNEXPLAINED = ("all attempts to connect", "All connection attempts")
"""Error texts of trio and anyio for a host that is unreachable at all addresses. Only their causes give the reasons."""


def explained_text(error: BaseException) -> str | None:
    """Return `str(error)`. If the text is empty or states only that a connection failed, add the operating system's reasons.

    Return None if the text cannot be read.
    """
    text = readable_text(error)
    if text is None or (text and not any(each in text for each in _UNEXPLAINED)):
        return text
    seen, reasons, each = set[int](), list[str](), error
    while not reasons and id(each) not in seen:
        seen.add(id(each))
        reasons = _os_error_texts(each)
        each = _cause_of(each) or _context_of(each) or each
    why = "; ".join(reason for reason in reasons if reason not in text)
    return ": ".join(filter(None, (text, why)))


def _os_error_texts(error: BaseException) -> list[str]:
    """Return the distinct texts of the operating system errors in an exception and its causes; empty if it has none."""
    found = [each for each in leaves(error) if isinstance(each, OSError) and each.errno is not None]
    return list(dict.fromkeys(map(str, found)))


ASYNCIO = (
    "asyncio is not running: agents run on trio, so write trio.sleep() instead of asyncio.sleep() etc., use a library that supports "
    "trio (httpx, anyio), or make the function sync, which runs it in a thread"
)


def advice_for(error: BaseException) -> str:
    """Return advice for an error whose text does not explain the mistake, such as the use of asyncio under trio.

    The result is empty if there is no advice.
    """
    if not isinstance(error, (RuntimeError, TypeError, AttributeError)):
        return ""
    text = readable_text(error) or ""
    if text.startswith(("no running event loop", "no current event loop", _FOREIGN_YIELD)):
        return ASYNCIO
    return ASYNCIO if isinstance(error, AttributeError) and _is_raised_in_asyncio(error) else ""


_FOREIGN_YIELD = "trio.run received unrecognized yield message"


def _is_raised_in_asyncio(error: BaseException) -> bool:
    steps = traceback.extract_tb(error.__traceback__)
    return bool(steps) and pathlib.PurePath(steps[-1].filename).parent.name == "asyncio"


def source_location(error: BaseException) -> str:
    """Return the source file and line at which an error was raised, as `file:line`, or `unknown location`."""
    steps = traceback.extract_tb(error.__traceback__)
    return f"{steps[-1].filename}:{steps[-1].lineno}" if steps else "unknown location"
