"""Handlers of a session by kind of delivery, and checks of handler signatures."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import AsyncGeneratorType, FunctionType, GeneratorType, MethodType
from typing import Any, Literal, TypeVar

import attrs

from actgent.errors import ConfigurationError
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.tools.callable_kinds import GENERATOR_REJECTED, YIELDS, code_yields, is_generator_function

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
"""Kind of deliveries that a handler receives."""
Handler = Callable[..., Any]
"""Sync or async function that receives a delivery, and optionally also the session."""
H = TypeVar("H", bound=Handler)
MISSABLE: dict[HandlerKind, int] = {"conversation": 1, "event": 2, "tool_result": 4, "routing": 8}
"""Bit flags of the handler kinds for which a handler that was attached too late causes a warning."""


@attrs.define(eq=False, weakref_slot=False, repr=False)
class HandlerRegistration(FieldRepr):
    """Registration of a handler. `Handlers.remove` and `drop` change this object, so that a running dispatch skips the handler."""

    handler: Handler
    """The handler function."""
    takes_session: bool
    """True if the handler receives the session as its second argument."""
    is_from_program: bool = False
    """True if the program registered the handler on the session; False if an `Agent.on_session` function registered it."""


_make_attached = fast_constructor(HandlerRegistration)


class Handlers(dict[HandlerKind, tuple[HandlerRegistration, ...]]):
    """Registered handlers of a session by kind, in order of registration.

    A handler that is added during a dispatch receives only later deliveries. A handler that is removed during a
    dispatch is not called any more.
    """

    __slots__ = ("_had", "missed")

    def __init__(self) -> None:
        self._had = 0
        """Bit flags of the kinds that have had a handler."""
        self.missed = 0
        """Bit flags (`MISSABLE`) of the kinds of deliveries that no handler received."""

    def add(self, kind: HandlerKind, handler: Handler) -> HandlerRegistration:
        """Register a handler, and return the registration for `drop`.

        Raises:
            ConfigurationError: The handler is a generator function, which would never run.
            TypeError: The handler is not callable.
        """
        attached = _make_attached(handler, takes_session(handler))
        self._had |= MISSABLE.get(kind, 0)
        self[kind] = (*self.get(kind, ()), attached)
        return attached

    def remove(self, handler: Handler) -> None:
        """Remove all registrations of a handler, also from a running dispatch. An unknown handler is ignored."""
        each = (attached for group in self.values() for attached in group)
        self.drop([attached for attached in each if attached.handler == handler])

    def drop(self, registrations: list[HandlerRegistration]) -> None:
        """Remove the registrations that `add` returned. A dispatch that is running no longer calls these handlers."""
        for attached in registrations:
            attached.handler, attached.takes_session = _ignore, False
        for kind, group in tuple(self.items()):
            if kept := tuple(attached for attached in group if attached.handler is not _ignore):
                self[kind] = kept
            else:
                del self[kind]

    def mark_agent_handlers(self) -> None:
        """Mark all current handlers as handlers of `Agent.on_session` functions. `from_program` omits marked handlers."""
        for group in self.values():
            for attached in group:
                attached.is_from_program = False

    def from_program(self) -> "Handlers | None":
        """Return a copy with only the handlers that the program attached to the session; None if there are no such handlers."""
        found = {
            kind: tuple(attached for attached in group if attached.is_from_program)
            for kind, group in self.items()
        }
        handlers = Handlers()
        handlers.update({kind: group for kind, group in found.items() if group})
        return handlers or None

    def any_of(self, *kinds: HandlerKind) -> bool:
        """Return True if a handler of one of these kinds is registered."""
        return bool(self) and not self.keys().isdisjoint(kinds)

    def pop_missed(self, kind: HandlerKind) -> bool:
        """Return True once if deliveries of this kind occurred before the first handler for it. Later calls return False."""
        bit = MISSABLE.get(kind, 0)
        is_missed = bool(self.missed & bit & ~self._had)
        self.missed &= ~bit
        return is_missed


class HandlerMethods(ABC):
    """Methods that register the handlers of a session: `@session.on_token`. Each one returns the handler."""

    @abstractmethod
    def _on(self, kind: HandlerKind, handler: H) -> H:
        """Register a handler of this kind, and return the handler."""

    def on_conversation(self, handler: H) -> H:
        """Register `handler(reply)` for each `Reply`."""
        return self._on("conversation", handler)

    def on_event(self, handler: H) -> H:
        """Register `handler(event)` for each `Event`, the structured result of an instruction."""
        return self._on("event", handler)

    def on_tool_result(self, handler: H) -> H:
        """Register `handler(result)` for each `ToolResult`, also of failed tools."""
        return self._on("tool_result", handler)

    def on_tool_progress(self, handler: H) -> H:
        """Register `handler(progress)` for the latest `CallProgress` of each tool call that is running."""
        return self._on("tool_progress", handler)

    def on_exception(self, handler: H) -> H:
        """Register `handler(failure)` for each `Failure` of a message, a handler or an event stream."""
        return self._on("exception", handler)

    def on_routing(self, handler: H) -> H:
        """Register `handler(route)` for each `Route`, a message that an agent passes on to another."""
        return self._on("routing", handler)

    def on_token(self, handler: H) -> H:
        """Register `handler(token)` for each `Token` of an answer. Later answers are streamed."""
        return self._on("token", handler)

    def on_approval(self, handler: H) -> H:
        """Register `handler(approval)`, called when a tool call of the session needs approval. `answer` decides the approval."""
        return self._on("approval", handler)


def _ignore(_: object) -> None:
    """Do nothing. Replaces a removed handler in a running dispatch."""


def takes_session(handler: Handler) -> bool:
    """Return True if a handler has at least two required positional parameters, so that it also receives the session.

    Raises:
        TypeError: The handler is not callable.
        ConfigurationError: The handler is a generator function, which would never run.
    """
    if not hasattr(handler, "__wrapped__"):  # fast path, since each session registers its handlers
        if type(handler) is FunctionType:
            code = handler.__code__
            required = code.co_argcount - len(handler.__defaults__ or ())
            if required == 1 and not code.co_flags & YIELDS:
                return False
            return _takes_session(handler, code.co_argcount, _count_required_parameters(handler))
        if type(handler) is MethodType and type(handler.__func__) is FunctionType:
            function = handler.__func__
            return _takes_session(
                handler, function.__code__.co_argcount - 1, _count_required_parameters(function) - 1
            )
    if not callable(handler):
        raise TypeError(
            f"a handler must be a function or another callable, not {type(handler).__name__}: pass the function itself, "
            "without calling it"
        )
    if is_generator_function(handler):
        raise ConfigurationError(f"handler {name_of(handler)}: {GENERATOR_REJECTED}")
    return _inspected(handler)


def check_called(name: str, handler: Handler, *, is_alone: bool = False) -> None:
    """Raise if a value cannot be used as handler or hook. `name` is the name of the argument for the error text.

    With `is_alone`, the function is called with the session as its only argument.

    Raises:
        ConfigurationError: The value is not callable, is a generator function, or takes the wrong number of
            arguments.
    """
    if not callable(handler):
        raise ConfigurationError(f"{name} needs a function, not {handler!r:.200}")
    if is_generator_function(handler):
        raise ConfigurationError(f"{name}, {name_of(handler)}: {GENERATOR_REJECTED}")
    if takes_session(handler) and is_alone:
        raise ConfigurationError(
            f"{name}, {name_of(handler)}: it is called with the session alone: write def fn(session)"
        )


def _count_required_parameters(function: FunctionType) -> int:
    code = function.__code__
    if code_yields(code.co_flags):
        raise ConfigurationError(f"handler {name_of(function)}: {GENERATOR_REJECTED}")
    return code.co_argcount - len(function.__defaults__ or ())


def _takes_session(handler: Handler, taken: int, required: int) -> bool:
    """Return True if a handler also receives the session, because it has two required positional parameters.

    `taken` is the number of its positional parameters; `required` is the number of those without a default.

    Raises:
        ConfigurationError: The handler cannot be called with one or two arguments.
    """
    if required > 2 or (not taken and not _takes_any_arguments(handler)):  # noqa: PLR2004 - the two arguments of a handler: payload and session
        raise ConfigurationError(
            f"handler {name_of(handler)} takes {required or 'no'} arguments, and is called with one argument, the delivered item, or with "
            "two, the item and the session: write def handler(item) or def handler(item, session)"
        )
    if required == 2:  # noqa: PLR2004 - the two arguments of a handler: payload and session
        _check_parameter_order(handler)
        return True
    return False


def _check_parameter_order(handler: Handler) -> None:
    """Raise `ConfigurationError` if the two parameters of a handler are in the wrong order.

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


def _takes_any_arguments(handler: Handler) -> bool:
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
        return len(required) >= 2  # noqa: PLR2004 - the two arguments of a handler: payload and session
    return _takes_session(handler, len(each), len(required))


def to_awaitable(result: object) -> Awaitable[object] | None:
    """Return the result of a handler if it is awaitable, because the handler is async; None for other results.

    Raises:
        TypeError: The handler returned a generator, which would never run.
    """
    if result is None:
        return None
    if inspect.isawaitable(result):
        return result
    if isinstance(result, (GeneratorType, AsyncGeneratorType)):
        raise TypeError(f"it returned a generator: {GENERATOR_REJECTED}")
    return None


def name_of(handler: Handler) -> str:
    """Return the qualified name of a handler function, for errors and logs."""
    return getattr(handler, "__qualname__", None) or type(handler).__name__
