"""The store: a session's state, which only actions change.

An action is a function of the state that returns `(key, value)`, several such pairs, or None. It
gets the state as it is at that moment and changes nothing itself, so a failing action leaves
everything as it was, and every former state stays good.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from actgent.errors import UsageError

Action = Callable[[Mapping[str, Any]], Any]


class Store(Mapping[str, Any]):
    """A read-only mapping with `dispatch`."""

    __slots__ = ("_on_change", "_state")

    def __init__(
        self,
        initial: Mapping[str, Any] | None = None,
        *,
        on_change: Callable[[Mapping[str, Any]], object] | None = None,
    ) -> None:
        """`on_change` is called with the changes before they count; what it raises undoes them."""
        self._state: dict[str, Any] = dict(initial or {})
        self._on_change = on_change

    def __getitem__(self, key: str) -> Any:
        return self._state[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __repr__(self) -> str:
        return f"Store({self._state!r})"

    @property
    def snapshot(self) -> Mapping[str, Any]:
        """The state of this moment, which no later dispatch changes."""
        return MappingProxyType(self._state)

    def dispatch(self, action: Action) -> None:
        """Run an action and take its changes over, all or none.

        Raises:
            UsageError: the action returned something else than pairs; the state is unchanged.
        """
        changes = _to_pairs(action(self.snapshot))
        if not changes:
            return
        if self._on_change is not None:
            self._on_change(changes)
        self._state = {**self._state, **changes}

    def restore(self, changes: Mapping[str, Any]) -> None:
        """Take over changes that were recorded before."""
        self._state = {**self._state, **changes}


def _to_pairs(returned: object) -> dict[str, Any]:
    match returned:
        case None:
            return {}
        case (str(key), value):
            return {key: value}
        case list() | tuple() if all(_is_pair(item) for item in returned):
            return dict(returned)
    raise UsageError(f"an action returns (key, value), a list of them, or None, not {returned!r}")


def _is_pair(item: object) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)  # noqa: PLR2004 - a pair is two
