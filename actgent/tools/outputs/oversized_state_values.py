"""Large values of the session state, moved to stored results and replaced by references.

Keeps the state of goal agents below its size limit. `read_result` reads the moved values. Functions over the state
receive the original values: `StateCopy` loads them on first access.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from .oversized_results import load_moved_text, move_to_results

MIN_OFFLOADED_CHARACTERS = 1_000
"""Minimum size of a value that is moved out of the state, in characters of JSON."""
MAX_OFFLOADED_CHARACTERS = 4_000_000
"""Maximum number of characters that a session moves out of its state. Later values stay in the state."""
_REFERENCE_KEY = "moved_to_result"
_PREVIEW_CHARACTERS = 200
_NO_DEFAULTS: Mapping[str, Any] = {}


def offload_large_values(state: Any, call_id: str, bound: int) -> None:
    """Move the largest values out of a session's state until the rest has at most `bound` characters of JSON.

    Each moved value is replaced by a reference, by which `read_result` reads it. Small values stay.

    `call_id` is the id of the call that changed the state; ids of the moved values begin with it.
    """
    sizes = {key: len(json.dumps(state[key])) for key in state if not key.startswith("_")}
    total = sum(sizes.values())
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        if total <= bound or sizes[key] < MIN_OFFLOADED_CHARACTERS:
            return
        if is_offloaded(state[key]) or state.has_reducer(key):
            continue
        text = json.dumps(state[key])
        name = f"{call_id}/{key}"
        if not move_to_results(state, name, text, session_limit=MAX_OFFLOADED_CHARACTERS):
            return
        reference = {_REFERENCE_KEY: name, "characters": len(text), "beginning": text[:_PREVIEW_CHARACTERS]}
        state.dispatch([(key, reference)], once=f"{name}/moved")
        total -= sizes[key]


def is_offloaded(value: Any) -> bool:
    """Return True if a value is a reference with which `offload_large_values` replaced a value."""
    return isinstance(value, dict) and _REFERENCE_KEY in value


def copy_state(state: Mapping[str, Any], defaults: Mapping[str, Any] = _NO_DEFAULTS) -> "StateCopy":
    """Return a deep copy of a session state without the framework's keys.

    `defaults` has the values of keys that the state lacks.
    """
    store = getattr(state, "snapshot", state)
    values = {key: copy.deepcopy(store[key]) for key in store if not key.startswith("_")}
    return StateCopy({**defaults, **values}, store)


class StateCopy(dict[str, Any]):
    """Copy of a session state that functions get as `state`. It loads a moved value on first access."""

    def __init__(self, values: Mapping[str, Any], store: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._store = store

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if not is_offloaded(value):
            return value
        text = load_moved_text(self._store, value[_REFERENCE_KEY])
        if text is None:
            return value
        self[key] = whole = json.loads(text)
        return whole

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # so that `dict(state)` calls `__getitem__`, which loads moved values

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def load_all(self) -> dict[str, Any]:
        """Return the copied state as a plain dict, with all moved values loaded."""
        return dict(self.items())
