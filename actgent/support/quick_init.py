"""Frozen classes that are made often, in a third of the time."""

from typing import Any, TypeVar

import attrs

T = TypeVar("T")
_become: Any = object.__dict__["__class__"].__set__
"""Changes an object's class whatever the class says of it."""


def quick_init(frozen: type[T]) -> type[T]:
    """Let a new object of a frozen attrs class be open until it is whole; decorate the class above `@attrs.frozen`.

    The `__init__` that attrs writes for a frozen class sets each field by a call of `object.__setattr__`, which takes longer than
    all else in it. Here a new object is of an open subclass while its fields are set as those of any other, and nobody else
    has it before it is of its own. That pays from four fields on. The class has no `__attrs_post_init__`; a subclass has what attrs writes for it.
    """

    def begin(self: T) -> None:
        if type(self) is frozen:
            _become(self, opened)

    def end(self: T) -> None:
        if type(self) is opened:
            self.__class__ = frozen

    members = {
        "__slots__": (),
        "__setattr__": object.__setattr__,
        "__delattr__": object.__delattr__,
        "__attrs_pre_init__": begin,
        "__attrs_post_init__": end,
    }
    made: type[T] = type(frozen.__name__, (frozen,), members)
    opened = attrs.define(made, eq=False, repr=False)
    for name in ("__attrs_pre_init__", "__attrs_post_init__", "__init__"):
        setattr(frozen, name, opened.__dict__[name])
    frozen.__init__.__qualname__ = f"{frozen.__qualname__}.__init__"
    return frozen
