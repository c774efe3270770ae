"""Interface of a storage for group commit: acquire, read, write and release.

A new storage implements these methods only. Order, groups, epochs and waiting are in `base_journal_with_group_commit`.
"""

import abc
from collections.abc import Sequence
from typing import Any, Protocol

import outcome

from actgent.journal.journal_interface import Journal, Snapshot
from actgent.journal.session_list_queries import Cursor, SessionFilter, SessionKey, State

from .read_batching import Found, PageRequest
from .row_format import Head, Page, Row


class HeadFound(Exception):
    """Raised if a session to be created already exists in the storage."""


class Work(Protocol):
    """A transaction that the storage has started."""

    result: outcome.Outcome[None] | None
    """Outcome of the transaction; None until it is complete."""


class StoredJournal(Journal):
    """A journal in a storage that one process at a time owns. `GroupedJournal` is its only direct subclass."""

    identity: bytes = b""
    """Random id of the storage, set by `_acquire_storage`. Each checksum includes it, so that rows of another journal are
    recognized.
    """
    _may_start: bool = False
    """True if the storage implements `_prepare_writing`, and writes without a simulated clock."""

    @abc.abstractmethod
    async def _acquire_storage(self) -> int:
        """Acquire the storage, set `identity` and return a new epoch.

        Raise `Fenced` if another process owns the storage.
        """

    @abc.abstractmethod
    async def _release(self) -> None:
        """Release the ownership of the storage, so that other processes can acquire it."""

    def _release_now(self) -> None:
        """Release the storage without waiting. Do nothing if it is released already."""

    @abc.abstractmethod
    async def _read_heads(self, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        """Return the summaries of the existing sessions. Raise `JournalDamaged` for the first damaged session summary."""

    @abc.abstractmethod
    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        """Write rows and session summaries in one durable transaction, or raise and write nothing."""

    def _prepare_writing(
        self, rows: Sequence[Row], heads: Sequence[Head], new: Sequence[SessionKey], *, is_led: bool
    ) -> Any:
        """Start a write without waiting, and return its `Work`. When the write is complete, wake the writer task.

        If one of the `new` sessions already exists, nothing is written and the result is `HeadFound`. With `is_led`, the write
        starts when a task calls `_wait_led`, and only that task is woken at the end.
        """
        raise NotImplementedError

    async def _wait_led(self, work: Any) -> None:
        """Wait until a write with `is_led` is complete.

        If the wait is cancelled, the write continues and another task may wait for it.
        """
        raise NotImplementedError

    def _stop_waiting(self, work: Any) -> None:
        """End the wait of the task in `_wait_led`, while the write continues."""
        raise NotImplementedError

    @abc.abstractmethod
    async def _roll_back(self, key: SessionKey, head: Head | None, epoch: int) -> None:
        """Reset a session to this session summary and delete later rows. If `head` is None, delete the session."""

    async def _newest_body(self) -> bytes | None:
        """Return the stored body of a recently written row; None if the journal has no rows."""
        return None

    @abc.abstractmethod
    async def _read_some(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        """Read sessions; see `read_batching.ReadSome`. Raise if the storage as a whole fails."""

    @abc.abstractmethod
    async def _read_tails(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        """Read sessions for a resume: the newest snapshot and the records after it.

        All records if there is no snapshot.
        """

    @abc.abstractmethod
    async def _read_page(self, key: SessionKey, after: int, limit: int) -> Page:
        """Return some records of a session; see `Journal.read`."""

    async def _read_pages(self, requests: Sequence[PageRequest]) -> Sequence[outcome.Outcome[Page]]:
        """Read pages, at least the first; see `read_batching.ReadTogether`.

        Between two pages other writers can write.
        """
        first = requests[0]
        return [outcome.Value(await self._read_page(first.key, first.after, first.limit))]

    @abc.abstractmethod
    def _read_page_blocking(self, key: SessionKey, after: int, limit: int) -> Page:
        """Return some records without waiting; see `Journal.read_blocking`."""

    @abc.abstractmethod
    async def _find_snapshot(self, key: SessionKey) -> Snapshot | None: ...

    @abc.abstractmethod
    async def _keep_snapshot(self, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        """Replace the snapshot of a session in one transaction; see `Journal.keep_snapshot`."""

    @abc.abstractmethod
    async def _drop_snapshots(self, key: SessionKey, epoch: int) -> None: ...

    @abc.abstractmethod
    async def _list_unfinished(self, agent: str) -> list[str]: ...

    async def _list_unfinished_of(self, agents: Sequence[str]) -> Sequence[outcome.Outcome[list[str]]]:
        """List the unfinished sessions of each agent, at least of the first agent; see `read_batching.ReadTogether`."""
        return [outcome.Value(await self._list_unfinished(agents[0]))]

    @abc.abstractmethod
    async def _count_waiting(self) -> dict[str, int]: ...

    @abc.abstractmethod
    async def _list_due(self, agent: str) -> list[tuple[str, float]]: ...

    async def _list_due_of(self, agents: Sequence[str]) -> Sequence[outcome.Outcome[list[tuple[str, float]]]]:
        """List the sessions of each agent that have a timer.

        Each item has the Unix time in seconds of the session's next timer.

        The result covers at least the first agent; see `read_batching.ReadTogether`.
        """
        return [outcome.Value(await self._list_due(agents[0]))]

    @abc.abstractmethod
    async def _list_suspended(self, agent: str, after: str, limit: int) -> list[str]: ...

    @abc.abstractmethod
    async def _list_heads(self, agent: str | None) -> list[Head]: ...

    @abc.abstractmethod
    async def _list_agents(self, session_ids: Sequence[str]) -> Sequence[outcome.Outcome[list[str]]]:
        """List the agents with each session id, at least of the first id; see `read_batching.ReadTogether`.

        Raise `JournalDamaged` if no agent is found and damage may be the reason.
        """

    @abc.abstractmethod
    async def _list_children(self, keys: Sequence[SessionKey]) -> list[Head]: ...

    @abc.abstractmethod
    async def list_changed(self, after: SessionKey, limit: int) -> list[SessionKey]:
        """Return up to `limit` sessions whose stored list position is outdated; see `SessionListStorage.list_changed`."""

    @abc.abstractmethod
    async def update_list_order(self, keys: Sequence[SessionKey]) -> None: ...

    @abc.abstractmethod
    async def select_page(
        self, session_filter: SessionFilter, after: Cursor | None, limit: int
    ) -> list[Head]: ...

    @abc.abstractmethod
    async def count_states(self) -> dict[tuple[str, State], int]: ...

    @abc.abstractmethod
    async def _list_to_erase(self, limit: int) -> list[SessionKey]: ...

    @abc.abstractmethod
    async def _erase_trees(
        self, roots: Sequence[SessionKey], unchanged_since: float, epoch: int
    ) -> list[SessionKey]:
        """Erase sessions with their child sessions in one transaction; see `Journal.erase_trees`."""

    @abc.abstractmethod
    async def _erase(self, key: SessionKey, epoch: int) -> None: ...
