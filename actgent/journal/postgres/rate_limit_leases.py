"""Rate limits shared by all processes of a cluster: one row per limit, which leases units to its holders.

A *lease* lets a process, the holder, use some units of the limit for a limited time. A row is a token bucket (see
`actgent.llm.rate_limiting.shared_rate_limits`). The bucket refills at `rate` while its level plus the leased units are below
`capacity`. The column `leases` has units and expiry by holder, on the server's clock. All values are computed from the row, so a
statement that waited for another statement uses the values that the other statement wrote.
"""

import attrs

from .partition_ownership_table import OwnershipTable

_BEGIN = """
INSERT INTO allowances (door, kind, level, at, leases, lent, held)
VALUES (%(door)s, %(kind)s, %(capacity)s, extract(epoch FROM clock_timestamp()), '{}', 0, 0) ON CONFLICT DO NOTHING
"""
# Expired leases kept the row from refilling until they expired. `greatest`: leases never reduce the current level.
_LEND = """
UPDATE allowances AS a SET (level, at, leases, lent, held) = (
    SELECT left_.level - given.units, clock.t,
        others.leases || jsonb_build_object(%(holder)s::text, jsonb_build_array(kept.units + given.units, clock.t + %(lasts)s)),
        given.units, kept.units
    FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS t OFFSET 0) AS clock,
    LATERAL (
        SELECT coalesce(sum(units), 0) AS units, coalesce(sum(units) FILTER (WHERE until > clock.t), 0) AS live,
            greatest(a.at, max(until) FILTER (WHERE until <= clock.t)) AS since
        FROM (SELECT (value->>0)::float8 AS units, (value->>1)::float8 AS until FROM jsonb_each(a.leases)) AS known
    ) AS leased,
    LATERAL (
        SELECT greatest(a.level, least(%(capacity)s - leased.units, a.level + %(rate)s * (leased.since - a.at))) AS level
    ) AS before,
    LATERAL (
        SELECT greatest(before.level, least(
            %(capacity)s - leased.live, before.level + %(rate)s * greatest(0, clock.t - leased.since)
        )) AS level
    ) AS filled,
    LATERAL (
        SELECT coalesce(jsonb_object_agg(key, value), '{}') AS leases, coalesce(sum((value->>0)::float8), 0) AS units,
            count(*) AS holders
        FROM jsonb_each(a.leases) WHERE key <> %(holder)s AND (value->>1)::float8 > clock.t
    ) AS others,
    LATERAL (SELECT greatest(0, least(%(held)s, %(capacity)s - others.units - filled.level)) AS units) AS kept,
    LATERAL (SELECT filled.level - %(charge)s AS level, %(least)s + %(held)s - kept.units AS least) AS left_,
    LATERAL (
        SELECT CASE WHEN left_.level + 1e-6 < left_.least THEN 0 ELSE greatest(0, least(
            left_.level, greatest(left_.least, least(%(wanted)s, left_.level / (others.holders + 1)))
        )) END AS units
    ) AS given
)
WHERE door = %(door)s AND kind = %(kind)s
RETURNING lent, held, level, %(capacity)s - level - (SELECT sum((value->>0)::float8) FROM jsonb_each(leases))
"""


@attrs.frozen(kw_only=True)
class Loan:
    """Result of a request to lease units of a shared rate limit."""

    lent: float
    """Number of newly leased units."""
    held: float
    """Number of units of the previous lease that the holder may still use."""
    wait: float
    """Seconds until the units missing for the next call may be available; 0 if the request was granted."""
    room: float
    """Number of units by which the bucket is below its capacity."""


@attrs.frozen
class RateLimitLeaseTable:
    """Shared rate limits of a cluster in the database, and the leases of their units."""

    _table: OwnershipTable

    async def lend(
        self,
        name: str,
        kind: str,
        *,
        rate: float,
        capacity: float,
        holder: str,
        held: float,
        charge: float,
        least: float,
        wanted: float,
        lasts: float,
    ) -> Loan:
        """Lease units of a shared rate limit with one SQL statement: none, or at least `least` and at most `wanted` units.

        Args:
            name: Name of the limit.
            kind: Kind of the units, such as requests or tokens.
            rate: Units per second by which the bucket refills.
            capacity: Maximum units in the bucket.
            holder: Name of the process that leases.
            held: Unused units of the holder's previous lease.
            charge: Units that the holder used in addition to its previous lease.
            least: Minimum units of the new lease.
            wanted: Maximum units of the new lease.
            lasts: Duration of the lease in seconds.

        Raises:
            JournalFailed: The database does not answer. Units that were leased nevertheless expire.
        """
        values = {
            "door": name,
            "kind": kind,
            "rate": rate,
            "capacity": capacity,
            "holder": holder,
            "held": held,
            "charge": charge,
            "least": least,
            "wanted": wanted,
            "lasts": lasts,
        }
        rows = await self._table.select(_LEND, values)
        if not rows:
            await self._table.execute(_BEGIN, {"door": name, "kind": kind, "capacity": capacity})
            rows = await self._table.select(_LEND, values)
        ((lent, kept, level, room),) = rows
        lacks = least + held - kept - lent
        return Loan(
            lent=lent, held=kept, wait=max(0.0, (lacks - level) / rate) if lacks > 0 else 0.0, room=room
        )
