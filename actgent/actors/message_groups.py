"""Message groups: which messages of an actor run one after the other, and which run concurrently.

An actor with `concurrency=1` handles one message at a time, so all of its messages are one group. With a larger
`concurrency`, messages of one group are handled in order and messages of different groups concurrently. A message that waits
for another actor or an agent releases its concurrency slot for that time. So a circle of actors makes progress as long as
each has a free group; only a group that waits for itself is a deadlock. An actor that handles one message at a time releases
no slot.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.support.attrs_class_repr import FieldRepr

from .inbox import PriorityInbox
from .wait_graph import WaitNode

LineOf = Callable[[Any], str]
"""Function that returns the group name of a payload."""
_ONLY_GROUP = ""
"""Name of the group of all messages, for an actor that handles one message at a time."""


@attrs.define(eq=False, repr=False)
class MessageGroups(FieldRepr):
    """Message groups of one actor, each with its node in the wait graph."""

    name: str
    """Name of the actor."""
    concurrency: int = 1
    """Maximum number of messages that run concurrently."""
    line_of: LineOf | None = None
    """Function that returns the group of a payload; None puts each message into a group alone."""
    actor_node: WaitNode = attrs.field(init=False)
    """Node of the whole actor in the wait-for graph, which detects deadlocks."""
    _nodes: dict[str, WaitNode] = attrs.field(init=False, factory=dict)
    """Nodes in the graph of waits, by message group. Only groups that wait, or that another task waits for, have a node."""
    _serial: "itertools.count[int]" = attrs.field(init=False, factory=itertools.count)

    def __attrs_post_init__(self) -> None:
        self.actor_node = WaitNode(self.name)
        concurrency: object = self.concurrency
        if not isinstance(concurrency, int) or concurrency < 1:
            raise ConfigurationError(f"actor {self.name!r}: concurrency={concurrency!r} must be at least 1")
        if not (self.line_of is None or callable(self.line_of)):
            raise ConfigurationError(
                f"actor {self.name!r}: line_of= must be a function of the payload, not {self.line_of!r:.200}"
            )

    @property
    def are_concurrent(self) -> bool:
        """False if the actor handles one message at a time."""
        return self.concurrency > 1

    def group_of(self, payload: Any) -> str:
        """Return the name of the group whose messages are processed in order with a payload.

        Raises:
            ConfigurationError: `line_of` returned a value that is not a string.
        """
        if self.concurrency == 1:
            return _ONLY_GROUP
        if self.line_of is None:
            return str(next(self._serial))
        group = self.line_of(payload)
        if not isinstance(group, str):
            raise ConfigurationError(
                f"actor {self.name!r}: line_of= must return a string, the name of the message's group, not {group!r:.200}"
            )
        return group

    def node(self, group: str, inbox: PriorityInbox[Any]) -> WaitNode:
        """Return the wait-graph node for the messages of a group, for deadlock detection.

        An actor that handles one message at a time has one node for all groups. Otherwise each group has a
        node. While the group waits, its node lends the concurrency slot to other messages of `inbox`.
        """
        if self.concurrency == 1:
            return self.actor_node
        node = self._nodes.get(group)
        if node is None:
            node = WaitNode(f"{self.name}/{group}", on_wait=partial(_lend_slot, inbox, group))
            self._nodes[group] = node
        return node

    def forget(self, group: str) -> None:
        """Drop the node of a group in the graph of waits if the group neither waits nor is awaited."""
        node = self._nodes.get(group)
        if node is not None and node.is_alone:
            del self._nodes[group]


def _lend_slot(inbox: PriorityInbox[Any], group: str, begins: bool) -> None:  # noqa: FBT001 - see WaitNode.on_wait
    if begins:
        inbox.lend(group)
    else:
        inbox.reclaim(group)
