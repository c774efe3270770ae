"""The shared `__repr__` of attrs classes prints what attrs would print."""

import attrs
import pytest

from actgent.support.field_repr import FieldRepr


@attrs.define
class Printed:
    """A class whose `__repr__` attrs compiles."""

    name: str
    _count: int = 1
    secret: str = attrs.field(default="x", repr=False)
    size: int = attrs.field(default=3, repr=lambda size: f"{size} bytes")
    peer: object = None
    later: int = attrs.field(init=False)


@attrs.define(repr=False)
class Shared(FieldRepr):
    """The same fields."""

    name: str
    _count: int = 1
    secret: str = attrs.field(default="x", repr=False)
    size: int = attrs.field(default=3, repr=lambda size: f"{size} bytes")
    peer: object = None
    later: int = attrs.field(init=False)


@pytest.mark.parametrize("values", [{}, {"count": 2, "peer": [1]}], ids=["defaults", "given"])
def test_the_text_equals_the_generated_one(values):
    generated = repr(Printed("a", **values))
    assert generated.startswith("Printed(name='a', _count=")
    assert repr(Shared("a", **values)) == generated.replace("Printed", "Shared")


def test_an_object_that_contains_itself():
    generated, shared = Printed("a"), Shared("a")
    generated.peer, shared.peer = generated, shared
    assert repr(shared) == repr(generated).replace("Printed", "Shared")


def test_a_class_inside_a_function():
    @attrs.define(repr=False)
    class Inner(FieldRepr):
        pass

    assert repr(Inner()) == "Inner()"
