"""Who answers in a session that was handed over to another agent, as data in its state."""

from collections.abc import Mapping
from typing import Any

import attrs

STATE_KEY = "_handoff"
"""Tools with `(state, args)` cannot write keys that begin with `_`."""


@attrs.frozen(kw_only=True)
class Handover:
    """A session's last handover."""

    agent: str = ""
    """Who answers; empty: the session's own agent, again."""
    note: str = ""
    """What the first agent told the other one about it."""
    number: int = 0
    """From 1 in each session."""

    @property
    def child(self) -> str:
        """The name of the session below, in which the other agent answers."""
        return f"handoff/{self.number}"


def handover_in(state: Mapping[str, Any]) -> Handover:
    """The last handover of the session with this state."""
    kept = state.get(STATE_KEY)
    return Handover(**kept) if isinstance(kept, Mapping) else Handover()


def handed(state: Mapping[str, Any], *, agent: str, note: str) -> tuple[str, Any]:
    """The change of state that hands a session over."""
    number = handover_in(state).number + 1
    return STATE_KEY, attrs.asdict(Handover(agent=agent, note=note, number=number))


def given_back(state: Mapping[str, Any]) -> tuple[str, Any]:
    """The change of state that gives it back."""
    return STATE_KEY, attrs.asdict(Handover(number=handover_in(state).number))
