"""Classification of callables: sync, async or generator.

A rule or handler must not be a generator or async function: the object that its call returns is always true. Functions
with `yield` are rejected in all arguments, with one exception: an async generator may be a tool. Each yielded value is
progress, and the last value is the result.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from actgent.errors import ConfigurationError

from .outputs.result_text import to_result_text
from .tool_interface import ToolContext

YIELDS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
"""Code flags of generator and async generator functions."""
GENERATOR_REJECTED = (
    "it is a generator function, whose body would never run: return a value instead of using `yield`"
)


def is_generator_function(function: Callable[..., Any]) -> bool:
    """Return True if a call of a function, method, partial or callable object only creates a generator."""
    while isinstance(function, functools.partial):
        function = function.func
    called: Any = function if inspect.isroutine(function) else type(function).__call__
    code = getattr(called, "__code__", None)  # a method has the code of its function
    return code is not None and code_yields(code.co_flags)


def is_sync_callable(function: object) -> bool:
    """Return True if `function` is callable and neither a coroutine function nor a generator function.

    Partials are unwrapped. Of other objects, `__call__` is checked.
    """
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not callable(inner) or is_generator_function(inner):
        return False
    called = inner if inspect.isroutine(inner) or isinstance(inner, type) else inner.__call__
    return not inspect.iscoroutinefunction(called)


def check_rule_function(name: str, function: object, *, takes: str) -> None:
    """Check that the value of an argument is a sync function. Rules are called in the event loop and must not wait.

    Args:
        name: Name of the argument, for the error.
        function: Value of the argument.
        takes: Parameters of the function, for the error, e.g. "(call, tool, context)".

    Raises:
        ConfigurationError: The value is not callable, or is a class, an async function or a generator function.
    """
    if not is_sync_callable(function) or isinstance(function, type):
        raise ConfigurationError(
            f"{name} must be a sync function of {takes} without yield, not {function!r:.200}"
        )


def rule_allows(rule: str, value: object) -> bool:
    """Convert the value that a rule function returned to a bool. `rule` is the name of the rule for the error.

    Raises:
        ConfigurationError: The value is awaitable. An awaitable is always true, so the rule would allow everything.
    """
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise ConfigurationError(f"{rule} must be a sync function, but it returned an awaitable")
    return bool(value)


def code_yields(flags: int) -> bool:
    """Return True if the flags of a code object (`co_flags`) mark a generator function.

    Functions with `types.coroutine` are awaited, so they do not count.
    """
    return bool(flags & YIELDS) and not flags & inspect.CO_ITERABLE_COROUTINE


async def drain_with_progress(values: AsyncGenerator[Any, None], context: ToolContext) -> Any:
    """Report each value of an async generator tool as progress. Return the last value; None if it yields no value."""
    last = None
    async with aclosing(values):
        async for last in values:
            if context.report is not None:
                context.progress(text=to_result_text(last))
    return last
