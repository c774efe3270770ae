"""A journal as agents see it: what is committed is there after kill -9 and power loss."""

import abc
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs

from actgent.errors import ConfigurationError, UsageError
from actgent.messages import new_secret

from .feed import FeedReader, Written
from .listing import ALL, Cursor, SessionFilter, SessionKey, State, state_of
from .records import Record
from .statistics import JournalStatistics


@attrs.define(eq=False)
class Creation:
    """A session that somebody makes; all steps of it name this until the first is known to be written."""

    is_written: bool = False
    """True: the journal has it."""
    is_refused: bool = False
    """True: the journal has another one of its id, and takes no step of this one."""


@attrs.frozen(kw_only=True)
class Entry:
    """One step of one session: its records are written all or none."""

    session_id: str
    """The session that the step is of."""
    agent: str
    """The agent that the session belongs to."""
    records: tuple[Record, ...]
    """In their order; numbered behind those that the session has."""
    patience: float | None = None
    """Seconds that `commit` waits at most; None is for as long as it takes."""
    is_kept: bool = False
    """True: where `commit` fails for want of space or of the storage, the step goes before the session's next one, as by `write_soon`."""
    is_awaited: bool = False
    """True: readers wait for it, so that `write_soon` has it written at once."""
    follows: bool = False
    """True: the session began with an earlier step, so this one is refused with `SessionNotFound` if the session is erased."""
    creation: Creation | None = None
    """Of a session whose steps are to be refused as its first one is; None for others, and for one that is made by this step alone."""


@attrs.frozen(kw_only=True)
class SessionSummary:
    """What a journal knows of a session without reading it."""

    session_id: str
    """Unique for its agent."""
    agent: str
    """The name of the agent that it belongs to."""
    owner: str = ""
    """The name of its owner."""
    parent_id: str | None = None
    """The session that it works for; None: nobody's."""
    parent_agent: str | None = None
    """The agent of that one."""
    created_at: float = 0.0
    """Unix time in seconds."""
    updated_at: float = 0.0
    """Unix time in seconds of its last step."""
    records: int = 0
    """How many it has."""
    unfinished: int = 0
    """Accepted messages that have not ended."""
    closed: bool = False
    """True: it takes no more messages."""
    due: float = 0.0
    """Unix time in seconds of the earliest thing in it that has a date; 0 is that there is none."""
    suspended: bool = False
    """True: its turn waits for something outside, such as a person."""
    root_agent: str = ""
    """The agent of the session at the top of its tree."""
    root_id: str = ""
    """The session at the top of its tree; its own where it has no parent."""

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.agent, self.session_id)

    @property
    def parent(self) -> SessionKey | None:
        return None if self.parent_id is None else SessionKey(self.parent_agent or "", self.parent_id)

    @property
    def root(self) -> SessionKey:
        return SessionKey(self.root_agent, self.root_id)

    @property
    def state(self) -> State:
        return state_of(self.closed, self.suspended, self.unfinished > 0)

    @property
    def cursor(self) -> Cursor:
        """Behind which `Journal.page` goes on."""
        return Cursor(self.updated_at, self.agent, self.session_id)


@attrs.frozen(kw_only=True)
class Snapshot:
    """What opening makes of a session's first records, as bytes. It saves time and nothing else: it may be removed at any moment."""

    records: int
    """How many it covers, from the first."""
    version: int
    """Of the form of its body; who does not know it reads the records."""
    body: bytes
    """In the form that `version` names."""


@attrs.frozen(kw_only=True)
class SessionTail:
    """A session's newest good snapshot, and the records behind it; without one, all records."""

    records: tuple[Record, ...] = ()
    """Those behind the snapshot; all where there is none."""
    snapshot: Snapshot | None = None
    """None: there is no good one."""


@attrs.frozen
class Backup:
    """A copy of a journal that was made and read again."""

    path: Path
    """Where it is."""
    sessions: int
    """How many it has."""
    size: int
    """In bytes."""


class Journal(abc.ABC):
    """The sessions' records, in order, each session numbered from 1.

    A session is named by its agent and its id. Calls that take an id alone look the agent up.

    It lives in the block of `open_journal`; `acquire` comes first. A cancelled call returns at once, and leaves a step
    whole or not there at all, before all later ones of its session. Losing the disk, the space or the ownership is an error of the call
    that meets it, and what was confirmed before stays.
    """

    statistics: JournalStatistics | None = None
    """What it has written since its block was opened; None where it does not count."""

    @abc.abstractmethod
    async def acquire(self) -> int:
        """Become the owner and return the epoch that the following writes name; former epochs are over.

        Raises:
            Fenced: another process owns it and is alive; the text says which. It may be tried again.
            JournalDamaged: the storage as a whole cannot be trusted; nothing was changed.
            JournalVersion: a newer actgent wrote it; nothing was changed.
        """

    @abc.abstractmethod
    def epoch_of(self, session_id: str) -> int:
        """The epoch that writes to a session name from now on. Whoever reads it asks before: what was read under one epoch is not written under another.

        Raises:
            Fenced: this process does not own the session.
        """

    @property
    def is_shared(self) -> bool:
        """True if other processes own some of the sessions, and may come to own any of them while this one runs."""
        return False

    @property
    def is_relaxed(self) -> bool:
        """True if it confirms what is queued, and may be lost."""
        return False

    def owns(self, session_id: str) -> bool:
        """Return True if this process may write to a session, as far as it knows."""
        return True

    def is_together(self, session_id: str, other_id: str) -> bool:
        """Return True if whoever owns one of these sessions owns the other one, too."""
        return True

    def new_session_id(self) -> str:
        """An id that nobody can guess, of a session that this process owns.

        Raises:
            Fenced: it owns none.
        """
        return new_secret()

    @abc.abstractmethod
    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        """Write a step after all earlier ones of its session; durable when it returns.

        An entry without records waits for the earlier ones. With `durable=False` it returns when the step is queued, as
        by `write_soon`, unless its session has steps that could not be written, or too much is queued already.

        Raises:
            Fenced: the epoch is over.
            NotSerializable: the entry holds what is no plain data.
            SessionExists: the step is the first of a session, or of the same `creation`, and another one has that id.
            JournalFull: no space; the step may be committed again, unless it is kept.
            JournalFailed: the storage failed, or has not answered within the entry's patience; the step is there whole
                or not at all, before all later ones.
            JournalDamaged: this session's stored records are not what was written.
        """

    @abc.abstractmethod
    def write_soon(self, entry: Entry, *, epoch: int) -> None:
        """Queue a step: durable with the session's next commit, and within about 50 ms; begun at once where it is awaited.

        What cannot be written is kept, and goes before the session's next step, whose error says so.

        Raises:
            Fenced: the epoch is over.
            NotSerializable: the entry holds what is no plain data.
        """

    @abc.abstractmethod
    async def load(self, session_id: str, *, agent: str | None = None) -> tuple[Record, ...]:
        """All records of a session, oldest first; none where there is no such session.

        Raises:
            ConfigurationError: several agents have a session of this id, and none of them is given.
            JournalDamaged: they are not what was written; the text names the first that is not.
            WireError: a newer actgent wrote one of them.
        """

    async def read(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        """The records of a session behind its record number `after`: `limit` of them, and the rest of the last one's step.

        Raises:
            ConfigurationError, JournalDamaged, WireError: see `load`.
        """
        return (await self.load(session_id, agent=agent))[after : after + limit]

    async def read_steps(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[Written, ...]:
        """The same step by step, each with its time and the numbers of its records, as the feed tells them.

        Raises:
            ConfigurationError, JournalDamaged, WireError: see `load`.
        """
        raise NotImplementedError

    def feed(
        self, session: SessionKey | None = None, *, capacity: int = 1000, records: bool = True
    ) -> AbstractAsyncContextManager[FeedReader]:
        """An `async with` block with a receive channel of the steps of one session, or of all, from now on.

        A step is told when it is on the disk, with the numbers that its records have there, in the order of the writes; one that
        was taken back never is. Whoever opens the feed first, and reads the journal behind a number then, misses nothing.
        At most `capacity` steps wait for the reader: who falls further behind hears of that by `FeedLagged`, and reads the
        journal. Without `records` it is told which numbers were written, and nothing is decoded.

        Raises:
            ConfigurationError: the capacity is less than 1.
            UsageError: this journal is written elsewhere.
        """
        raise UsageError(f"{type(self).__name__} does not tell what is written to it")

    def read_now(
        self, session_id: str, *, agent: str, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        """The same for who cannot wait: it holds the event loop meanwhile, and knows what is written by then.

        Only journals that keep snapshots need it.
        """
        raise NotImplementedError

    async def load_tail(self, session_id: str, *, agent: str) -> SessionTail:
        """A session from its newest snapshot on, or all of it; see `load`."""
        return SessionTail(records=await self.load(session_id, agent=agent))

    async def find_snapshot(self, session_id: str, *, agent: str) -> Snapshot | None:
        """The newest snapshot of a session that is whole, and of the records that are there."""
        return None

    async def keep_snapshot(self, session_id: str, snapshot: Snapshot, *, agent: str, epoch: int) -> bool:
        """Keep a snapshot in the place of the one before; False where the records that it covers are not there, or none are kept.

        Raises:
            JournalError: it could not be written; all else is as it was.
        """
        return False

    async def drop_snapshots(self, session_id: str, *, agent: str, epoch: int) -> None:
        """Remove the snapshots of a session, if it has any."""

    @abc.abstractmethod
    async def unfinished(self, agent: str) -> list[str]:
        """The agent's sessions with an accepted message that has not ended, oldest first; suspended ones are left out."""

    async def waiting(self) -> dict[str, int]:
        """Count the sessions that `unfinished` lists, by the names of their agents; agents without any are left out."""
        known = await self.sessions()
        return dict(Counter(each.agent for each in known if each.unfinished and not each.suspended))

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

    async def to_erase(self, limit: int = 100) -> list[SessionKey]:
        """Closed sessions that are to leave the journal, with all below them: see `Closed.erase`."""
        return [each.key for each in await self.sessions() if each.due < 0][:limit]

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        """Erase sessions with all below them in one step; returns all that were erased, and roots that were not there.

        A tree is left as it is where something in it is unfinished, suspended or has a date, or changed at or after the
        Unix time `unchanged_since`.

        Raises:
            JournalError: they could not be erased; all of them are there, or none.
        """
        raise NotImplementedError

    def beside(self, name: str) -> str | None:
        """The address of a database of its own beside this journal, for data of this name; None where it keeps nothing."""
        return None

    async def backup(self, target: Path) -> Backup:
        """Copy all that is confirmed to a new file, and read it again; meanwhile the journal works.

        Raises:
            ConfigurationError: there is a file at the target, or this journal is no file.
            JournalDamaged: the journal is not what was written; nothing stands at the target.
            JournalFailed: it cannot be read, or the target not be written.
        """
        raise ConfigurationError(
            "only a journal in a file of SQLite is copied so: for one in PostgreSQL use pg_dump"
        )

    @abc.abstractmethod
    async def agents_of(self, session_id: str) -> list[str]:
        """The agents that have a session of this id, by name."""

    @abc.abstractmethod
    async def head(self, agent: str, session_id: str) -> SessionSummary | None:
        """Return what is known of one session without reading it; None if there is none.

        Raises:
            JournalDamaged: it is not what was written.
        """

    def head_now(self, agent: str, session_id: str) -> SessionSummary | None:
        """Return the same where it is known without waiting; None says nothing, and `head` is to be asked."""
        return None

    @abc.abstractmethod
    async def children(self, agent: str, session_id: str) -> list[SessionSummary]:
        """The sessions straight below this one, of any agent, oldest first; `children_of` are those of several, in any order."""

    async def children_of(self, keys: Sequence[SessionKey]) -> list[SessionSummary]:
        return [child for key in keys for child in await self.children(*key)]

    @abc.abstractmethod
    async def page(
        self, wanted: SessionFilter = ALL, *, after: Cursor | None = None, limit: int = 100
    ) -> list[SessionSummary]:
        """At most `limit` sessions by their last change, the newest first, behind `after`: the last one's `cursor`.

        A page costs what it shows and what changed since the one before, however many sessions there are. A session
        that changes meanwhile moves to the front.
        """

    @abc.abstractmethod
    async def counts(self, agent: str | None = None) -> dict[State, int]:
        """Count the sessions in each state, of all agents or of one."""

    @abc.abstractmethod
    async def delete(self, session_id: str, *, agent: str | None = None) -> None:
        """Erase a session and its records; nothing happens where there is none.

        Raises:
            ConfigurationError: several agents have a session of this id, and none of them is given.
        """


def one_of(agents: Sequence[str], session_id: str) -> SessionKey | None:
    """The session of this id where one of these agents has it; None where none has.

    Raises:
        ConfigurationError: several have one.
    """
    if len(agents) > 1:
        names = ", ".join(map(repr, sorted(agents)))
        raise ConfigurationError(f"the agents {names} have a session {session_id!r} each: say which agent's")
    return SessionKey(agents[0], session_id) if agents else None
