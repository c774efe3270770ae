"""Mode changes of a session: stored in its state, and compared with the notices already in the conversation."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.state.session_state import Pair
from actgent.support.attrs_class_repr import FieldRepr

STATE_KEY = "_mode"
"""Key of the mode and the mark of its last change in the state, as one string, because strings are read without a copy.

Tools with `(state, args)` cannot write keys that begin with `_`.
"""
CHANGES_KEY = "_mode_changes"
"""Key of the list of mode changes in the state."""
MAX_CHANGES = 100
"""Maximum number of mode changes that the state keeps. The conversation contains the notices of all changes."""
START = "0:"
"""Mark of a session without a mode change. A mark is a text that identifies a mode change in its session."""


@attrs.frozen(kw_only=True, repr=False)
class ModeChange(FieldRepr):
    """A switch of a session from one mode to another; `previous` equals `current` if the session already had the mode."""

    previous: str
    """Name of the previous mode."""
    current: str
    """Name of the new mode."""
    by: str
    """Actor that requested the switch: `user`, `agent`, `admin` or `system`."""
    reason: str = ""
    """Reason for the switch as text; may be empty."""
    number: int = 0
    """Number of the change in its session, from 1; 0 if the session already had the mode."""
    key: str = ""
    """Idempotency key of the switch, e.g. of a tool call, so that a repetition switches only once; empty without one."""
    at: float = 0.0
    """Time of the change in Unix seconds."""

    @property
    def mark(self) -> str:
        """Text that identifies the mode change in its session.

        If the state is rolled back, a later change with the same number has another mark.
        """
        return f"{self.number}:{self.key}"


def stored_name(value: object) -> str:
    """Return the mode name in the value that the state stores under `STATE_KEY`; empty if it contains none."""
    return value.partition(" ")[0] if isinstance(value, str) else ""


def state_changes(state: Mapping[str, Any], *, change: ModeChange) -> list[Pair]:
    """Return the changes of the session's state that record a mode change."""
    changes = [*state.get(CHANGES_KEY, ()), attrs.asdict(change)][-MAX_CHANGES:]
    return [(STATE_KEY, f"{change.current} {change.mark}"), (CHANGES_KEY, changes)]


def mark_of(value: object) -> str:
    """Return the mark (identifier) of the last mode change, from the value that the state stores under `STATE_KEY`."""
    return (value.partition(" ")[2] if isinstance(value, str) else "") or START


def changes_in(state: Mapping[str, Any]) -> tuple[ModeChange, ...]:
    """Return the last mode changes of a session from its state, oldest first."""
    return tuple(ModeChange(**kept) for kept in state.get(CHANGES_KEY, ()))


def unannounced(changes: Sequence[ModeChange], last_mark: str | None, initial: str) -> Sequence[ModeChange]:
    """Return the mode changes that no notice in the conversation describes yet.

    `last_mark` is the mark of the change that the last notice describes; None without a notice. If this change was rolled back,
    return the newest remaining change, so that a notice describes it again.
    """
    if last_mark is None:
        return changes
    for index, change in enumerate(changes):
        if change.mark == last_mark:
            return changes[index + 1 :]
    number = int(last_mark.partition(":")[0])
    if later := [change for change in changes if change.number > number]:
        return later
    return changes[-1:] or [ModeChange(previous=initial, current=initial, by="system")]
