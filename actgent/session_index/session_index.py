"""`SessionIndex`: fills the index of a journal in the background, and answers its queries."""

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from actgent.errors import (
    ConfigurationError,
    FeedLagged,
    Fenced,
    JournalError,
    JournalFailed,
    WireError,
    did_you_mean_or_list,
)
from actgent.journal.encryption import current_keys
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.journal_wrappers import WrappedJournal
from actgent.journal.record_feed_readers import Erased, FeedReader, WrittenBatch
from actgent.journal.session_list_queries import SessionFilter, SessionKey, is_internal, is_storable
from actgent.limits_and_schedules.id_and_number_validation import at_least_one
from actgent.support.safe_logging import logger_of
from actgent.support.sql_connection_interface import ThreadedStore

from .index_store import IndexStore
from .record_indexing import DAY_SECONDS, SessionFacts
from .search_and_trend_queries import Group, SearchFilter, SearchPage, Trends

NAME = "index"
"""Name of the index next to its journal."""
GATHER_SECONDS = 0.5
"""Seconds for which written batches are collected before one transaction adds them to the index."""
BATCH_SESSIONS = 100
"""Maximum number of sessions in one transaction."""
BATCH_RECORDS = 2_000
"""Number of records after which the additions of one transaction are full."""
READ_RECORDS = 500
"""Number of records of a session that are read at a time."""
LAST_STEPS_SECONDS = 5.0
"""Maximum seconds for which an erasure waits until the index contains the last batches of the erased sessions."""
RETRY_SECONDS = 30.0
"""Seconds until the index is compared with the journal again after an error."""
FEED_STEPS = 20_000
"""Maximum number of batches in the buffer of the feed. If more arrive, they are read from the journal."""
PAGE_SIZE = 500
MAX_CURSOR_CHARS = 18
"""Maximum length of a cursor, in digits."""
MAX_LIMIT = 500
"""Maximum number of hits on a page."""
GROUPS: Sequence[Group] = ("day", "agent", "model", "owner")
_log = logger_of(__name__)
T = TypeVar("T")


class _Connection(ThreadedStore[IndexStore]):
    """A connection to the store of the index, used by one task at a time."""

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """Run a method of the store in its thread, and return the result.

        Raises:
            JournalFailed: The index was closed during the call.
        """
        async with self.turn:
            try:
                return await self.thread.run(fn, *args)
            except trio.ClosedResourceError as error:
                raise JournalFailed("the session index was closed during the call") from error


class SessionIndex:
    """Search and statistics over the sessions of a journal. `open_index` opens it."""

    def __init__(self, journal: Journal, writer: _Connection, reader: _Connection) -> None:
        self._journal = journal
        self._writer, self._reader = writer, reader
        self._filling = trio.Lock()
        """Lock that is held while batches are read and added, so that batches of a session are not added after its erasure."""
        self._waiting: dict[SessionKey, list[WrittenBatch]] = {}
        """Batches to add to the index, by session. If the list of a session is empty, its batches are read from the journal."""
        self._is_compared = False
        """True after the index was compared with the journal."""
        self._begun = self._done = 0
        """Numbers of started and of completed rounds. A round adds all batches that wait at its start."""
        self._reader_of_feed: FeedReader | None = None
        self._hurry = trio.Event()
        """Event that is set to add the waiting batches without a delay."""
        self._added = trio.Event()
        """Event that is set after waiting batches were added. A new event then replaces it."""

    # --- queries -----------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """True if the index has all sessions as of `GATHER_SECONDS` ago."""
        return self._is_compared

    async def search(
        self, query: str, filters: SearchFilter, *, after: str | None = None, limit: int = 20
    ) -> SearchPage:
        """Return the newest messages that match a query and a filter. `after` is the cursor of the previous page.

        An empty query matches all messages.

        Raises:
            ConfigurationError: The query has text but no word, the cursor is invalid, or the limit is below 1.
            JournalError: The index cannot be read.
        """
        limit = min(at_least_one("limit", limit), MAX_LIMIT)
        before = None if after is None else _to_number(after)
        page = await self._reader.run(self._reader.store.search, query, filters, before, limit)
        return attrs.evolve(page, is_complete=self.is_complete)

    async def trends(
        self,
        by: Group,
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        owner: str | None = None,
        model: str | None = None,
    ) -> Trends:
        """Return statistics by day, agent, model or owner. `since` and `until` are Unix times in seconds, extended to whole days.

        Raises:
            ConfigurationError: `by` is unknown.
            JournalError: The index cannot be read.
        """
        if by not in GROUPS:
            raise ConfigurationError(
                f"by={by!r:.200} is not a group of statistics: {did_you_mean_or_list(str(by), GROUPS)}"
            )
        conditions: dict[str, object] = {}
        if since is not None:
            conditions["day >= ?"] = _day_of(since)
        if until is not None:
            conditions["day <= ?"] = _day_of(until)
        for name, value in (("agent", agent), ("owner", owner), ("model", model)):
            if value is not None:
                conditions[f"{name} = ?"] = value if is_storable(value) else "\n"
        found = await self._reader.run(self._reader.store.trends, by, conditions)
        return attrs.evolve(found, is_complete=self.is_complete)

    async def wait_filled(self) -> None:
        """Wait until the index has all batches that were written before this call.

        Raises:
            JournalError: The journal cannot be read.
        """
        await self._journal.waiting()  # writes the queued batches
        wanted = self._begun + 1
        while not self._is_compared or (self._done < wanted and self._has_work):
            self._hurry.set()
            await self._added.wait()

    @property
    def _has_work(self) -> bool:
        """True if batches are being added to the index, or wait to be added."""
        feed = self._reader_of_feed
        return self._begun > self._done or bool(self._waiting) or (feed is not None and feed.has_news)

    # --- filling -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Fill the index until the task is cancelled. After an error, compare the index with the journal again."""
        is_open = True
        while is_open:
            try:
                async with self._journal.feed(capacity=FEED_STEPS) as reader:
                    self._reader_of_feed = reader
                    await self._compare()
                    await self._add_waiting()
                    self._is_compared = True
                    self._note_added()
                    await self._follow(reader)
                is_open = False
            except (JournalError, Fenced, WireError) as error:
                _log.warning("the session index is not up to date, and is tried again: %s", error)
                self._is_compared, self._begun = False, self._done
                await trio.sleep(RETRY_SECONDS)

    async def _follow(self, reader: FeedReader) -> None:
        """Add new batches from the journal's feed to the index in groups, until the journal is closed."""
        while True:
            await reader.wait()
            with trio.move_on_after(GATHER_SECONDS):
                await self._hurry.wait()
            self._hurry = trio.Event()
            self._begun += 1
            try:
                await self._queue_feed_items(reader)
            except FeedLagged:
                await self._compare()
            except trio.EndOfChannel:
                return
            await self._add_waiting()
            self._done += 1
            self._note_added()

    def _note_added(self) -> None:
        self._added.set()
        self._added = trio.Event()

    async def _queue_feed_items(self, reader: FeedReader) -> None:
        """Receive the items that wait in the feed, and queue them for the index."""
        while reader.has_news:
            try:
                item = reader.receive_nowait()
            except trio.WouldBlock:
                item = await reader.receive()
            if isinstance(item, Erased):
                await self.erase([item.key])
            elif not is_internal(item.key):
                self._waiting.setdefault(item.key, []).append(item)

    async def _compare(self) -> None:
        """Compare the index with the journal.

        Queue sessions with records that are not in the index. Remove sessions that the journal no longer has.
        """
        known = await self._writer.run(self._writer.store.known_sessions)
        after = None
        while page := await self._journal.page(
            SessionFilter(oldest_first=True), after=after, limit=PAGE_SIZE
        ):
            for head in page:
                if not is_internal(head) and known.pop(head.key, None) != (
                    head.records,
                    head.created_at,
                    head.state,
                ):
                    self._waiting.setdefault(head.key, [])
            after = page[-1].cursor
        missing = [key for key in known if await self._journal.head(*key) is None]
        for at in range(0, len(missing), PAGE_SIZE):
            await self.erase(missing[at : at + PAGE_SIZE])

    async def _add_waiting(self) -> None:
        while self._waiting:
            async with self._filling:
                await self._add_some()

    async def _add_some(self) -> None:
        """Add the batches of some queued sessions to the index, in one transaction."""
        additions: list[tuple[SessionFacts, Sequence[WrittenBatch]]] = []
        unfinished: list[SessionKey] = []
        size = 0
        for key in [*self._waiting][:BATCH_SESSIONS]:
            batches: Sequence[WrittenBatch] = self._waiting.pop(key)
            head = self._journal.cached_head(*key) or await self._journal.head(*key)
            if head is None:  # erased
                continue
            if not batches:
                batches = await self._read(key)
                if batches and batches[-1].last < head.records:
                    unfinished.append(key)
            additions.append((await self._facts_of(head), batches))
            size += sum(batch.count for batch in batches)
            if size >= BATCH_RECORDS:
                break
        gaps = await self._writer.run(self._writer.store.add, additions)
        for key in (*gaps, *unfinished):
            self._waiting[key] = []

    async def _read(self, key: SessionKey) -> Sequence[WrittenBatch]:
        """Return the next batches of a session from the journal; empty if the session is damaged."""
        done = await self._writer.run(self._writer.store.records_of, key)
        try:
            return await self._journal.read_batches(
                key.session_id, agent=key.agent, after=done, limit=READ_RECORDS
            )
        except (JournalError, WireError) as error:
            if isinstance(error, JournalFailed):
                raise
            _log.warning("a session is left out of the session index, because it cannot be read: %s", error)
            return ()

    async def _facts_of(self, head: SessionSummary) -> SessionFacts:
        root = head if head.parent_id is None else await self._journal.head(*head.root)
        return SessionFacts(
            agent=head.agent,
            session_id=head.session_id,
            owner=head.owner if root is None else root.owner,
            created_at=head.created_at,
            updated_at=head.updated_at,
            state=head.state,
            annotations=head.annotations,
        )

    async def erase(self, keys: Sequence[SessionKey]) -> None:
        """Remove sessions from the index, because the journal has erased them."""
        async with self._filling:
            for key in keys:
                if (
                    key in self._waiting
                ):  # its batches may be of the erased session, or of a new one with the same id
                    self._waiting[key] = []
            await self._writer.run(self._writer.store.erase, keys)

    def close(self) -> None:
        for each in {self._writer, self._reader}:
            each.end()


class IndexedJournal(WrappedJournal):
    """Journal wrapper that erases sessions from the index together with the journal.

    Before an erasure, the last batches of the session are added to the index, so that the statistics include them.
    """

    def __init__(self, inner: Journal, index: SessionIndex) -> None:
        super().__init__(inner)
        self.index = index

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        await self._add_last_batches()
        erased = await self.inner.erase_trees(roots, unchanged_since=unchanged_since)
        if erased:
            await self.index.erase(erased)
        return erased

    async def delete(self, session_id: str, *, agent: str | None = None) -> None:
        await self._add_last_batches()
        agents = await self.inner.agents_with_session(session_id) if agent is None else [agent]
        await self.inner.delete(session_id, agent=agent)
        await self.index.erase([SessionKey(each, session_id) for each in agents])

    async def _add_last_batches(self) -> None:
        """Wait until the index has all written batches, unless the index is being built or cannot be written."""
        if self.index.is_complete:
            with trio.move_on_after(LAST_STEPS_SECONDS):
                await self.index.wait_filled()


@asynccontextmanager
async def open_index(journal: Journal, *, read_only: bool = False) -> AsyncGenerator[SessionIndex, None]:
    """Open the index of a journal for the block. The index is stored next to the journal: in a file, or in a database schema.

    With `read_only`, another process fills the index. Otherwise this process must own the journal. If the stored index belongs to
    another journal, such as a removed journal with the same path, the index is emptied and built again.

    Raises:
        ConfigurationError: The journal is encrypted, or shared by a cluster. With `read_only`: there is no index.
        JournalFailed: The index cannot be opened.
    """
    if journal.is_shared:
        raise ConfigurationError(
            "index= cannot be combined with cluster=, because one process must fill the index: omit one of the two"
        )
    if current_keys() is not None:
        raise ConfigurationError(
            "index=True would store the texts of encrypted records unencrypted: omit index=, or unset ACTGENT_JOURNAL_KEYS"
        )
    place = journal.sibling_url(NAME)
    open_store = partial(_open_store, place, read_only=read_only)
    writer = await _Connection.open("session index", open_store)
    reader = writer
    try:
        if place is not None:
            reader = await _Connection.open("session index search", open_store)
        index = SessionIndex(journal, writer, reader)
        if not read_only:
            await writer.run(writer.store.bind_to_journal, journal.identity)
    except BaseException:
        for each in {writer, reader}:
            each.end()
        raise
    try:
        yield index
    finally:
        index.close()


def _open_store(place: str | None, *, read_only: bool) -> IndexStore:
    if place is not None and not place.startswith("sqlite:///"):
        from .postgres_index_store import PostgresIndexStore  # noqa: PLC0415 - needs an extra

        return PostgresIndexStore(place, read_only=read_only)
    from .sqlite_index_store import SQLiteIndexStore  # noqa: PLC0415

    path = (place or "").removeprefix("sqlite:///")
    if read_only and not Path(path).is_file():
        raise ConfigurationError(
            f"the session index {path} does not exist: start the agents with index=True, which builds it"
        )
    return SQLiteIndexStore(path, read_only=read_only)


def _to_number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= MAX_CURSOR_CHARS):
        raise ConfigurationError("after= must be `following` of the previous page")
    return int(cursor)


def _day_of(seconds: float) -> int:
    return int(min(max(seconds, 0.0), 1e12) // DAY_SECONDS)
