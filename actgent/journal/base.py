"""A journal as agents see it: what is committed is there after kill -9 and power loss."""

import abc

import attrs

from .records import Record


@attrs.frozen(kw_only=True)
class Entry:
    """One step of one session: its records are written all or none."""

    session_id: str
    agent: str
    records: tuple[Record, ...]


@attrs.frozen(kw_only=True)
class SessionSummary:
    """What a journal knows of a session without reading it."""

    session_id: str
    agent: str
    owner: str = ""
    parent_id: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    records: int = 0
    unfinished: int = 0
    """Accepted messages that have not ended."""
    closed: bool = False
    due: float = 0.0
    """Unix time in seconds of the earliest thing in it that has a date; 0 is that there is none."""
    suspended: bool = False
    """True: its turn waits for something outside, such as a person."""


class Journal(abc.ABC):
    """The sessions' records, in order, each session numbered from 1.

    It lives in the block of `open_journal`; `acquire` comes first. A cancelled call leaves a step
    whole or not there at all. Losing the disk, the space or the ownership is an error of the call
    that meets it, and what was confirmed before stays.
    """

    @abc.abstractmethod
    async def acquire(self) -> int:
        """Become the owner and return the epoch that the following writes name; former epochs are over.

        Raises:
            Fenced: another process owns it and is alive; the text says which. It may be tried again.
            JournalDamaged: the storage as a whole cannot be trusted; nothing was changed.
            JournalVersion: a newer actgent wrote it; nothing was changed.
        """

    @abc.abstractmethod
    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        """Write a step after all earlier ones of its session; durable when it returns.

        An entry without records waits for the earlier ones. With `durable=False` it returns when the step is queued, as
        by `write_soon`, unless its session has steps that could not be written, or too much is queued already.

        Raises:
            Fenced: the epoch is over.
            NotSerializable: the entry holds what is no plain data.
            JournalFull: no space; the step may be committed again.
            JournalFailed: the storage failed; the step is there whole or not at all.
            JournalDamaged: this session's stored records are not what was written.
        """

    @abc.abstractmethod
    def write_soon(self, entry: Entry, *, epoch: int) -> None:
        """Queue a step: durable with the session's next commit, and within about 50 ms.

        What cannot be written is kept, and goes before the session's next step, whose error says so.

        Raises:
            Fenced: the epoch is over.
            NotSerializable: the entry holds what is no plain data.
        """

    @abc.abstractmethod
    async def load(self, session_id: str) -> tuple[Record, ...]:
        """All records of a session, oldest first; none where there is no such session.

        Raises:
            JournalDamaged: they are not what was written; the text names the first that is not.
            WireError: a newer actgent wrote one of them.
        """

    @abc.abstractmethod
    async def unfinished(self, agent: str) -> list[str]:
        """The agent's sessions with an accepted message that has not ended, oldest first; suspended ones are left out."""

    @abc.abstractmethod
    async def due(self, agent: str) -> list[tuple[str, float]]:
        """The agent's open sessions in which something has a date, with the Unix time of the earliest, earliest first."""

    async def suspended(self, agent: str, *, after: str = "", limit: int = 100) -> list[str]:
        """The agent's open sessions whose turn is suspended, in the order of their ids: at most `limit` behind `after`."""
        known = sorted(each.session_id for each in await self.sessions(agent) if each.suspended)
        return [session_id for session_id in known if session_id > after][:limit]

    @abc.abstractmethod
    async def sessions(self, agent: str | None = None) -> list[SessionSummary]:
        """All sessions, or those of one agent, oldest first."""

    @abc.abstractmethod
    async def delete(self, session_id: str) -> None:
        """Erase a session and its records; nothing happens where there is none."""
