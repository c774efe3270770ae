"""Functions that yield: a call makes a generator and runs nothing, so they are refused wherever a function is taken."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

_YIELDS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
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
    return bool(flags & _YIELDS) and not flags & inspect.CO_ITERABLE_COROUTINE
