"""The nodes of a cluster, as one of them knows them: those whose beacons it has heard lately."""

from collections.abc import Mapping

import attrs

from .wire import Beacon

EVERY = 0.5
"""Seconds between two beacons of a node."""
GONE = 2.0
"""Seconds without a beacon after which a node counts as gone."""


AFTERWARDS = EVERY / 2
"""Seconds in which what a node had said before it died has come."""
LET_GO = 8.0
"""Seconds in which a broker gives to others what a node had that says nothing any more."""
NEW = 4.0
"""Seconds in which a new node has found out whose partitions nobody gave back."""


@attrs.define(eq=False)
class Members:
    """Who is there, and who has died."""

    _heard: dict[str, tuple[float, Beacon]] = attrs.field(factory=dict)
    _last: dict[str, float] = attrs.field(factory=dict)
    """When each node spoke last that has not said that it leaves, since there is this connection."""
    _since: float | None = None
    """Since when there is this connection; None: there was none."""
    _new_until: float = float("-inf")
    _died_at: float = float("-inf")
    """When the node spoke last that was found to have died last, since there is this connection."""

    def begin(self, now: float) -> None:
        """There is a new connection; what others said while there was none is not known."""
        if self._since is None:
            self._new_until = now + NEW
        self._since, self._died_at = now, float("-inf")
        self._last.clear()

    def hear(self, beacon: Beacon, now: float) -> None:
        """A beacon came; `now` by trio's clock."""
        self._heard[beacon.node] = (now, beacon)
        if beacon.is_leaving:
            self._last.pop(beacon.node, None)
        else:
            self._last[beacon.node] = now

    def forget(self, node: str) -> None:
        """A node has gone that has not given back what it had; its next beacon would bring it back."""
        if self._heard.pop(node, None) is None and self._since is not None:
            self._last.setdefault(node, self._since)

    def has_died(self, at: float, now: float) -> bool | None:
        """Tell whether a node has died before this time, not long ago; None: that is not known yet.

        One that has lost its broker for a moment speaks again, and one that leaves has said so.
        """
        for node, last in list(self._last.items()):
            if now - last >= GONE:
                self._died_at = max(self._died_at, self._last.pop(node))
        if self._died_at >= at - LET_GO:
            return True
        is_open = now < self._new_until or any(last < at + AFTERWARDS for last in self._last.values())
        return None if is_open else False

    def known(self, now: float) -> Mapping[str, Beacon]:
        """The last beacons of the nodes that are there, by their names."""
        self._heard = {node: row for node, row in self._heard.items() if now - row[0] < GONE}
        return {node: beacon for node, (_, beacon) in self._heard.items()}

    def staying(self, now: float) -> set[str]:
        """The nodes that are to have partitions."""
        return {node for node, beacon in self.known(now).items() if not beacon.is_leaving}
