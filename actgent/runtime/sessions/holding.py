"""Whether anybody outside holds the user's end of a session: by the references that are there, as nobody tells."""

import functools
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import get_args

from actgent.sessions.context import SessionContext
from actgent.sessions.handlers import HandlerKind, Handlers

NOBODY_ELSE = 2
"""References to what only its context holds: that one, and the one by which they are counted."""


def is_held(context: SessionContext) -> bool:
    """Return True if somebody outside holds a loaded session; that its own handlers close over it does not count."""
    return sys.getrefcount(context.face) > NOBODY_ELSE + _count_own(context.handlers, context.face)


def _count_own(handlers: Handlers, face: object) -> int:
    """Count the references to the user's end of a session in what its handlers close over."""
    seen, found = set[int](), 0
    level: list[object] = [each.handler for kind in get_args(HandlerKind) for each in handlers.of(kind)]
    while level:
        following: list[object] = []
        for each in level:
            if id(each) not in seen:
                seen.add(id(each))
                following += _closed_over(each)
        found += sum(each is face for each in following)
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
