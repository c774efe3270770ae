"""Large values of a session's state: moved out of what is copied and shown, and read by a reference, whole, where they are wanted.

A state that tools of a goal have made large is cut down to its bound: the largest values are kept apart, where `read_result`
reads them, and a reference stands in their place. Functions of the state get them whole when they look at them.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from .kept import keep_text, kept_text

SMALLEST = 1_000
"""Characters of a value that is worth being moved."""
MOST = 4_000_000
"""Characters that a session keeps apart, in its whole life; what comes after that stays where it is."""
_MARK = "moved_to_result"
_SHOWN = 200
NOTHING: Mapping[str, Any] = {}


def move_large(state: Any, call_id: str, bound: int) -> None:
    """Move the largest values of a store, until the others have at most so many characters as JSON."""
    sizes = {key: len(json.dumps(state[key])) for key in state if not key.startswith("_")}
    total = sum(sizes.values())
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        if total <= bound or sizes[key] < SMALLEST:
            return
        if is_moved(state[key]) or state.has_reducer(key):
            continue
        text = json.dumps(state[key])
        name = f"{call_id}/{key}"
        if not keep_text(state, name, text, most=MOST):
            return
        reference = {_MARK: name, "characters": len(text), "beginning": text[:_SHOWN]}
        state.dispatch([(key, reference)], once=f"{name}/moved")
        total -= sizes[key]


def is_moved(value: Any) -> bool:
    """Return True for a reference to a value that was moved."""
    return isinstance(value, dict) and _MARK in value


def whole_state(state: Mapping[str, Any], beside: Mapping[str, Any] = NOTHING) -> "WholeState":
    """A copy of a state for a function, without the keys of the framework; what is beside it gives way to it."""
    store = getattr(state, "snapshot", state)
    values = {key: copy.deepcopy(store[key]) for key in store if not key.startswith("_")}
    return WholeState({**beside, **values}, store)


class WholeState(dict[str, Any]):
    """A state for functions: what was moved is read when it is looked at."""

    def __init__(self, values: Mapping[str, Any], store: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._store = store

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if not is_moved(value):
            return value
        text = kept_text(self._store, value[_MARK])
        if text is None:
            return value
        self[key] = whole = json.loads(text)
        return whole

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # so that `dict(state)` reads what it copies, too

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def whole(self) -> dict[str, Any]:
        """A plain dictionary of all of it."""
        return dict(self.items())
