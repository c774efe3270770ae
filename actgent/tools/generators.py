"""Recognise functions whose call returns a generator or a coroutine: a rule would take that object for "yes".

Functions that yield are refused wherever a function is taken.

An async generator may be a tool: what it yields is told as progress, and the last of it is the result.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from actgent.errors import ConfigurationError

from .base import ToolContext
from .outputs.results import to_result_text

YIELDS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
"""A function whose code has none of these flags does not yield."""
NO_GENERATOR = "it is a generator, which nothing runs: leave out the `yield`, and return what there is"


def is_generator(function: Callable[..., Any]) -> bool:
    """Return True if a call only makes a generator: of a function, a method, a partial or an object with `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    called: Any = function if inspect.isroutine(function) else type(function).__call__
    code = getattr(called, "__code__", None)  # of a method that of its function
    return code is not None and yields(code.co_flags)


def is_sync(function: object) -> bool:
    """Return True for a callable whose call returns its value: no coroutine function and no generator.

    Looks through partials, and at `__call__` of an object.
    """
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not callable(inner) or is_generator(inner):
        return False
    called = inner if inspect.isroutine(inner) or isinstance(inner, type) else inner.__call__
    return not inspect.iscoroutinefunction(called)


def check_rule_function(name: str, function: object, *, takes: str) -> None:
    """Refuse an argument that is no sync function. Rules are asked in place and must not wait.

    Args:
        name: Name of the argument.
        function: The value of the argument.
        takes: Parameters of the function, for the error, e.g. "(call, tool, context)".

    Raises:
        ConfigurationError: The value is no function, a class, an async function or a generator.
    """
    if not is_sync(function) or isinstance(function, type):
        raise ConfigurationError(
            f"{name} takes a function of {takes} that is not async and does not yield, not {function!r:.200}"
        )


def allowed_by(rule: str, answer: object) -> bool:
    """Return the answer of a rule as True or False.

    Raises:
        ConfigurationError: The answer is a coroutine, or another object that would have to be awaited. Such an object is
            true, so the rule would allow everything.
    """
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ConfigurationError(f"{rule} returned something to await: write a function that is not async")
    return bool(answer)


def yields(flags: int) -> bool:
    """The same, by the flags of a function's code: `types.coroutine` marks those that are awaited after all."""
    return bool(flags & YIELDS) and not flags & inspect.CO_ITERABLE_COROUTINE


async def last_of(values: AsyncGenerator[Any, None], context: ToolContext) -> Any:
    """Return the last value that a tool yields, None if there is none; each of them is told as progress."""
    last = None
    async with aclosing(values):
        async for last in values:
            if context.report is not None:
                context.progress(text=to_result_text(last))
    return last
