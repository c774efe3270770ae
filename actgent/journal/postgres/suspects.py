"""Sessions in whose turns processes died: perhaps one of them kills its process.

A death counts for a session if its turn was begun again since the death before, and completed no model call since the first
death that counted. A session with three such deaths is a suspect. Suspects are opened some at a time, and marked before. A
death with one suspect opened alone counts for that one; after two in a row its message is given up.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from actgent.journal.listing import SessionKey

from .ownership_table import OwnershipTable
from .partitions import SLOTS, slots_of
from .statements import IS_UNFINISHED

CRASHES = 3
"""Deaths of processes after which a session is a suspect."""
ALONE = 2
"""Deaths of processes in a row that opened it alone after which its message is given up."""
_OF = "slot = ANY(%(slots)s) AND agent = ANY(%(agents)s)"
_UNFINISHED = f"{_OF} AND {IS_UNFINISHED}"
_THESE = "(session_id, agent) IN (SELECT * FROM unnest(%(session_ids)s::text[], %(key_agents)s::text[]))"
_FORGET = f"""
DELETE FROM suspects AS s WHERE {_OF} AND NOT EXISTS (
    SELECT FROM sessions AS h WHERE h.session_id = s.session_id AND h.agent = s.agent
    AND length(h.pending) > 0 AND NOT h.suspended)
"""  # noqa: S608 - names of our own
_NEAR = f"""
SELECT session_id, agent, records FROM suspects AS s
WHERE {_OF} AND s.crashes + s.is_open::int >= {CRASHES} AND s.crashes < {CRASHES}
"""  # noqa: S608 - as above
# What was opened alone by the dead node died of that; nothing else there counts.
_COUNT = f"""
INSERT INTO suspects AS s (session_id, agent, slot, crashes, alone, is_alone, epoch, records, is_open)
SELECT h.session_id, h.agent, h.slot, 1, 0, false, t.epoch, h.records, false
FROM (SELECT * FROM sessions WHERE {_UNFINISHED}) AS h
JOIN partitions AS t ON t.pool = %(pool)s AND t.p = h.slot * %(partitions)s::int / {SLOTS} AND t.owner = %(node)s
ON CONFLICT (session_id, agent) DO UPDATE SET
    crashes = s.crashes + (s.is_open AND (s.is_alone OR NOT EXISTS (
        SELECT FROM suspects AS a WHERE a.alone_at = ANY(%(dead)s::text[])
    )))::int,
    alone = s.alone + s.is_alone::int, is_alone = false, is_open = false, epoch = excluded.epoch
WHERE s.epoch <> excluded.epoch
"""  # noqa: S608 - as above
_CLEAR_MANY = f"DELETE FROM suspects WHERE {_THESE}"  # noqa: S608 - as above
_SUSPECTS = f"SELECT session_id, agent, crashes, alone FROM suspects WHERE {_OF} AND crashes >= {CRASHES}"  # noqa: S608 - as above
_LEFT = f"SELECT true FROM suspects WHERE {_OF} LIMIT 1"  # noqa: S608 - as above
_OPEN = f"UPDATE suspects SET is_open = true WHERE {_THESE} AND NOT is_open"  # noqa: S608 - as above
_OURS = """
WHERE session_id = %(session_id)s AND agent = %(agent)s
AND EXISTS (SELECT FROM partitions WHERE pool = %(pool)s AND p = %(p)s AND owner = %(node)s FOR SHARE)
"""
_MARK = f"UPDATE suspects SET is_open = true, is_alone = true, alone_at = %(node)s {_OURS}"  # noqa: S608 - as above
_NOTE_SURVIVED = f"UPDATE suspects SET is_alone = false, alone_at = '', alone = 0 {_OURS}"  # noqa: S608 - as above
_CLEAR = f"DELETE FROM suspects {_OURS}"  # noqa: S608 - as above
_BURY = """
INSERT INTO dead (session_id, agent, message_id, reason, at, request) VALUES
(%(session_id)s, %(agent)s, %(message_id)s, %(reason)s, now(), %(request)s) ON CONFLICT DO NOTHING
"""


@attrs.frozen(kw_only=True)
class Suspect:
    """A session that may kill its process."""

    key: SessionKey
    crashes: int
    """Deaths of processes in which its turn ran."""
    alone: int
    """Of these, those in a row of processes that had opened it alone."""

    @property
    def is_to_be_buried(self) -> bool:
        """True: it was tried alone often enough."""
        return self.alone >= ALONE


@attrs.frozen
class SuspectTable:
    """The suspects among the sessions of a cluster, and the messages that were given up."""

    _table: OwnershipTable
    _partition_of: Callable[[str], int]
    """That of a session."""

    async def list_near(
        self, partitions: Iterable[int], of: int, agents: Collection[str]
    ) -> Mapping[SessionKey, int]:
        """Return the sessions that one more death makes suspects, with their number of records at the first death.

        Raises:
            JournalFailed: the database does not answer.
        """
        rows = await self._table.select(_NEAR, {"slots": slots_of(partitions, of), "agents": list(agents)})
        return {SessionKey(agent, session_id): records for session_id, agent, records in rows}

    async def count(
        self, partitions: Iterable[int], of: int, agents: Collection[str], *, dead: Collection[str]
    ) -> list[Suspect]:
        """Count the deaths of the owners of some partitions, and return the suspects in these.

        A death counts once in each epoch, however often this is called. Nothing is counted for partitions that another node
        owns by now.

        Args:
            partitions: their numbers.
            of: number of partitions of the pool.
            agents: agents that this node hosts.
            dead: names of the owners that died; empty if none did.

        Raises:
            JournalFailed: the database does not answer; it may be counted or not.
        """
        values = {
            "slots": slots_of(partitions, of),
            "agents": list(agents),
            "partitions": of,
            "dead": list(dead),
        }
        for statement in (_FORGET, _COUNT) if dead else (_FORGET,):
            await self._table.execute(statement, values)
        rows = await self._table.select(_SUSPECTS, values)
        return [
            Suspect(key=SessionKey(agent, session_id), crashes=crashes, alone=alone)
            for session_id, agent, crashes, alone in rows
        ]

    async def forget_ended(self, slots: Sequence[int], agents: Collection[str]) -> bool:
        """Remove sessions that ended what they were at; returns True if others are left."""
        values = {"slots": list(slots), "agents": list(agents)}
        await self._table.execute(_FORGET, values)
        return bool(await self._table.select(_LEFT, values))

    async def clear_all(self, keys: Iterable[SessionKey]) -> None:
        """Remove sessions that completed a model call."""
        if known := list(keys):
            await self._table.execute(_CLEAR_MANY, _columns(known))

    async def mark_open(self, keys: Iterable[SessionKey]) -> None:
        """Note that sessions are about to be opened, so that the next death counts for them."""
        if known := list(keys):
            await self._table.execute(_OPEN, _columns(known))

    async def mark_alone(self, key: SessionKey) -> None:
        """Note that a session is about to be opened alone; nothing happens if another node owns it."""
        await self._table.execute(_MARK, self._place(key))

    async def note_survived(self, key: SessionKey) -> None:
        """Note that the process lives although a session was opened alone; nothing happens if another node owns it."""
        await self._table.execute(_NOTE_SURVIVED, self._place(key))

    async def clear(self, key: SessionKey) -> None:
        """Remove a session that ended what it was at; nothing happens if another node owns it."""
        await self._table.execute(_CLEAR, self._place(key))

    async def bury(
        self, key: SessionKey, message_id: str, reason: str, *, request: bytes | None = None
    ) -> None:
        """Note a message that is given up; `request` is the request that sent it, if no session has accepted it."""
        values = {"message_id": message_id, "reason": reason, "request": request}
        await self._table.execute(_BURY, {**key._asdict(), **values})

    def _place(self, key: SessionKey) -> dict[str, Any]:
        return {**key._asdict(), "p": self._partition_of(key.session_id)}


def _columns(keys: Sequence[SessionKey]) -> dict[str, list[str]]:
    return {
        "session_ids": [each.session_id for each in keys],
        "key_agents": [each.agent for each in keys],
    }
