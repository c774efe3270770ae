"""How an actor takes its messages: one at a time, or several lines of its inbox side by side.

Messages of one line are dealt with one after the other, those of different lines side by side, as many as there are
places. A message that waits for another actor or an agent lends its place meanwhile, so that a circle of actors with
free lines gets on; only a line that waits for itself is a circle without an end. An actor that takes one message at a
time has one line, and lends nothing.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from actgent.errors import ConfigurationError

from .inbox import PriorityInbox
from .wait_graph import WaitNode

LineOf = Callable[[Any], str]
"""The line of a payload."""
_ONLY = ""
"""The line of all messages of an actor that takes one at a time."""


@attrs.define(eq=False)
class MessageLines:
    """The lines of one actor, and its waits."""

    name: str
    """The actor's."""
    concurrency: int = 1
    """How many messages are dealt with side by side."""
    line_of: LineOf | None = None
    """None lets each message be a line of its own."""
    own: WaitNode = attrs.field(init=False)
    """The actor as a whole, as far as others wait for it, and it for others."""
    _nodes: dict[str, WaitNode] = attrs.field(init=False, factory=dict)
    """Of lines that wait or are waited for."""
    _serial: "itertools.count[int]" = attrs.field(init=False, factory=itertools.count)

    def __attrs_post_init__(self) -> None:
        self.own = WaitNode(self.name)
        given: object = self.concurrency
        if not isinstance(given, int) or given < 1:
            raise ConfigurationError(f"actor {self.name!r}: concurrency={given!r}: at least 1")
        if not (self.line_of is None or callable(self.line_of)):
            raise ConfigurationError(
                f"actor {self.name!r}: line_of= takes a function of the payload, not {self.line_of!r:.200}"
            )

    @property
    def are_side_by_side(self) -> bool:
        """False if the actor takes one message at a time."""
        return self.concurrency > 1

    def of(self, payload: Any) -> str:
        """Return the line of a payload.

        Raises:
            ConfigurationError: `line_of` returned no text.
        """
        if self.concurrency == 1:
            return _ONLY
        if self.line_of is None:
            return str(next(self._serial))
        line = self.line_of(payload)
        if not isinstance(line, str):
            raise ConfigurationError(f"actor {self.name!r}: line_of= returns a text, not {line!r:.200}")
        return line

    def node(self, line: str, inbox: PriorityInbox[Any]) -> WaitNode:
        """Return a line as far as others wait for it, and it for others; while it waits, its place is lent."""
        if self.concurrency == 1:
            return self.own
        node = self._nodes.get(line)
        if node is None:
            node = WaitNode(f"{self.name}/{line}", on_wait=partial(_lend, inbox, line))
            self._nodes[line] = node
        return node

    def forget(self, line: str) -> None:
        """Drop what is known of a line that has nothing to do with waits."""
        node = self._nodes.get(line)
        if node is not None and node.is_alone:
            del self._nodes[line]


def _lend(inbox: PriorityInbox[Any], line: str, begins: bool) -> None:  # noqa: FBT001 - see WaitNode.on_wait
    if begins:
        inbox.lend(line)
    else:
        inbox.reclaim(line)
