"""Reducers: functions that combine the new value of a state key with the old one, so that parallel tools lose no update.

A reducer is a pure function `(old, new)` that returns the value to store; `old` is None if the key has no value. For the reducers of
this module, the journal stores the name of the reducer and the new value, so an appended element is stored once. For custom
reducers, the journal stores the result.
"""

from collections.abc import Callable, Mapping
from typing import Any

from actgent.errors import UsageError

Reducer = Callable[[Any, Any], Any]


def append(old: Any, new: Any) -> list[Any]:
    """Return the old list with the new value appended. None as the old value is an empty list.

    Raises:
        UsageError: The old value is not a list.
    """
    return [*_list("append", old), new]


def extend(old: Any, new: Any) -> list[Any]:
    """Return the old list with all values of the new list appended. None is an empty list.

    Raises:
        UsageError: One of the values is not a list.
    """
    return [*_list("extend", old), *_list("extend", new)]


def merge(old: Any, new: Any) -> dict[Any, Any]:
    """Return the old mapping updated with the new one, not recursively. None is an empty mapping.

    Raises:
        UsageError: One of the values is not a mapping.
    """
    return {**_mapping(old), **_mapping(new)}


def add(old: Any, new: Any) -> Any:
    """Return the sum of the old and the new value; the new value if the old one is None."""
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
    raise UsageError(f"the reducer `merge` needs mappings, not a value of type {type(value).__name__}")


# Journals store these names, so neither the names nor the behaviour may change.
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
"""In-place variants of the reducers by name, for a list or mapping that the reducer itself created."""


def reducer_name(reducer: Reducer) -> str:
    """Return the name of a reducer in journals; empty for a custom reducer."""
    return next((name for name, known in REDUCERS.items() if known is reducer), "")
