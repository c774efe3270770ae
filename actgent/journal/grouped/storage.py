"""What a storage does for the group commit that all journals share: take, read, write, and let go.

Whoever brings a storage writes these methods, and nothing of order, groups, epochs or waiting.
"""

import abc
from collections.abc import Sequence
from typing import Any, Protocol

import outcome
import trio

from actgent.journal.base import Journal, Snapshot
from actgent.journal.listing import Cursor, SessionFilter, SessionKey, State

from .reading import Found
from .steps import Head, Page, Row


class HeadFound(Exception):
    """A session that was taken as new is there."""


class Work(Protocol):
    """A transaction that a storage has begun with."""

    result: outcome.Outcome[None] | None
    """What came of it, once it is over."""


class StoredJournal(Journal):
    """A journal in a storage of which one process at a time is the owner; its members are `GroupedJournal`s."""

    identity: bytes = b""
    """Of the storage; part of each checksum. Known once it is acquired."""
    _writer: trio.lowlevel.Task | None = None
    """The task that writes, while it has nothing to do; see `_wait_called`."""

    @abc.abstractmethod
    async def _take(self) -> int:
        """Own the storage, set `identity` and return a new epoch, or raise `Fenced`."""

    @abc.abstractmethod
    async def _release(self) -> None:
        """Let the storage go."""

    def _let_go(self) -> None:
        """Let the storage go as soon as that is possible, without waiting; nothing where it was let go."""

    @abc.abstractmethod
    async def _read_heads(self, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        """The heads of those sessions that are there; raises `JournalDamaged` for the first bad one."""

    @abc.abstractmethod
    async def _write(self, rows: Sequence[Row], heads: Sequence[Head], epoch: int) -> None:
        """Write rows and heads in one durable transaction, or raise and write nothing."""

    @property
    def _may_start(self) -> bool:
        """Whether the storage has `_prepare_writing`."""
        return False

    def _prepare_writing(
        self, rows: Sequence[Row], heads: Sequence[Head], new: Sequence[SessionKey], *, is_led: bool
    ) -> Any:
        """Begin with what `_write` does without waiting, and call the writer when it is over; returns a `Work`.

        Where one of the `new` sessions is there nothing is written: `HeadFound`. One that `is_led` begins as somebody
        waits in `_see_through`, who alone hears of its end.
        """
        raise NotImplementedError

    async def _see_through(self, work: Any) -> None:
        """Wait until a work is over that is led; cancelled, it goes on, and somebody else may wait for it."""
        raise NotImplementedError

    def _dismiss(self, work: Any) -> None:
        """Have the one in `_see_through` wait no more."""
        raise NotImplementedError

    @trio.lowlevel.enable_ki_protection  # or a task would be woken that does not wait
    async def _wait_called(self) -> None:
        """Wait until `_call` is called, or something is over that `_prepare_writing` began with; perhaps shorter."""

        def leave(_: object) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._writer = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(leave)

    def _call(self) -> None:
        """Have the writer go on; an event costs more."""
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    @abc.abstractmethod
    async def _take_back(self, key: SessionKey, head: Head | None, epoch: int) -> None:
        """Have a session end at this head again, whatever stands behind it; without one there is none."""

    async def _newest_body(self) -> bytes | None:
        """The body of a row that was written lately, as it is stored; None if there is none."""
        return None

    @abc.abstractmethod
    async def _read_some(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        """See `reading.ReadSome`; raises where the storage as a whole fails."""

    @abc.abstractmethod
    async def _read_tails(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        """The same, each session behind its snapshot, if it has one."""

    @abc.abstractmethod
    async def _read_page(self, key: SessionKey, after: int, limit: int) -> Page:
        """See `Journal.read`."""

    @abc.abstractmethod
    def _read_page_now(self, key: SessionKey, after: int, limit: int) -> Page:
        """See `Journal.read_now`."""

    @abc.abstractmethod
    async def _find_snapshot(self, key: SessionKey) -> Snapshot | None: ...

    @abc.abstractmethod
    async def _keep_snapshot(self, key: SessionKey, snapshot: Snapshot, epoch: int) -> bool:
        """See `Journal.keep_snapshot`; in one transaction."""

    @abc.abstractmethod
    async def _drop_snapshots(self, key: SessionKey, epoch: int) -> None: ...

    @abc.abstractmethod
    async def _list_unfinished(self, agent: str) -> list[str]: ...

    @abc.abstractmethod
    async def _count_waiting(self) -> dict[str, int]: ...

    @abc.abstractmethod
    async def _list_due(self, agent: str) -> list[tuple[str, float]]: ...

    @abc.abstractmethod
    async def _list_suspended(self, agent: str, after: str, limit: int) -> list[str]: ...

    @abc.abstractmethod
    async def _list_heads(self, agent: str | None) -> list[Head]: ...

    @abc.abstractmethod
    async def _list_agents(self, session_id: str) -> list[str]:
        """See `Journal.agents_of`; raises `JournalDamaged` where there is none and damage may be the reason."""

    @abc.abstractmethod
    async def _list_children(self, keys: Sequence[SessionKey]) -> list[Head]: ...

    @abc.abstractmethod
    async def list_changed(self, after: SessionKey, limit: int) -> list[SessionKey]:
        """See `paging.Shelves`, as for those that follow."""

    @abc.abstractmethod
    async def put_in_order(self, keys: Sequence[SessionKey]) -> None: ...

    @abc.abstractmethod
    async def select_page(self, wanted: SessionFilter, after: Cursor | None, limit: int) -> list[Head]: ...

    @abc.abstractmethod
    async def count_states(self) -> dict[tuple[str, State], int]: ...

    @abc.abstractmethod
    async def _list_to_erase(self, limit: int) -> list[SessionKey]: ...

    @abc.abstractmethod
    async def _erase_trees(
        self, roots: Sequence[SessionKey], unchanged_since: float, epoch: int
    ) -> list[SessionKey]:
        """See `Journal.erase_trees`; in one transaction."""

    @abc.abstractmethod
    async def _erase(self, key: SessionKey, epoch: int) -> None: ...
