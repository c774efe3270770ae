"""The nodes of a cluster, as one of them knows them: those whose beacons it has heard lately."""

from collections.abc import Mapping

import attrs

from .wire import Beacon

EVERY = 0.5
"""Seconds between two beacons of a node."""
GONE = 2.0
"""Seconds without a beacon after which a node counts as gone."""


@attrs.define(eq=False)
class Members:
    """Who is there."""

    _heard: dict[str, tuple[float, Beacon]] = attrs.field(factory=dict)

    def hear(self, beacon: Beacon, now: float) -> None:
        """A beacon came; `now` by trio's clock."""
        self._heard[beacon.node] = (now, beacon)

    def forget(self, node: str) -> None:
        """A node has gone; its next beacon would bring it back."""
        self._heard.pop(node, None)

    def known(self, now: float) -> Mapping[str, Beacon]:
        """The last beacons of the nodes that are there, by their names."""
        self._heard = {node: row for node, row in self._heard.items() if now - row[0] < GONE}
        return {node: beacon for node, (_, beacon) in self._heard.items()}

    def staying(self, now: float) -> set[str]:
        """The nodes that are to have partitions."""
        return {node for node, beacon in self.known(now).items() if not beacon.is_leaving}
