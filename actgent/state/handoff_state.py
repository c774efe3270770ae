"""Handoff of a session to another agent, stored in the session's state."""

from collections.abc import Mapping
from typing import Any

import attrs

from actgent.support.attrs_class_repr import FieldRepr

STATE_KEY = "_handoff"
"""Key of the handoff in the state. Tools with `(state, args)` cannot write keys that begin with `_`."""


@attrs.frozen(kw_only=True, repr=False)
class HandoffState(FieldRepr):
    """The last handoff of a session."""

    agent: str = ""
    """Name of the agent that answers; empty if the session's own agent answers again."""
    note: str = ""
    """Note of the agent that handed off the session, for the agent that continues."""
    number: int = 0
    """Number of the last handoff in its session, from 1; 0 before the first."""

    @property
    def child(self) -> str:
        """Last part of the id of the child session in which the other agent answers."""
        return f"handoff/{self.number}"


def handoff_in(state: Mapping[str, Any]) -> HandoffState:
    """Return the last handoff in a session's state; an empty `HandoffState` if there was none."""
    stored = state.get(STATE_KEY)
    return HandoffState(**stored) if isinstance(stored, Mapping) else HandoffState()


def handed(state: Mapping[str, Any], *, agent: str, note: str) -> tuple[str, Any]:
    """Return the state change that hands a session off to the agent `agent`. `note` is a text for that agent."""
    number = handoff_in(state).number + 1
    return STATE_KEY, attrs.asdict(HandoffState(agent=agent, note=note, number=number))


def given_back(state: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the state change that ends a handoff. After it, the session's own agent answers again."""
    return STATE_KEY, attrs.asdict(HandoffState(number=handoff_in(state).number))
