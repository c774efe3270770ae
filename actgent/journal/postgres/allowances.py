"""What model calls may take together in all processes of a cluster: one row for each declared limit, out of which it is lent.

A row is a bucket (see `actgent.llm.governor.shares`): it fills at `rate`, while what is in it and what is lent are together below
`capacity`. What is lent stands in `leases`, by its holder: units, and when they lapse by the server's clock. All is worked
out of the row itself, so that a statement which waited for another one goes on with what that one wrote.
"""

import attrs

from .ownership_table import OwnershipTable

_BEGIN = """
INSERT INTO allowances (door, kind, level, at, leases, lent, held)
VALUES (%(door)s, %(kind)s, %(capacity)s, extract(epoch FROM clock_timestamp()), '{}', 0, 0) ON CONFLICT DO NOTHING
"""
# What has lapsed kept the row from filling until then. `greatest`: nothing that is there is lost by what is lent.
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
    """What a limit lent to one of its holders."""

    lent: float
    """Units, besides those that it held before."""
    held: float
    """Of these, what it may keep."""
    wait: float
    """Seconds until what the next call lacks could be there; 0 if it was lent."""
    room: float
    """Units that the limit could be filled by."""


@attrs.frozen
class AllowanceTable:
    """The declared limits of a cluster."""

    _table: OwnershipTable

    async def lend(
        self,
        door: str,
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
        """Lend of a limit, in one statement: at least `least`, or nothing, and at most `wanted`.

        `held` is what the holder has of what was lent to it before, `charge` what it spent beyond that.

        Raises:
            JournalFailed: the database does not answer; something may be lent, and lapses.
        """
        values = {
            "door": door,
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
            await self._table.execute(_BEGIN, {"door": door, "kind": kind, "capacity": capacity})
            rows = await self._table.select(_LEND, values)
        ((lent, kept, level, room),) = rows
        lacks = least + held - kept - lent
        return Loan(
            lent=lent, held=kept, wait=max(0.0, (lacks - level) / rate) if lacks > 0 else 0.0, room=room
        )
