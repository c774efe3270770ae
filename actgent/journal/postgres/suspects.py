"""Sessions that were in the middle of something each time their process died: perhaps it died of them.

What is unfinished when a process has died is counted before any of it is opened. A session that is counted often is opened
alone, and marked before; if the process dies even so, what it was at is buried, and the others go on.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import attrs

from actgent.journal.listing import SessionKey

from .ownership_table import OwnershipTable
from .partitions import SLOTS, slots_of
from .statements import IS_UNFINISHED

CRASHES = 3
"""Deaths of processes after which a session is a suspect."""
ALONE = 2
"""Deaths of processes that opened it alone after which its message is buried."""
_OF = "slot = ANY(%(slots)s) AND agent = ANY(%(agents)s)"
_UNFINISHED = f"{_OF} AND {IS_UNFINISHED}"
_FORGET = f"""
DELETE FROM suspects AS s WHERE {_OF} AND NOT EXISTS (
    SELECT FROM sessions AS h WHERE h.session_id = s.session_id AND h.agent = s.agent
    AND length(h.pending) > 0 AND NOT h.suspended)
"""  # noqa: S608 - names of our own
_COUNT = f"""
INSERT INTO suspects AS s (session_id, agent, slot, crashes, alone, is_alone, epoch)
SELECT h.session_id, h.agent, h.slot, 1, 0, false, t.epoch FROM (SELECT * FROM sessions WHERE {_UNFINISHED}) AS h
JOIN partitions AS t ON t.pool = %(pool)s AND t.p = h.slot * %(partitions)s::int / {SLOTS} AND t.owner = %(node)s
ON CONFLICT (session_id, agent) DO UPDATE SET
    crashes = s.crashes + 1, alone = s.alone + s.is_alone::int, is_alone = false, epoch = excluded.epoch
WHERE s.epoch <> excluded.epoch
"""  # noqa: S608 - as above
_SUSPECTS = f"SELECT session_id, agent, crashes, alone FROM suspects WHERE {_OF} AND crashes >= {CRASHES}"  # noqa: S608 - as above
_LEFT = f"SELECT true FROM suspects WHERE {_OF} LIMIT 1"  # noqa: S608 - as above
_AGENTS = "SELECT agent FROM suspects WHERE session_id = %(session_id)s ORDER BY agent"
_OURS = """
WHERE session_id = %(session_id)s AND agent = %(agent)s
AND EXISTS (SELECT FROM partitions WHERE pool = %(pool)s AND p = %(p)s AND owner = %(node)s FOR SHARE)
"""
_MARK = f"UPDATE suspects SET is_alone = %(is_alone)s {_OURS}"  # noqa: S608 - as above
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
    """Deaths of processes in which it was unfinished."""
    alone: int
    """Of these, those of processes that had opened it alone."""

    @property
    def is_to_be_buried(self) -> bool:
        """True: it was tried alone often enough."""
        return self.alone >= ALONE

    @property
    def is_blamed(self) -> bool:
        """True: since it is a suspect, processes have died only while it was opened alone."""
        return self.crashes - CRASHES <= self.alone


@attrs.frozen
class SuspectTable:
    """The suspects among the sessions of a cluster, and the messages that were buried."""

    _table: OwnershipTable
    _partition_of: Callable[[str], int]
    """That of a session."""

    async def count(
        self, partitions: Iterable[int], of: int, agents: Collection[str], *, has_died: bool
    ) -> list[Suspect]:
        """Count what is unfinished in some of so many partitions, if the process that had them has died; returns the suspects in it.

        It is counted once in each epoch, however often this is called, and nothing of partitions that are not ours any more.

        Raises:
            JournalFailed: the database does not answer; it may be counted or not.
        """
        values = {
            "slots": slots_of(partitions, of),
            "agents": list(agents),
            "partitions": of,
        }
        statements = (_FORGET, _COUNT) if has_died else (_FORGET,)
        for statement in statements:
            await self._table.execute(statement, values)
        rows = await self._table.select(_SUSPECTS, values)
        return [
            Suspect(key=SessionKey(agent, session_id), crashes=crashes, alone=alone)
            for session_id, agent, crashes, alone in rows
        ]

    async def agents_of(self, session_id: str) -> list[str]:
        """The agents with a session of this id that was counted, as it was in the middle of something, and has not ended that."""
        return [agent for (agent,) in await self._table.select(_AGENTS, {"session_id": session_id})]

    async def forget_ended(self, slots: Sequence[int], agents: Collection[str]) -> bool:
        """Take those off the list that have ended what they were at; returns True if others are left on it."""
        values = {"slots": list(slots), "agents": list(agents)}
        await self._table.execute(_FORGET, values)
        return bool(await self._table.select(_LEFT, values))

    async def mark_alone(self, key: SessionKey, *, is_alone: bool) -> None:
        """A session is about to be opened alone, or goes on beside others; nothing happens where it is another process's."""
        await self._table.execute(_MARK, {**self._place(key), "is_alone": is_alone})

    async def clear(self, key: SessionKey) -> None:
        """A session has ended what it was at; nothing happens where it is another process's."""
        await self._table.execute(_CLEAR, self._place(key))

    def _place(self, key: SessionKey) -> dict[str, Any]:
        return {**_values(key), "p": self._partition_of(key.session_id)}

    async def bury(
        self, key: SessionKey, message_id: str, reason: str, *, request: bytes | None = None
    ) -> None:
        """Note a message that is given up; `request` is what would have said it, where nothing was accepted."""
        values = {"message_id": message_id, "reason": reason, "request": request}
        await self._table.execute(_BURY, {**_values(key), **values})


def _values(key: SessionKey) -> dict[str, str]:
    return {"session_id": key.session_id, "agent": key.agent}
