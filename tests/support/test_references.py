"""Whether anybody else holds an object."""

from functools import partial

import pytest

from actgent.control.references import is_held


class Value:
    """What is held."""

    def hear(self):
        return self


class Holder:
    """Holds it by one attribute."""

    def __init__(self):
        self.value = Value()


def none(_):
    return []


def closures(value):
    """Two of one function share a cell."""
    return [lambda: value, lambda: (value, 1)]


def parts(value):
    return [partial(print, value, again=value), partial(partial(print, value), 1)]


def defaults(value):
    return [lambda known=value: known]


def methods(value):
    return [value.hear]


def nested(value):
    def inner():
        return value

    return [lambda: inner, partial(inner)]


def unset():
    """A function whose cell is empty."""

    def known():
        return later

    if not known:
        later = 1
    return known


def held(holder, functions):
    """What an assertion looks at is held by it meanwhile."""
    return is_held(holder.value, functions)


@pytest.mark.parametrize("make", [none, closures, parts, defaults, methods, nested])
def test_what_functions_close_over_counts_for_nobody(make):
    """Each reference of theirs once; with any other one it is held."""
    holder = Holder()
    made = make(holder.value)
    assert not held(holder, [*made, unset(), print])
    assert held(holder, []) == bool(made)
    other = holder.value
    assert held(holder, made)
    del other
    assert not held(holder, made)


def test_what_an_object_holds_that_a_function_knows_is_held():
    """Nobody knows who else has that object."""
    holder, others = Holder(), []
    others.append(holder.value)
    assert held(holder, [lambda: others])
