"""Changes of a session's mode: plain data in its state, and which of them its conversation was not told of."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.state.store import Pair

STATE_KEY = "_mode"
"""Where the state holds the mode and the mark of its last change, as one text, which is read without a copy.

Tools with `(state, args)` cannot write keys that begin with `_`."""
CHANGES_KEY = "_mode_changes"
KEPT_CHANGES = 100
"""How many changes the state keeps. The record holds what the model was told of all."""
START = "0:"
"""The mark of the beginning, before any change."""


@attrs.frozen(kw_only=True)
class ModeChange:
    """A switch that happened; `previous` and `current` are the same where there was nothing to do."""

    previous: str
    """The name of the mode before."""
    current: str
    """The name of the mode after."""
    by: str
    """Who wanted it: `user`, `agent`, `admin` or `system`."""
    reason: str = ""
    """Why, in words; may be empty."""
    number: int = 0
    """From 1 in each session; 0 where there was nothing to do."""
    key: str = ""
    """What it was made for, e.g. a call."""
    at: float = 0.0
    """Unix time in seconds."""

    @property
    def mark(self) -> str:
        """Tells it from all other changes of its session, those that were rolled back too."""
        return f"{self.number}:{self.key}"


def stored_name(kept: object) -> str:
    """The mode that a state's value names; empty where it names none."""
    return kept.partition(" ")[0] if isinstance(kept, str) else ""


def entered(state: Mapping[str, Any], *, change: ModeChange) -> list[Pair]:
    """The change of state that a change of mode is."""
    changes = [*state.get(CHANGES_KEY, ()), attrs.asdict(change)][-KEPT_CHANGES:]
    return [(STATE_KEY, f"{change.current} {change.mark}"), (CHANGES_KEY, changes)]


def mark_of(kept: object) -> str:
    """The mark of the change that led to a state's value."""
    return (kept.partition(" ")[2] if isinstance(kept, str) else "") or START


def changes_in(state: Mapping[str, Any]) -> tuple[ModeChange, ...]:
    """The last changes of a session's mode, oldest first."""
    return tuple(ModeChange(**kept) for kept in state.get(CHANGES_KEY, ()))


def untold(changes: Sequence[ModeChange], told: str | None, initial: str) -> Sequence[ModeChange]:
    """The changes that the record does not tell of yet, by the mark of the last one that it does.

    Where the state was rolled back behind what was told, the newest of those that are left is told again.
    """
    if told is None:
        return changes
    for place, change in enumerate(changes):
        if change.mark == told:
            return changes[place + 1 :]
    number = int(told.partition(":")[0])
    if later := [change for change in changes if change.number > number]:
        return later
    return changes[-1:] or [ModeChange(previous=initial, current=initial, by="system")]
