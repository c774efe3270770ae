"""A state as recorded changes make it, one after the other.

Copying the state for each change would make a list that grew by ten thousand values be copied ten thousand
times. So what was made here, and nobody else has, is changed in place; all else is copied once.
"""

from collections.abc import Mapping
from typing import Any

from actgent.journal.records import Changed

from .reducers import GROW, REDUCERS


class StateBuilder:
    """A state that grows by `apply`, begun as a copy of another one."""

    __slots__ = ("_own", "values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        """The state by now; to keep it, `share` it."""
        self._own: set[str] = set()
        """The keys whose lists and mappings were made here."""

    def share(self) -> Mapping[str, Any]:
        """The state by now, which no later change gets at."""
        self._own.clear()
        return dict(self.values)

    def apply(self, changed: Changed) -> None:
        """Do a recorded change to it."""
        for key, given in changed.changes.items():
            name = changed.reduced.get(key, "")
            if name in GROW and key in self._own:
                GROW[name](self.values[key], given)
                continue
            self.values[key] = REDUCERS[name](self.values.get(key), given) if name else given
            if name in GROW:
                self._own.add(key)
            else:
                self._own.discard(key)
