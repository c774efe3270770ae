"""Counts of process deaths per session, to find sessions that crash their process.

A death counts for a session if its turn was resumed since the previous death and completed no model call since the first
counted death. A session with `SUSPECT_CRASHES` deaths is a suspect. While there are suspects, each session with a counted death is
quarantined and opened in groups that are watched for a moment. A death during that time counts for the watched group, and not
for suspects that survived before. After `DEAD_LETTER_CRASHES` deaths in a row in which a session was watched alone, its message is
dead-lettered. A death at which other nodes died too has most likely another cause, such as a lost machine. After it, only
`MAX_ALONE_CRASHES` deaths in a row lead to a dead letter.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from actgent.journal.session_list_queries import SessionKey

from .partition_ownership_table import OwnershipTable
from .session_partitioning import SLOTS, slots_of
from .sql_statements import IS_UNFINISHED

SUSPECT_CRASHES = 3
"""Number of process deaths after which a session is a suspect."""
DEAD_LETTER_CRASHES = 2
"""Number of consecutive deaths with only this session open after which its message is dead-lettered."""
MAX_ALONE_CRASHES = 4
"""Number that replaces `DEAD_LETTER_CRASHES` if other nodes died at the same time.

The number is finite, since two messages may kill two nodes repeatedly.
"""
_OF = "slot = ANY(%(slots)s) AND agent = ANY(%(agents)s)"
_THESE = "(session_id, agent) IN (SELECT * FROM unnest(%(session_ids)s::text[], %(key_agents)s::text[]))"
_FORGET = f"""
DELETE FROM suspects AS s WHERE {_OF} AND NOT EXISTS (
    SELECT FROM sessions AS h WHERE h.session_id = s.session_id AND h.agent = s.agent
    AND length(h.pending) > 0 AND NOT h.suspended)
"""  # noqa: S608 - names of our own
_NEAR = f"""
SELECT session_id, agent, records FROM suspects AS s
WHERE {_OF} AND s.crashes + s.is_open::int >= {SUSPECT_CRASHES} AND s.crashes < {SUSPECT_CRASHES}
"""  # noqa: S608 - as above
# If the dead node was watching suspects, the death does not count for the other suspects.
_COUNT = f"""
WITH forgotten AS ({_FORGET} RETURNING s.session_id, s.agent)
INSERT INTO suspects AS s (session_id, agent, slot, crashes, alone, shared, is_alone, epoch, records, is_open)
SELECT h.session_id, h.agent, h.slot, 1, 0, 0, false, t.epoch, h.records, false
FROM (SELECT * FROM sessions WHERE slot = ANY(%(died)s) AND agent = ANY(%(agents)s) AND {IS_UNFINISHED}) AS h
JOIN partitions AS t ON t.pool = %(pool)s AND t.p = h.slot * %(partitions)s::int / {SLOTS} AND t.owner = %(node)s
ON CONFLICT (session_id, agent) DO UPDATE SET
    crashes = s.crashes + (s.is_open AND (
        s.crashes < {SUSPECT_CRASHES} OR s.alone_at = ANY(%(dead)s::text[]) OR NOT EXISTS (
            SELECT FROM suspects AS a WHERE a.alone_at = ANY(%(dead)s::text[])
            AND (a.session_id, a.agent) NOT IN (SELECT session_id, agent FROM forgotten)
        )
    ))::int,
    alone = s.alone + s.is_alone::int,
    shared = s.shared + (s.is_alone AND cardinality(%(dead)s::text[]) > 1)::int, is_alone = false, is_open = false, epoch = excluded.epoch
WHERE s.epoch <> excluded.epoch
"""  # noqa: S608 - as above
# A separate statement: it sees the counts of an earlier connection of this node, which the previous statement waited for.
_SUSPECTS = f"""
SELECT session_id, agent, crashes, alone, shared FROM suspects
WHERE {_OF} AND (crashes >= {SUSPECT_CRASHES} OR EXISTS (SELECT FROM suspects WHERE {_OF} AND crashes >= {SUSPECT_CRASHES}))
"""  # noqa: S608 - as above
_MUST_BE_DEAD_LETTERED = f"alone - shared >= {DEAD_LETTER_CRASHES} OR alone >= {MAX_ALONE_CRASHES}"
_EXCUSE = f"UPDATE suspects SET crashes = {SUSPECT_CRASHES} WHERE {_OF} AND crashes > {SUSPECT_CRASHES} AND NOT ({_MUST_BE_DEAD_LETTERED})"  # noqa: S608 - as above
_CLEAR_MANY = f"DELETE FROM suspects WHERE {_THESE}"  # noqa: S608 - as above
_LEFT = f"SELECT true FROM suspects WHERE {_OF} LIMIT 1"  # noqa: S608 - as above
_OPEN = f"UPDATE suspects SET is_open = true WHERE {_THESE} AND NOT is_open"  # noqa: S608 - as above
_OURS = """
WHERE session_id = %(session_id)s AND agent = %(agent)s
AND EXISTS (SELECT FROM partitions WHERE pool = %(pool)s AND p = %(p)s AND owner = %(node)s FOR SHARE)
"""
_WATCH = f"UPDATE suspects SET is_open = true, is_alone = %(is_alone)s, alone_at = %(node)s {_OURS}"  # noqa: S608 - as above
_NOTE_SURVIVED = f"UPDATE suspects SET is_alone = false, alone_at = '', alone = 0, shared = 0 {_OURS}"  # noqa: S608 - as above
_CLEAR = f"DELETE FROM suspects {_OURS}"  # noqa: S608 - as above
_BURY = """
INSERT INTO dead (session_id, agent, message_id, reason, at, request) VALUES
(%(session_id)s, %(agent)s, %(message_id)s, %(reason)s, now(), %(request)s) ON CONFLICT DO NOTHING
"""


@attrs.frozen(kw_only=True)
class Suspect:
    """A session that may have crashed its process."""

    key: SessionKey
    crashes: int
    """Number of process deaths during a turn of the session."""
    alone: int
    """Number of consecutive deaths of processes in which this session was the only suspect that was open."""
    shared: int = 0
    """Number of the deaths counted in `alone` at which other nodes died at about the same time."""

    @property
    def must_be_dead_lettered(self) -> bool:
        """True if so many processes died while only this session was open that its message must be dead-lettered."""
        return self.alone - self.shared >= DEAD_LETTER_CRASHES or self.alone >= MAX_ALONE_CRASHES


@attrs.frozen
class SuspectTable:
    """Suspect sessions and dead-lettered messages of a cluster, in the database."""

    _table: OwnershipTable
    _partition_of: Callable[[str], int]
    """Function that returns the partition of a session id."""

    async def list_near_suspects(
        self, partitions: Iterable[int], partition_count: int, agents: Collection[str]
    ) -> Mapping[SessionKey, int]:
        """Return the sessions that become suspects if one more process dies during their turns.

        The values are the numbers of records that the sessions had at the first death. `partition_count` is the number
        of all partitions of the journal.

        Raises:
            JournalFailed: The database does not answer.
        """
        rows = await self._table.select(
            _NEAR, {"slots": slots_of(partitions, partition_count), "agents": list(agents)}
        )
        return {SessionKey(agent, session_id): records for session_id, agent, records in rows}

    async def count_deaths(
        self,
        partitions: Iterable[int],
        partition_count: int,
        agents: Collection[str],
        *,
        died: Iterable[int] = (),
        dead: Collection[str] = (),
    ) -> list[Suspect]:
        """Count the deaths of partition owners, and return the suspect sessions in the partitions.

        A death counts once per epoch, however often this method is called. Partitions that another node owns by now are
        ignored. If the message of one suspect is dead-lettered, that message explains the deaths, so the other suspects keep
        at most `SUSPECT_CRASHES` deaths. If there is a suspect, sessions with fewer deaths are returned, too.

        Args:
            partitions: Numbers of the partitions.
            partition_count: Number of all partitions of the journal.
            agents: Names of the agents that this node hosts.
            died: Numbers of the partitions whose owners died.
            dead: Names of the owners that died.

        Raises:
            JournalFailed: The database does not answer. The deaths may be counted or not.
        """
        values = {
            "slots": slots_of(partitions, partition_count),
            "agents": list(agents),
            "died": slots_of(died, partition_count),
            "partitions": partition_count,
            "dead": list(dead),
        }
        await self._table.execute(_COUNT, values)
        rows = await self._table.select(_SUSPECTS, values)
        found = [
            Suspect(key=SessionKey(agent, session_id), crashes=crashes, alone=alone, shared=shared)
            for session_id, agent, crashes, alone, shared in rows
        ]
        if not any(each.must_be_dead_lettered for each in found):
            return found
        await self._table.execute(_EXCUSE, values)
        return [
            each
            if each.must_be_dead_lettered
            else attrs.evolve(each, crashes=min(each.crashes, SUSPECT_CRASHES))
            for each in found
        ]

    async def remove_ended(self, slots: Sequence[int], agents: Collection[str]) -> bool:
        """Remove the suspects in `slots` whose turn has ended. Return True if other suspects remain."""
        values = {"slots": list(slots), "agents": list(agents)}
        await self._table.execute(_FORGET, values)
        return bool(await self._table.select(_LEFT, values))

    async def clear_all(self, keys: Iterable[SessionKey]) -> None:
        """Remove sessions from the suspects, because they have completed a model call and so do not explain a crash."""
        if known := list(keys):
            await self._table.execute(_CLEAR_MANY, _columns(known))

    async def mark_open(self, keys: Iterable[SessionKey]) -> None:
        """Record that sessions are about to be opened. If this process dies next, the crash counts for these sessions."""
        if known := list(keys):
            await self._table.execute(_OPEN, _columns(known))

    async def mark_watched(self, key: SessionKey, *, is_alone: bool) -> None:
        """Record that a session that may crash nodes (a suspect) will be opened, and that a crash during its turn counts against it.

        Do nothing if another node owns the session.

        Args:
            key: The session.
            is_alone: True if no other suspect is watched at the same time.
        """
        await self._table.execute(_WATCH, {**self._place(key), "is_alone": is_alone})

    async def note_survived(self, key: SessionKey) -> None:
        """Reset the death count of a suspect session, because this process survived a watched run of the session.

        The call has no effect if another node owns the session.
        """
        await self._table.execute(_NOTE_SURVIVED, self._place(key))

    async def clear(self, key: SessionKey) -> None:
        """Remove a session whose turn has ended from the suspects. Do nothing if another node owns the session."""
        await self._table.execute(_CLEAR, self._place(key))

    async def dead_letter(
        self, key: SessionKey, message_id: str, reason: str, *, request: bytes | None = None
    ) -> None:
        """Store a message of a session as dead-lettered, with the reason.

        `request` is the encoded request that sent the message, if no session has accepted it.
        """
        values = {"message_id": message_id, "reason": reason, "request": request}
        await self._table.execute(_BURY, {**key._asdict(), **values})

    def _place(self, key: SessionKey) -> dict[str, Any]:
        return {**key._asdict(), "p": self._partition_of(key.session_id)}


def _columns(keys: Sequence[SessionKey]) -> dict[str, list[str]]:
    return {"session_ids": [each.session_id for each in keys], "key_agents": [each.agent for each in keys]}
