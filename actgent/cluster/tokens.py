"""The tokens of partitions: each is a message that lies in the partition's queue, so that the broker hands the queue over.

The owner holds it unacknowledged, and with its channel it goes back. Whoever is the first to wait at a queue puts one there,
so that there is one wherever somebody waits, and the next owner gets it though no request comes. A token is a trigger only:
whose the partition is, the epoch in the database says. So one that is missing, or one too many, costs nothing but time.
"""

from collections.abc import Callable, Iterable

import attrs
import trio

from .amqp import Delivery
from .link import BrokerLink
from .wire import PERSISTENT, TOKEN, PartitionToken, encode_message, properties

TOKEN_AGE = 240.0
"""Seconds after which a token is put anew: a broker takes a message back that is held for long."""
MISSING = 5.0
"""Seconds without a token after which the owner of a partition puts another one, or who waits for one that nobody serves."""


@attrs.define(eq=False)
class Tokens:
    """The tokens that a node holds."""

    link: BrokerLink
    name_of: Callable[[int], str]
    """The name of a partition's queue."""
    _held: dict[int, tuple[Delivery, float]] = attrs.field(factory=dict)
    """With the time since when."""
    _without: dict[int, float] = attrs.field(factory=dict)
    """Since when a partition that is looked at has no token here."""

    def hold(self, partition: int, delivery: Delivery) -> None:
        """A token came: one is enough."""
        known = self._held.get(partition)
        if known is not None:
            known[0].acknowledge()
        self._held[partition] = delivery, trio.current_time()

    def forget(self, partition: int) -> None:
        """The partition is waited for no more."""
        self._held.pop(partition, None)
        self._without.pop(partition, None)

    def forget_all(self) -> None:
        """The connection is lost, and with it what was held."""
        self._held.clear()
        self._without.clear()

    async def put(self, partition: int) -> None:
        """Put a token into a partition's queue; raises as `BrokerLink.publish` does."""
        about = properties(priority=TOKEN, delivery_mode=PERSISTENT)
        await self.link.publish(self.name_of(partition), encode_message(PartitionToken()), about)

    async def look(self, partitions: Iterable[int]) -> None:
        """Put tokens of these partitions where one is missing, or old; raises as `put`."""
        now, looked_at = trio.current_time(), tuple(partitions)
        self._without = {each: self._without[each] for each in looked_at if each in self._without}
        for partition in looked_at:
            if self._is_wanted(partition, now):
                await self.put(partition)

    def _is_wanted(self, partition: int, now: float) -> bool:
        held = self._held.get(partition)
        if held is not None:
            self._without.pop(partition, None)
            is_wanted = now - held[1] > TOKEN_AGE
            self._held[partition] = held[0], now if is_wanted else held[1]
            return is_wanted
        since = self._without.setdefault(partition, now)
        is_wanted = now - since > MISSING
        self._without[partition] = now if is_wanted else since
        return is_wanted
