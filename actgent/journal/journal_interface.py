"""The interface of all journals. Committed records survive kill -9 and power loss."""

import abc
import math
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs

from actgent.errors import ConfigurationError, Fenced, UsageError
from actgent.messages import new_secret
from actgent.support.attrs_class_repr import FieldRepr

from .record_feed_readers import FeedReader, WrittenBatch
from .record_types import Record
from .session_list_queries import ALL, Cursor, SessionFilter, SessionKey, State, state_of
from .session_tags_and_metadata import NO_ANNOTATIONS, SessionAnnotations


@attrs.define(eq=False, repr=False)
class JournalStatistics(FieldRepr):
    """Counters since the journal was opened."""

    commits: int = 0
    """Number of transactions that wrote records."""
    batches: int = 0
    """Number of written batches (groups of records of one session); a transaction writes several batches."""
    bytes: int = 0
    """Total size of the written records in bytes, as stored."""
    erased: int = 0
    """Number of sessions that `erase_trees` removed."""
    failure: str = ""
    """Class name of the error of the last transaction; empty if it succeeded."""
    failed_at: float = 0.0
    """Time of the last failed write on trio's clock, in seconds."""
    on_commit: Callable[[float], object] | None = None
    """Function that is called with the duration of each transaction in seconds; None for no call."""


@attrs.define(eq=False, repr=False)
class Creation(FieldRepr):
    """Outcome of creating a session. All its batches share this object until the first batch is written or rejected."""

    is_written: bool = False
    """True if the journal has stored the session."""
    is_refused: bool = False
    """True if the id is taken by another session. The journal rejects all batches of this creation."""


@attrs.frozen(kw_only=True, repr=False)
class Entry(FieldRepr):
    """One batch of a session: records that are written atomically."""

    session_id: str
    """Id of the session that gets the records."""
    agent: str
    """Name of the agent of the session that gets the records."""
    records: tuple[Record, ...]
    """The records in order. They are numbered after the existing records of the session."""
    timeout_seconds: float | None = None
    """Timeout of `commit` in seconds; None waits without limit."""
    is_retried: bool = False
    """True if the journal keeps the batch after `commit` failed with `JournalFull` or `JournalFailed`.
    The journal then writes the batch before the next batch of its session.
    """
    is_urgent: bool = False
    """True if `enqueue_write` starts the write at once, because readers wait for the records."""
    follows: bool = False
    """True if the session already has batches.
    If the session was erased in the meantime, the batch is rejected with `SessionNotFound`.
    """
    creation: Creation | None = None
    """Creation of a new session. All batches of the session share this object until the first of them is written.
    None for an existing session, and for a session that consists of this batch only.
    """


@attrs.frozen(kw_only=True, repr=False)
class SessionSummary(FieldRepr):
    """Metadata of a session that the journal returns without reading the records."""

    session_id: str
    """Id of the session, unique for its agent."""
    agent: str
    """Name of the agent of the session."""
    owner: str = ""
    """Name of the owner (the user) of the session."""
    parent_id: str | None = None
    """Id of the parent session; None if the session has no parent."""
    parent_agent: str | None = None
    """Name of the agent of the parent session; None if the session has no parent."""
    created_at: float = 0.0
    """Unix time in seconds at which the session was created."""
    updated_at: float = 0.0
    """Unix time in seconds at which the session's last records were written."""
    records: int = 0
    """Number of records of the session."""
    unfinished: int = 0
    """Number of messages that the session has accepted and not completed."""
    closed: bool = False
    """True if the session accepts no more messages."""
    due: float = 0.0
    """Unix time in seconds of the earliest schedule or deadline; 0 if there is none, negative if the session must be
    erased.
    """
    suspended: bool = False
    """True if the turn of the session waits for an external event, such as an approval."""
    root_agent: str = ""
    """Name of the agent of the root session of the tree."""
    root_id: str = ""
    """Id of the root session of the tree; the id of the session itself if it has no parent."""
    annotations: SessionAnnotations = NO_ANNOTATIONS
    """Tags and metadata of the session."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the session, sorted."""
        return self.annotations.tags

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the session."""
        return self.annotations.metadata

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
        """Position of the session in lists. `Journal.page` returns the sessions after this cursor."""
        return Cursor(self.updated_at, self.agent, self.session_id)


@attrs.frozen(kw_only=True, repr=False)
class Snapshot(FieldRepr):
    """Serialized state of a session after its first `records` records.

    A snapshot only makes loading faster. A journal may drop it at any time.
    """

    records: int
    """Number of records that the snapshot covers, from the first record."""
    version: int
    """Version of the encoding of `body`.
    If a reader does not know the version, it restores the session from the records instead.
    """
    body: bytes
    """State of the session in the encoding of `version`."""


@attrs.frozen(kw_only=True, repr=False)
class SessionTail(FieldRepr):
    """The newest valid snapshot of a session, and the records after it."""

    records: tuple[Record, ...] = ()
    """Records after the snapshot; all records if there is no snapshot."""
    snapshot: Snapshot | None = None
    """The newest valid snapshot; None if the session has no valid snapshot."""


@attrs.frozen(repr=False)
class Backup(FieldRepr):
    """A verified copy of a journal."""

    path: Path
    """Path of the file with the copy."""
    sessions: int
    """Number of sessions in the copy."""
    size: int
    """Size of the copy in bytes."""


class Journal(abc.ABC):
    """Append-only records of sessions; the records of each session are numbered from 1.

    A session is identified by its agent and its id. Methods that get only an id look up the agent.

    A journal is usable inside the `async with` block of `open_journal`. Call `acquire` before any write. A cancelled
    call returns at once. Its batch is then written completely or not at all, before all later batches of its session. If
    the disk, the space or the ownership is lost, the current call raises an error. Confirmed records stay.
    """

    statistics: JournalStatistics | None = None
    """Counters of the writes since the block was entered; None if the journal does not count."""
    identity: bytes = b""
    """Random id that the storage got when it was created. `acquire` sets it; empty if the storage has none."""

    @abc.abstractmethod
    async def acquire(self) -> int:
        """Acquire ownership of the journal and return the new epoch.

        Writes with an earlier epoch are rejected from now on.

        Raises:
            Fenced: A live process owns the journal; the message names the process. The call may be repeated.
            JournalDamaged: The storage as a whole is damaged; nothing was changed.
            JournalVersion: A newer actgent wrote the journal; nothing was changed.
        """

    @abc.abstractmethod
    def epoch_of(self, session_id: str) -> int:
        """Return the epoch for the next writes to a session.

        Call it before reading, so that a decision from an earlier epoch is never written.

        Raises:
            Fenced: This process does not own the session.
        """

    @property
    def is_shared(self) -> bool:
        """True if other processes own some of the sessions and ownership of a session may move."""
        return False

    @property
    def is_relaxed(self) -> bool:
        """True if the journal confirms writes before the data is on disk. A crash may then lose confirmed records."""
        return False

    def owns(self, session_id: str) -> bool:
        """Return True if this process may write to the session, according to the data in memory."""
        return True

    def have_same_owner(self, session_id: str, other_id: str) -> bool:
        """Return True if the same process always owns both sessions, for example because they are in one partition."""
        return True

    def new_session_id(self) -> str:
        """Return an unguessable id for a new session that this process will own.

        Raises:
            Fenced: This process owns no part of the journal.
        """
        return new_secret()

    @abc.abstractmethod
    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        """Write a batch after all earlier batches of its session. The batch is durable when the call returns.

        An entry without records waits for the earlier batches only. With `durable=False` the call returns when the batch
        is queued, as `enqueue_write` does, unless earlier batches of the session failed or the queue is full.

        Raises:
            Fenced: The epoch is over.
            NotSerializable: The entry contains a value that is not plain data.
            SessionExists: The batch creates a session, or belongs to the creation of a session, whose id is
                taken.
            JournalFull: The disk is full. The caller may commit the batch again, unless `is_retried` is set.
            JournalFailed: The storage failed, or did not answer within the timeout of the entry. The batch is
                written completely or not at all, before all later batches.
            JournalDamaged: The stored records of this session are damaged.
        """

    @abc.abstractmethod
    def enqueue_write(self, entry: Entry, *, epoch: int) -> None:
        """Queue a batch without waiting.

        It becomes durable with the next commit of its session, and within about 50 ms.

        A batch with `is_urgent` is written at once. A batch that cannot be written is retried before the next batch of
        its session. The next commit raises the error.

        Raises:
            Fenced: The epoch is over.
            NotSerializable: The entry contains a value that is not plain data.
        """

    @abc.abstractmethod
    async def load(self, session_id: str, *, agent: str | None = None) -> tuple[Record, ...]:
        """Return all records of a session, oldest first; an empty tuple if the session does not exist.

        Raises:
            ConfigurationError: Several agents have a session with this id, and `agent` is None.
            JournalDamaged: The stored records are damaged; the message names the first damaged record.
            WireError: A newer actgent wrote one of the records.
        """

    async def read(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        """Return the records of a session after record number `after`: `limit` records, plus the rest of the last batch.

        Raises:
            ConfigurationError, JournalDamaged, WireError: See `load`.
        """
        return (await self.load(session_id, agent=agent))[after : after + limit]

    async def read_batches(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[WrittenBatch, ...]:
        """Return a session's batches after record number `after`, each with its time and record numbers, as `feed` does.

        Raises:
            ConfigurationError, JournalDamaged, WireError: See `load`.
        """
        raise NotImplementedError

    def feed(
        self, session: SessionKey | None = None, *, capacity: int = 1000, records: bool = True
    ) -> AbstractAsyncContextManager[FeedReader]:
        """Subscribe to the future batches of one session, or of all sessions if `session` is None.

        Use the receive channel in an `async with` block.

        The reader gets each batch once it is on the disk, with its record numbers, in the order of the writes. A batch
        that was rolled back is never delivered. To miss nothing, open the feed first and then read the journal after
        a known record number. At most `capacity` batches wait for the reader. If more arrive, the reader gets
        `FeedLagged` and has to read the journal. Without `records` the items contain only record numbers, and nothing
        is decoded.

        Raises:
            ConfigurationError: The capacity is less than 1.
            UsageError: Another process writes this journal.
        """
        raise UsageError(
            f"{type(self).__name__} cannot publish new records, because another process writes this journal: call read() with after= to get them"
        )

    def read_blocking(
        self, session_id: str, *, agent: str, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        """Return a session's records after record number `after`, like `read`, but block the event loop during the read.

        Queued records are not included.

        Only journals that store snapshots need this method.
        """
        raise NotImplementedError

    async def load_tail(self, session_id: str, *, agent: str) -> SessionTail:
        """Return the newest snapshot of a session and the records after it. See `load` for the errors."""
        return SessionTail(records=await self.load(session_id, agent=agent))

    async def find_snapshot(self, session_id: str, *, agent: str) -> Snapshot | None:
        """Return the newest valid snapshot of a session.

        None if there is none, or if the journal stores no snapshots.
        """
        return None

    async def keep_snapshot(self, session_id: str, snapshot: Snapshot, *, agent: str, epoch: int) -> bool:
        """Store the snapshot of a session in place of its previous snapshot, under the ownership epoch `epoch`.

        Return False if the covered records do not exist, or if the journal stores no snapshots.

        Raises:
            JournalError: The snapshot could not be written; the journal is unchanged.
        """
        return False

    async def drop_snapshots(self, session_id: str, *, agent: str, epoch: int) -> None:
        """Delete the snapshot of a session, so that the next load reads all records.

        A missing snapshot is ignored.
        """

    @abc.abstractmethod
    async def unfinished(self, agent: str) -> list[str]:
        """Return the ids of the agent's sessions with an uncompleted message, oldest first, without suspended sessions."""

    async def waiting(self) -> dict[str, int]:
        """Return, by agent name, the number of sessions with an uncompleted message, without suspended sessions.

        Agents without such sessions are omitted.
        """
        known = await self.sessions()
        return dict(Counter(each.agent for each in known if each.unfinished and not each.suspended))

    @abc.abstractmethod
    async def due(self, agent: str) -> list[tuple[str, float]]:
        """Return the agent's open sessions that have a due date, earliest first.

        Each item is a session id with its earliest due date as Unix time in seconds.
        """

    async def suspended(self, agent: str, *, after: str = "", limit: int = 100) -> list[str]:
        """Return up to `limit` ids of the agent's open sessions with a suspended turn, in order of id, after the id `after`."""
        known = sorted(each.session_id for each in await self.sessions(agent) if each.suspended)
        return [session_id for session_id in known if session_id > after][:limit]

    @abc.abstractmethod
    async def sessions(self, agent: str | None = None) -> list[SessionSummary]:
        """Return the summaries of all sessions, or of one agent's sessions, oldest first."""

    async def to_erase(self, limit: int = 100) -> list[SessionKey]:
        """List closed sessions that are to be erased with their child sessions; see `SessionClosedRecord.erase`."""
        return [each.key for each in await self.sessions() if each.due < 0][:limit]

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        """Erase sessions with all their child sessions in one transaction.

        Return the erased sessions, and roots that did not exist.

        A tree is not erased if one of its sessions is unfinished or suspended, or has a next timer. A tree is also not erased if
        one of its sessions has changed at or after the Unix time `unchanged_since` in seconds.

        Raises:
            JournalError: The sessions could not be erased. Either all of them still exist, or none.
        """
        raise NotImplementedError

    def sibling_url(self, name: str) -> str | None:
        """Return the URL of a second database `name` next to this journal, for application data; None for a journal in memory."""
        return None

    async def backup(self, target: Path) -> Backup:
        """Copy all confirmed records to a new file and verify the copy. The journal stays writable during the copy.

        Raises:
            ConfigurationError: The target file exists, or this journal is not a file.
            JournalDamaged: The journal is damaged; the target file is not created.
            JournalFailed: The journal cannot be read, or the target cannot be written.
        """
        raise ConfigurationError(
            "only a journal in SQLite can be backed up by this call: use pg_dump for PostgreSQL"
        )

    @abc.abstractmethod
    async def agents_with_session(self, session_id: str) -> list[str]:
        """Return the names of the agents that have a session with this id, sorted."""

    @abc.abstractmethod
    async def head(self, agent: str, session_id: str) -> SessionSummary | None:
        """Return the summary of one session without reading its records; None if the session does not exist.

        Raises:
            JournalDamaged: The stored summary is damaged.
        """

    def cached_head(self, agent: str, session_id: str) -> SessionSummary | None:
        """Return the cached summary of a session without waiting. None means "not cached": call `head`."""
        return None

    @abc.abstractmethod
    async def children(self, agent: str, session_id: str) -> list[SessionSummary]:
        """Return the direct child sessions of a session, of any agent, oldest first."""

    async def children_of(self, keys: Sequence[SessionKey]) -> list[SessionSummary]:
        """Return the direct child sessions of several parent sessions, in any order."""
        return [child for key in keys for child in await self.children(*key)]

    @abc.abstractmethod
    async def page(
        self, session_filter: SessionFilter = ALL, *, after: Cursor | None = None, limit: int = 100
    ) -> list[SessionSummary]:
        """Return up to `limit` sessions by time of the last change, newest first, after the cursor `after`.

        The cost depends on the size of the page and on the changes since the previous page, not on the number of
        sessions. A session that changes between two pages moves to the front.
        """

    @abc.abstractmethod
    async def counts(self, agent: str | None = None) -> dict[State, int]:
        """Return the number of sessions in each state. None counts the sessions of all agents."""

    @abc.abstractmethod
    async def delete(self, session_id: str, *, agent: str | None = None) -> None:
        """Erase a session and its records. A missing session is ignored.

        Raises:
            ConfigurationError: Several agents have a session with this id, and `agent` is None.
        """


def only_session_key(agents: Sequence[str], session_id: str) -> SessionKey | None:
    """Return the key of the session with this id. `agents` are the names of the agents that have a session with this id.

    None if `agents` is empty.

    Raises:
        ConfigurationError: Several agents have a session with this id.
    """
    if len(agents) > 1:
        names = ", ".join(map(repr, sorted(agents)))
        raise ConfigurationError(
            f"the agents {names} each have a session {session_id!r}: pass the name of the agent, too"
        )
    return SessionKey(agents[0], session_id) if agents else None


def process_name() -> str:
    """Return the name of this process for errors about journal ownership, such as `process 42 on web-1`."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def already_owned_error(journal: str, owner: str) -> Fenced:
    """Build the error for a journal that another runtime has opened, with the remedy.

    `owner` is the `process_name` of its process, which may be this one.
    """
    remedy = (
        "this process has opened the journal already, so start all agents in one runtime"
        if owner == process_name()
        else "stop it first"
    )
    return Fenced(f"{journal} is owned by {owner}, which is running: {remedy}")
