"""A session's handlers: who wants to hear what, and how they are called."""

import inspect
from collections.abc import Awaitable, Callable
from types import AsyncGeneratorType, FunctionType, GeneratorType, MethodType
from typing import Any, Literal

import attrs

from actgent.errors import ConfigurationError
from actgent.support.quick_init import maker
from actgent.tools.generators import NO_GENERATOR, YIELDS, is_generator, yields

HandlerKind = Literal[
    "conversation",
    "event",
    "tool_result",
    "tool_progress",
    "exception",
    "routing",
    "token",
    "approval",
    "growing",
]
Handler = Callable[..., Any]
"""`growing` hears that there is more of an answer, whatever of it is shown."""
_BITS: dict[HandlerKind, int] = {"conversation": 1, "event": 2, "tool_result": 4, "routing": 8}
"""The kinds of which the log says nothing where nobody hears them, as flags."""


@attrs.define(eq=False, weakref_slot=False)
class Attached:
    """A handler of one session. Its place changes hands where it is removed, so that a dispatch that runs sees that."""

    handler: Handler
    takes_session: bool
    is_outside: bool = False
    """True: a program has attached it, in this process; `Agent.on_session` attaches its own in each."""


_make_attached = maker(Attached)


class Handlers:
    """Handlers by kind, in order of registration. Empty, it holds nothing but itself.

    Who is attached while something is dispatched hears of the next thing. In the place of one that is removed meanwhile
    stands one that does nothing.
    """

    __slots__ = ("_by_kind", "_had", "_missed")

    def __init__(self) -> None:
        self._by_kind: dict[HandlerKind, tuple[Attached, ...]] | None = None
        self._had = 0
        """The kinds that have had a handler."""
        self._missed = 0
        """Kinds of which something went to nobody before they had a handler."""

    def add(self, kind: HandlerKind, handler: Handler, *, is_outside: bool = False) -> Attached:
        """Attach a handler, perhaps one of a program; returns what `drop` takes.

        Raises:
            ConfigurationError: it is a generator function, which nothing would run.
            TypeError: it cannot be called.
        """
        attached = _make_attached(handler, takes_session(handler), is_outside)
        self._had |= _BITS.get(kind, 0)
        if self._by_kind is None:
            self._by_kind = {}
        self._by_kind[kind] = (*self._by_kind.get(kind, ()), attached)
        return attached

    def remove(self, handler: Handler) -> None:
        """Forget a handler, of whatever kinds and as often as it was attached."""
        each = (attached for group in (self._by_kind or {}).values() for attached in group)
        self.drop([attached for attached in each if attached.handler == handler])

    def drop(self, gone: list[Attached]) -> None:
        """Forget what `add` returned, and not the same handler where it was attached otherwise."""
        for attached in gone:
            attached.handler, attached.takes_session = _hear_nothing, False
        kept = {
            kind: tuple(attached for attached in group if attached.handler is not _hear_nothing)
            for kind, group in (self._by_kind or {}).items()
        }
        self._by_kind = {kind: group for kind, group in kept.items() if group} or None

    def settle(self) -> None:
        """All handlers that are there by now were attached by `Agent.on_session`."""
        for group in (self._by_kind or {}).values():
            for attached in group:
                attached.is_outside = False

    def outside(self) -> "Handlers | None":
        """Those that programs have attached; None where there are none."""
        found = {kind: _outside(group) for kind, group in (self._by_kind or {}).items()}
        if not any(found.values()):
            return None
        handlers = Handlers()
        handlers._by_kind = {kind: group for kind, group in found.items() if group}
        return handlers

    def any_of(self, *kinds: HandlerKind) -> bool:
        return self._by_kind is not None and not self._by_kind.keys().isdisjoint(kinds)

    def of(self, kind: HandlerKind) -> tuple[Attached, ...]:
        return self._by_kind.get(kind, ()) if self._by_kind else ()

    def miss(self, kind: HandlerKind) -> None:
        """Something of a kind has gone to nobody."""
        self._missed |= _BITS.get(kind, 0) & ~self._had

    def take_missed(self, kind: HandlerKind) -> bool:
        """Return True, once, if something of a kind went to nobody before the first handler of it came."""
        if not self._missed:
            return False
        bit = _BITS.get(kind, 0)
        is_missed = bool(self._missed & bit)
        self._missed &= ~bit
        return is_missed


def _outside(group: tuple[Attached, ...]) -> tuple[Attached, ...]:
    return tuple(attached for attached in group if attached.is_outside)


def _hear_nothing(_: object) -> None:
    """Stand for a handler that was removed."""


def takes_session(handler: Handler) -> bool:
    """Return True if a handler has two or more positional parameters without default, so wants the session too.

    Raises:
        TypeError: the handler cannot be called.
        ConfigurationError: it is a generator function, which nothing would run.
    """
    if not hasattr(
        handler, "__wrapped__"
    ):  # the quick way: sessions are many, and each registers its handlers
        if type(handler) is FunctionType:
            code = handler.__code__
            required = code.co_argcount - len(handler.__defaults__ or ())
            if required == 1 and not code.co_flags & YIELDS:
                return False
            return _takes_session(handler, code.co_argcount, _required(handler))
        if type(handler) is MethodType and type(handler.__func__) is FunctionType:
            function = handler.__func__
            return _takes_session(handler, function.__code__.co_argcount - 1, _required(function) - 1)
    if not callable(handler):
        raise TypeError(
            f"a handler is a function or another callable, not {type(handler).__name__}: pass the function itself, "
            "without calling it"
        )
    if is_generator(handler):
        raise ConfigurationError(f"handler {name_of(handler)}: {NO_GENERATOR}")
    return _inspected(handler)


def check_called(name: str, handler: Handler, *, is_alone: bool = False) -> None:
    """Refuse what would be called and never run.

    Raises:
        ConfigurationError: it cannot be called, or is a generator function.
    """
    if not callable(handler):
        raise ConfigurationError(f"{name} takes a function, not {handler!r:.200}")
    if is_generator(handler):
        raise ConfigurationError(f"{name}, {name_of(handler)}: {NO_GENERATOR}")
    if takes_session(handler) and is_alone:
        raise ConfigurationError(
            f"{name}, {name_of(handler)}: it is called with the session alone: write def fn(session)"
        )


def _required(function: FunctionType) -> int:
    code = function.__code__
    if yields(code.co_flags):
        raise ConfigurationError(f"handler {name_of(function)}: {NO_GENERATOR}")
    return code.co_argcount - len(function.__defaults__ or ())


def _takes_session(handler: Handler, taken: int, required: int) -> bool:
    """Return True if a handler that takes so many positional arguments wants two of them.

    Raises:
        ConfigurationError: it cannot be called with one or two.
    """
    if required > 2 or (not taken and not _takes_any(handler)):  # noqa: PLR2004 - the payload and the session
        raise ConfigurationError(
            f"handler {name_of(handler)} takes {required or 'no'} arguments, and is called with one, what is delivered, or with "
            "two, that and the session: write def handler(item) or def handler(item, session)"
        )
    if required == 2:  # noqa: PLR2004 - the payload and the session
        _check_order(handler)
        return True
    return False


def _check_order(handler: Handler) -> None:
    """Refuse a handler whose parameters are swapped: it would read the reply as the session.

    Raises:
        ConfigurationError: The first of the two parameters is named `session`, and the second is not.
    """
    try:
        first, second, *_ = inspect.signature(handler).parameters
    except ValueError:  # a builtin without a signature
        return
    if first.strip("_") == "session" != second.strip("_"):
        raise ConfigurationError(
            f"handler {name_of(handler)} takes ({first}, {second}), and it is called with the session second: "
            f"write def {name_of(handler).rpartition('.')[2]}({second}, {first})"
        )


def _takes_any(handler: Handler) -> bool:
    function = handler if type(handler) is FunctionType else getattr(handler, "__func__", None)
    return bool(getattr(getattr(function, "__code__", None), "co_flags", 0) & inspect.CO_VARARGS)


def _inspected(handler: Handler) -> bool:
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except ValueError:  # a builtin without a signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    each = [p for p in parameters if p.kind in positional]
    required = [p for p in each if p.default is inspect.Parameter.empty]
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return len(required) >= 2  # noqa: PLR2004 - the payload and the session
    return _takes_session(handler, len(each), len(required))


def to_awaitable(result: object) -> Awaitable[object] | None:
    """Return the awaitable that an async handler returned; None for a sync handler.

    Raises:
        TypeError: it returned a generator, which nothing runs.
    """
    if result is None:
        return None
    if inspect.isawaitable(result):
        return result
    if isinstance(result, (GeneratorType, AsyncGeneratorType)):
        raise TypeError(f"it returned a generator: {NO_GENERATOR}")
    return None


def name_of(handler: Handler) -> str:
    """Return the name of a handler for errors and logs."""
    return getattr(handler, "__qualname__", None) or type(handler).__name__
