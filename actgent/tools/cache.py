"""The results that a tool keeps by its arguments."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import attrs


def canonical(arguments: Mapping[str, Any]) -> str:
    """Arguments as text: the same for equal arguments in any order, another for 1, 1.0 and true."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"))


@attrs.define
class ResultCache:
    """At most `capacity` texts; the least recently used one makes room."""

    capacity: int
    _texts: OrderedDict[str, str] = attrs.field(factory=OrderedDict, init=False, repr=False)

    def get(self, key: str) -> str | None:
        """The text kept for a key, or None."""
        if key not in self._texts:
            return None
        self._texts.move_to_end(key)
        return self._texts[key]

    def put(self, key: str, text: str) -> None:
        """Keep a text."""
        self._texts[key] = text
        self._texts.move_to_end(key)
        if len(self._texts) > self.capacity:
            self._texts.popitem(last=False)

    def __len__(self) -> int:
        return len(self._texts)
