"""Which pool of a cluster hosts an agent.

Its sessions are found by its name and their ids, whichever pool has made them, and each pool has epochs of its own: so the
nodes of one pool alone go on with them.
"""

from collections.abc import Collection, Mapping

import attrs

from .ownership_table import OwnershipTable

_CLAIM = "INSERT INTO hosts SELECT agent, %(pool)s FROM unnest(%(agents)s::text[]) AS agent ORDER BY agent ON CONFLICT DO NOTHING"
_OTHERS = "SELECT agent, pool FROM hosts WHERE agent = ANY(%(agents)s) AND pool <> %(pool)s ORDER BY agent"


@attrs.frozen
class HostTable:
    """The agents of a database, and their pools."""

    _table: OwnershipTable
    pool: str
    """Our own."""

    async def claim(self, agents: Collection[str]) -> Mapping[str, str]:
        """Have agents hosted by our pool for good, unless another one hosts them; returns those, with their pools.

        Raises:
            JournalFailed: the database does not answer.
        """
        values = {"agents": list(agents), "pool": self.pool}
        await self._table.execute(_CLAIM, values)
        return dict(await self._table.select(_OTHERS, values))
