"""Whether anybody else holds an object: by the references that are there, as nobody tells."""

import functools
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import suppress


class _Probe:
    value = object()


def _count(value: object) -> int:
    return sys.getrefcount(value)


NOBODY_ELSE = _count(_Probe.value)
"""References to what only one attribute holds, as an argument sees them: releases of Python differ."""


def is_held(value: object, functions: Iterable[object]) -> bool:
    """Return True if anybody holds a value but one attribute, and what these functions close over."""
    return sys.getrefcount(value) > NOBODY_ELSE + _count_closed_over(value, functions)


def _count_closed_over(value: object, functions: Iterable[object]) -> int:
    seen, found = set[int](), 0
    level = [*functions]
    while level:
        following: list[object] = []
        for each in level:
            if id(each) not in seen:
                seen.add(id(each))
                following += _closed_over(each)
        found += sum(each is value for each in following)
        level = following
    return found


def _closed_over(fn: object) -> Iterator[object]:
    """What a function, a part of one, or a method keeps for its calls; nothing of any other object."""
    match fn:
        case types.FunctionType():
            yield from fn.__closure__ or ()  # handlers share cells, and each counts once
            yield from fn.__defaults__ or ()
        case types.CellType():
            with suppress(ValueError):  # nothing stands in it yet
                yield fn.cell_contents
        case functools.partial():
            yield fn.func
            yield from fn.args
            yield from fn.keywords.values()
        case types.MethodType():
            yield fn.__self__
