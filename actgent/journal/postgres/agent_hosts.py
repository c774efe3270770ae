"""Assignment of agents to the pools of a cluster.

Sessions are found by agent and id, regardless of the pool that created them, and each pool has its own epochs. So
only the nodes of one pool may run the sessions of an agent.
"""

from collections.abc import Collection, Mapping

import attrs

from .ownership_table import OwnershipTable

_CLAIM = "INSERT INTO hosts SELECT agent, %(pool)s FROM unnest(%(agents)s::text[]) AS agent ORDER BY agent ON CONFLICT DO NOTHING"
_OTHERS = "SELECT agent, pool FROM hosts WHERE agent = ANY(%(agents)s) AND pool <> %(pool)s ORDER BY agent"


@attrs.frozen
class HostTable:
    """Table of the agents in a database, each with the pool that hosts it."""

    _table: OwnershipTable
    pool: str
    """Name of the pool of this process."""

    async def claim(self, agents: Collection[str]) -> Mapping[str, str]:
        """Register agents as hosted by this pool permanently.

        Return the agents that another pool hosts, with that pool.

        Raises:
            JournalFailed: The database does not answer.
        """
        values = {"agents": list(agents), "pool": self.pool}
        await self._table.execute(_CLAIM, values)
        return dict(await self._table.select(_OTHERS, values))
