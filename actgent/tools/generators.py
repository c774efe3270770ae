"""Functions that yield: a call makes a generator and runs nothing, so they are refused wherever a function is taken.

An async generator may be a tool: what it yields is told as progress, and the last of it is the result.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from .base import ToolContext
from .outputs.results import to_text

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


def yields(flags: int) -> bool:
    """The same, by the flags of a function's code: `types.coroutine` marks those that are awaited after all."""
    return bool(flags & YIELDS) and not flags & inspect.CO_ITERABLE_COROUTINE


async def last_of(values: AsyncGenerator[Any, None], context: ToolContext) -> Any:
    """Return the last value that a tool yields, None if there is none; each of them is told as progress."""
    last = None
    async with aclosing(values):
        async for last in values:
            if context.report is not None:
                context.progress(text=to_text(last))
    return last
