"""How a value that is given for a key meets the one that is there, so that parallel tools lose no update.

A reducer is a pure function `(old, new)`; `old` is None where there is nothing yet. Those of this page
are journaled by their names, with what was given: a list that grows by one costs one. Any other reducer
is journaled with what it made.
"""

from collections.abc import Callable, Mapping
from typing import Any

from actgent.errors import UsageError

Reducer = Callable[[Any, Any], Any]


def append(old: Any, new: Any) -> list[Any]:
    """The list with one more value at its end."""
    return [*_list("append", old), new]


def extend(old: Any, new: Any) -> list[Any]:
    """The list with more values at its end."""
    return [*_list("extend", old), *_list("extend", new)]


def merge(old: Any, new: Any) -> dict[Any, Any]:
    """The mapping with the keys of another one, whose values win."""
    return {**_mapping(old), **_mapping(new)}


def add(old: Any, new: Any) -> Any:
    """The sum, e.g. of a count."""
    return new if old is None else old + new


def _list(name: str, value: Any) -> list[Any] | tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        return value
    raise UsageError(f"the reducer {name} needs a list, not a value of type {type(value).__name__}")


def _mapping(value: Any) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    raise UsageError(f"the reducer merge needs mappings, not a value of type {type(value).__name__}")


# Journals hold these names, so they are for ever, and so is what each of them does.
REDUCERS: Mapping[str, Reducer] = {"append": append, "extend": extend, "merge": merge, "add": add}


def _grow_by_one(old: list[Any], new: Any) -> None:
    old.append(new)


def _grow_by_all(old: list[Any], new: Any) -> None:
    old.extend(_list("extend", new))


def _grow_by_keys(old: dict[Any, Any], new: Any) -> None:
    old.update(_mapping(new))


GROW: Mapping[str, Callable[[Any, Any], None]] = {
    "append": _grow_by_one,
    "extend": _grow_by_all,
    "merge": _grow_by_keys,
}
"""The same in place, for a list or mapping that the reducer of that name has made."""


def reducer_name(reducer: Reducer) -> str:
    """The name that journals know a reducer by; empty for one of a developer's own."""
    return next((name for name, known in REDUCERS.items() if known is reducer), "")
