"""Session state rebuilt from recorded changes.

Copying the state for each change would copy a list that grows by ten thousand values ten thousand times. Therefore values
that were created here and are not shared are changed in place; all others are copied once.
"""

from collections.abc import Mapping
from typing import Any

from actgent.journal.record_types import StateChangeRecord

from .reducers import GROW, REDUCERS


class StateBuilder:
    """A mutable copy of a state to which recorded changes are applied."""

    __slots__ = ("_own", "values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        """Current values; use `share` to get values that later changes do not affect."""
        self._own: set[str] = set()
        """Keys whose lists and mappings this builder created. Only these may be changed in place."""

    def share(self) -> Mapping[str, Any]:
        """Return a copy of the current values, which later changes do not affect."""
        self._own.clear()
        return dict(self.values)

    def apply(self, changed: StateChangeRecord) -> None:
        """Apply a recorded change: values replace the old ones, or are combined with them by the recorded reducers."""
        for key, value in changed.changes.items():
            name = changed.reduced.get(key, "")
            if name in GROW and key in self._own:
                GROW[name](self.values[key], value)
                continue
            self.values[key] = REDUCERS[name](self.values.get(key), value) if name else value
            if name in GROW:
                self._own.add(key)
            else:
                self._own.discard(key)
