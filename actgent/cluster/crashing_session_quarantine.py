"""Quarantine of suspect sessions, whose turns may crash the process.

A session is a suspect if it was unfinished at several deaths of its node. Suspects are quarantined, and then opened in groups. The node
watches each group for a moment. If the node dies while it watches a group, the next node divides the group, until a group has one
suspect. If a suspect that is watched alone kills two nodes, its message is dead-lettered. If other nodes died at the same time, more
deaths are needed. A node that acquires a partition counts the deaths before it opens or serves a session of the partition. See
`journal/postgres/session_crash_counts.py` for the rules.
"""

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar, TypeVarTuple

import attrs
import trio

from actgent.errors import ActgentError, JournalDamaged, JournalError, JournalFailed, JournalFull
from actgent.errors.text_escaping import counted
from actgent.journal.journal_interface import Entry
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.postgres.session_crash_counts import SUSPECT_CRASHES, Suspect
from actgent.journal.postgres.session_partitioning import AcquiredPartition, slots_of
from actgent.journal.record_types import (
    AgentMessageRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    Record,
    SessionClosedRecord,
    TaskOutcomeRecord,
    task_message_id,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Message
from actgent.runtime.runtime import Runtime
from actgent.sessions.restore.record_replayer import creation_record_of
from actgent.support.batch_queue import Batches
from actgent.support.safe_logging import LogVariable, logger_of

WATCH_SECONDS = 1.0
"""Seconds for which a group of suspects is watched before the next group is opened."""
WATCH_GROWTH = 1.5
"""Factor by which each further death prolongs the watch time: a turn may crash its process later than after a second."""
MAX_WATCH_SECONDS = 30.0
"""Maximum seconds for which a group of suspects is watched."""
GROUPS = 4
"""Number of groups into which suspects with equally many deaths are divided."""
POLL_SECONDS = 0.2
"""Poll interval in seconds of the question whether a suspect has finished."""
RETRY_SECONDS = 0.5
"""Retry interval in seconds while the database does not answer."""
CLEANUP_SECONDS = 2.0
"""Interval in seconds at which the deaths of finished sessions are cleared."""
POISON_KIND = "poison"
"""Failure kind of a dead-lettered message."""
_random = random.Random()  # noqa: S311 - an order
_log = logger_of(__name__)
T = TypeVar("T")
Args = TypeVarTuple("Args")
Tree = Sequence[Suspect]
"""Suspects of one session tree (a root session and its child sessions), deepest sessions first."""


@attrs.frozen
class Group:
    """Group of suspect sessions that are opened at the same time."""

    trees: Sequence[Tree]
    seconds: float
    """Seconds for which the group is watched."""
    deaths: tuple[int, int]
    """Maximum numbers of process deaths of a session in the group: deaths while only this session was open, and all deaths.

    Groups with higher numbers are opened first.
    """


class Quarantine:
    """Quarantine of one node's suspect sessions, which are blocked, and then opened group by group."""

    def __init__(
        self, journal: PartitionedJournal, *, on_released: Callable[[str], object] = lambda _: None
    ) -> None:
        """Create a quarantine without suspects. `on_released` is called with the root id of each released session tree."""
        self._journal, self._on_released = journal, on_released
        self._runtime: Runtime
        self._held_back: dict[str, trio.Event] = {}
        """Held-back session trees by root id, with the event that is set when they are released."""
        self._groups: list[Group] = []
        """Groups to open, in this order."""
        self._has_groups = trio.Event()
        self._counted = Batches[None]()

    async def run(self, runtime: Runtime) -> None:
        """Open the suspects that `count_deaths` found, group by group, until cancelled.

        Suspects are sessions that were unfinished when their node died.
        """
        self._runtime = runtime
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_groups)
            nursery.start_soon(self._run_cleanup)

    async def count_deaths(
        self, taken: Sequence[AcquiredPartition], agents: Iterable[str], *, dead: Iterable[str]
    ) -> None:
        """Count node deaths for the unfinished sessions of acquired partitions, and quarantine the suspects among them.

        Args:
            taken: The acquired partitions.
            agents: Names of the agents that this node hosts.
            dead: Names of previous owners that died. Deaths are counted in the partitions that they did not give back.

        Raises:
            JournalFailed: The database does not answer.
        """
        if not taken:
            return
        names, hosted, numbers = set(dead), list(agents), [each.partition for each in taken]
        table, partition_count = self._journal.suspects, self._journal.count
        died = [each.partition for each in taken if each.before in names and not each.was_clean]
        if died:
            await table.clear_all(
                await self._list_progressed(await table.list_near_suspects(died, partition_count, hosted))
            )
        trees = _trees_of(await table.count_deaths(numbers, partition_count, hosted, died=died, dead=names))
        for tree in trees:
            self._held_back.setdefault(_root(tree[0].key.session_id), trio.Event())
        self._groups += _groups_of(trees)
        self._groups.sort(key=lambda group: group.deaths, reverse=True)
        self._has_groups.set()
        self._counted.put(None)  # also without a death: the previous owner may have counted some and left

    async def choose(self, keys: Sequence[SessionKey]) -> list[SessionKey]:
        """Return the sessions of `keys` that are not in quarantine, and mark these sessions as open in the database.

        `Runtime.resume_acquired` calls this function before it opens sessions.
        """
        chosen = [each for each in keys if not self.is_held_back(each.session_id)]
        await self._journal.suspects.mark_open(chosen)
        return chosen

    def is_held_back(self, session_id: str) -> bool:
        """Return True if the session tree is quarantined, so that the session may not be opened yet."""
        return _root(session_id) in self._held_back

    async def wait(self, session_id: str) -> None:
        """Wait until a session is not quarantined. Return at once if it is not."""
        if (released := self._held_back.get(_root(session_id))) is not None:
            await released.wait()

    async def _list_progressed(self, near: Mapping[SessionKey, int]) -> list[SessionKey]:
        """Return the sessions in which a model call was completed since the given record, also in a child session.

        Args:
            near: Number of the record after which completed model calls count, by session.
        """
        found: list[SessionKey] = []
        for key, records in near.items():
            try:
                later = (await self._journal.load(key.session_id, agent=key.agent))[records:]
            except JournalDamaged:
                continue
            if any(isinstance(each, AgentMessageRecord) and each.stop for each in later):
                found.append(key)
        ids = [each.session_id for each in found]
        return [
            key
            for key in near
            if any(each == key.session_id or each.startswith(f"{key.session_id}/") for each in ids)
        ]

    async def _run_cleanup(self) -> None:
        await self._counted.run(self._clear_ended, window_seconds=CLEANUP_SECONDS)

    async def _clear_ended(self, _: Sequence[None]) -> None:
        """Clear the death counts of sessions that have finished.

        If other counts remain, or the database fails, try again later.
        """
        is_left = True
        try:
            slots = slots_of(self._journal.owned, self._journal.count)
            is_left = await self._journal.suspects.remove_ended(slots, list(self._runtime.agents))
        except JournalError as error:
            _log.debug("the deaths of sessions are not forgotten yet: %s", error)
        if is_left:
            self._counted.put(None)

    # --- suspects --------------------------------------------------------------------------

    async def _run_groups(self) -> None:
        """Open the suspect sessions group by group. Open the next group after the node has survived the watch time of a group."""
        while True:
            while not self._groups:
                self._has_groups = trio.Event()
                await self._has_groups.wait()
            group = self._groups.pop(0)
            async with trio.open_nursery() as nursery:
                for tree in group.trees:
                    nursery.start_soon(self._try_tree, tree, group.seconds, len(group.trees) == 1)

    async def _try_tree(self, tree: Tree, seconds: float, is_alone: bool) -> None:  # noqa: FBT001 - started by a nursery
        """Open a session tree and watch it. Log errors. Release the tree in any case."""
        root = _root(tree[0].key.session_id)
        try:
            await self._try(tree, seconds, is_alone)
        except ActgentError as error:
            _log.warning("session %s is left for later: %s", LogVariable(root), LogVariable(str(error)))
        finally:
            self._release(root)

    def _release(self, root: str) -> None:
        """End the quarantine of a session tree. Wake its waiting requests, and report the tree to `on_released`."""
        if (released := self._held_back.pop(root, None)) is not None:
            released.set()
            self._on_released(root)

    async def _try(self, tree: Tree, seconds: float, is_alone: bool) -> None:  # noqa: FBT001 - as above
        """Open a tree of suspect sessions, and watch it for `seconds`.

        Before the tree is opened, dead-letter the message of the deepest session that was open alone when its node died twice, and
        reset the death count of this session. After `seconds`, clear the death counts of the sessions that have finished, and record
        that the other sessions have survived.
        """
        table, first = self._journal.suspects, tree[0].key
        buried = next((each for each in tree if each.must_be_dead_lettered), None)
        for each in tree:
            if each is buried:
                await self._retry_while_owned(each.key, self._dead_letter, each)
                # Its deaths are explained by the buried message: the next message is not dead-lettered if this node dies now.
                await self._retry_while_owned(each.key, table.note_survived, each.key)
                continue
            if is_alone:
                _log.warning(
                    "session %s was at work when %s died: it is opened alone",
                    LogVariable(each.key.session_id),
                    counted(each.crashes, "process", "processes"),
                )
            await self._retry_while_owned(each.key, partial(table.mark_watched, is_alone=is_alone), each.key)
        root = _root(first.session_id)
        await self._retry_while_owned(
            first, self._runtime.resume_acquired, lambda session_id: _root(session_id) == root
        )
        until = trio.current_time() + seconds
        for key in [each.key for each in tree]:
            has_ended = await self._retry_while_owned(key, self._wait_done, key, until)
            await self._retry_while_owned(key, table.clear if has_ended else table.note_survived, key)

    async def _retry_while_owned(
        self, key: SessionKey, fn: Callable[[*Args], Awaitable[T]], *args: *Args
    ) -> T:
        """Call `fn(*args)` until the database answers, for as long as this node owns the session."""
        while True:
            self._journal.epoch_of(key.session_id)  # raises if another node owns it by now
            try:
                return await fn(*args)
            except (JournalFailed, JournalFull) as error:
                _log.warning(
                    "suspect %s has to wait: %s", LogVariable(key.session_id), LogVariable(str(error))
                )
            await trio.sleep(RETRY_SECONDS)

    async def _wait_done(self, key: SessionKey, until: float) -> bool:
        """Wait until a session is finished or suspended. Return False if it is still unfinished at time `until`."""
        with trio.move_on_at(until):
            while True:
                head = await self._journal.head(*key)
                if head is None or not head.unfinished or head.suspended:
                    return True
                await trio.sleep(POLL_SECONDS)
        return False

    async def _dead_letter(self, suspect: Suspect) -> None:
        """Dead-letter the first message of a suspected session whose work is not completed.

        The session is suspected because processes died while they worked on it. The message is recorded as failed,
        which its sender receives, and it is never run again.
        """
        key = suspect.key
        records = await self._journal.load(key.session_id, agent=key.agent)
        left = _uncompleted_messages(records)
        if not left:
            return
        message = left[0]
        reason = f"{counted(suspect.crashes, 'process', 'processes')} died while it was worked on, {suspect.alone} of them with it alone"
        await self._journal.suspects.dead_letter(key, message.id, reason)
        ended: tuple[Record, ...] = (
            MessageEndRecord(
                message_id=message.id, failed=POISON_KIND, error="ActorFailed", error_text=reason
            ),
        )
        if _is_task(records, message, key):
            answered = TaskOutcomeRecord(message_id=message.id, text=reason, failed=POISON_KIND)
            await self._runtime.delegation.report_dead_letter(key, records, answered)
            ended = (answered, *ended, *([SessionClosedRecord()] if len(left) == 1 else []))
        entry = Entry(session_id=key.session_id, agent=key.agent, records=ended, follows=True)
        await self._journal.commit(entry, epoch=self._journal.epoch_of(key.session_id))
        _log.error(
            "session %s: message %s is dead-lettered: %s",
            LogVariable(key.session_id),
            LogVariable(message.id),
            reason,
        )


def _trees_of(suspects: Iterable[Suspect]) -> list[Tree]:
    """Group suspects by session tree, deepest first. Return the trees in random order."""
    trees: dict[str, list[Suspect]] = {}
    for each in sorted(suspects, key=lambda each: -each.key.session_id.count("/")):
        trees.setdefault(_root(each.key.session_id), []).append(each)
    return _random.sample(list(trees.values()), len(trees))


def _groups_of(trees: Sequence[Tree]) -> Iterator[Group]:
    """Divide the session trees of suspect sessions into groups. The groups are opened one after another.

    A tree that was open alone when a process died is opened alone again. The other trees with equally many deaths are
    divided into `GROUPS` groups. So the group that was watched at a death is divided further.
    """
    further = (
        max((each.crashes - each.alone for tree in trees for each in tree), default=SUSPECT_CRASHES)
        - SUSPECT_CRASHES
    )
    seconds = min(MAX_WATCH_SECONDS, WATCH_SECONDS * WATCH_GROWTH ** min(max(0, further), 10))
    levels: dict[tuple[int, int], list[Tree]] = {}
    for tree in trees:
        deaths = max(each.alone for each in tree), max(SUSPECT_CRASHES, *(each.crashes for each in tree))
        levels.setdefault(deaths, []).append(tree)
    for deaths, level in levels.items():
        size = 1 if deaths[0] else math.ceil(len(level) / GROUPS)
        yield from (
            Group(level[start : start + size], seconds, deaths) for start in range(0, len(level), size)
        )


def _uncompleted_messages(records: Iterable[Record]) -> list[Message]:
    """Return the accepted messages that are not completed: first the message of the running turn, then queued messages."""
    accepted: dict[str, Message] = {}
    begun: set[str] = set()
    for record in records:
        match record:
            case MessageAcceptedRecord(message=message):
                accepted[message.id] = message
            case MessageAppendedRecord(message_id=message_id):
                begun.add(message_id)
            case MessageEndRecord(message_id=message_id):
                accepted.pop(message_id, None)
    return sorted(accepted.values(), key=lambda each: each.id not in begun)


def _is_task(records: Sequence[Record], message: Message, key: SessionKey) -> bool:
    """Return True if the message is the task for which a parent session or another pool created this session."""
    opened = creation_record_of(records)
    is_asked = opened is not None and opened.transient and bool(opened.parent_id or opened.asker)
    return is_asked and message.id == task_message_id(key.session_id)


def _root(session_id: str) -> str:
    """Return the id of the root session of a session's tree, which is the part before the first `/`."""
    return session_id.partition("/")[0]
