"""A session's handlers: who wants to hear what, and how they are called."""

import inspect
from collections.abc import Awaitable, Callable
from types import FunctionType, MethodType
from typing import Any, Literal

HandlerKind = Literal["conversation", "event", "tool_result", "exception", "routing", "token", "approval"]
Handler = Callable[..., Any]


class Handlers:
    """Handlers by kind, in order of registration. Empty, it holds nothing but itself."""

    __slots__ = ("_by_kind",)

    def __init__(self) -> None:
        self._by_kind: dict[HandlerKind, list[tuple[Handler, bool]]] | None = None

    def add(self, kind: HandlerKind, handler: Handler) -> None:
        if self._by_kind is None:
            self._by_kind = {}
        self._by_kind.setdefault(kind, []).append((handler, takes_session(handler)))

    def any_of(self, *kinds: HandlerKind) -> bool:
        return self._by_kind is not None and any(kind in self._by_kind for kind in kinds)

    def of(self, kind: HandlerKind) -> list[tuple[Handler, bool]]:
        return self._by_kind.get(kind, []) if self._by_kind else []


def takes_session(handler: Handler) -> bool:
    """Whether a handler has at least two positional parameters without default, so wants the session too.

    Raises:
        TypeError: the handler cannot be called.
    """
    if not hasattr(
        handler, "__wrapped__"
    ):  # the quick way: sessions are many, and each registers its handlers
        if type(handler) is FunctionType:
            return _required(handler) >= 2  # noqa: PLR2004 - the payload and the session
        if type(handler) is MethodType and type(handler.__func__) is FunctionType:
            return _required(handler.__func__) >= 3  # noqa: PLR2004 - and self
    if not callable(handler):
        raise TypeError(f"a handler is a function or another callable, not {type(handler).__name__}")
    return _inspected(handler)


def _required(function: FunctionType) -> int:
    return function.__code__.co_argcount - len(function.__defaults__ or ())


def _inspected(handler: Handler) -> bool:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except ValueError:  # a builtin without a signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty]
    return len(required) >= 2  # noqa: PLR2004 - the payload and the session


def to_awaitable(result: object) -> Awaitable[object] | None:
    """What an async handler returned, to be awaited; None for a sync one."""
    if result is not None and inspect.isawaitable(result):
        return result
    return None


def name_of(handler: Handler) -> str:
    """How a handler is called in errors and logs."""
    return getattr(handler, "__qualname__", None) or type(handler).__name__
