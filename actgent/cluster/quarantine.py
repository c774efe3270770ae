"""Sessions that may kill their process: opened some at a time, and their message given up if the process dies of it.

Deaths are counted before anything of a partition is opened or served; `journal/postgres/suspects.py` has the rules.
"""

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, TypeVarTuple

import trio

from actgent.errors import ActgentError, JournalDamaged, JournalError, JournalFailed, JournalFull
from actgent.errors.printable import counted
from actgent.journal.base import Entry
from actgent.journal.listing import SessionKey
from actgent.journal.postgres import CRASHES, PartitionedJournal, Suspect, Taken, slots_of
from actgent.journal.records import Accepted, Answered, Appended, Closed, Ended, Record, Said, message_id_of
from actgent.messages import Message
from actgent.runtime.runtime import Runtime
from actgent.sessions.restore import owner_of
from actgent.support.concurrency import Batches
from actgent.support.logs import Each, logger_of

WATCHED = 1.0
"""Seconds for which suspects are watched before the next ones are opened too; each further death doubles them."""
LONGEST = 30.0
"""Seconds for which suspects are watched, at most."""
GROUPS = 20
"""Groups into which suspects are divided, at most; each further death doubles them."""
LOOK = 0.2
"""Seconds between two looks at a suspect."""
AGAIN = 0.5
"""Seconds until a database that did not answer is asked again."""
COUNTED = 2.0
"""Seconds between two looks at which counted sessions have ended what they were at."""
POISON = "poison"
"""The kind of the failure of a message that is given up."""
_random = random.Random()  # noqa: S311 - an order
_log = logger_of(__name__)
T = TypeVar("T")
Args = TypeVarTuple("Args")
Tree = Sequence[Suspect]
"""The suspects of one tree of sessions, the deepest first."""


class Quarantine:
    """The suspects among the sessions of one node."""

    def __init__(
        self, journal: PartitionedJournal, *, on_released: Callable[[str], object] = lambda _: None
    ) -> None:
        """Begin without suspects; `on_released` is called with the id of each tree that may be opened from then on."""
        self._journal, self._on_released = journal, on_released
        self._runtime: Runtime
        self._withheld: dict[str, trio.Event] = {}
        """By the ids of their roots, what is set when they may be opened."""
        self._suspects = Batches[Suspect]()
        self._counted = Batches[None]()

    async def run(self, runtime: Runtime) -> None:
        """Open suspects until cancelled."""
        self._runtime = runtime
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._suspects.run, self._try_all)
            nursery.start_soon(self._run_forgetting)

    async def count(self, taken: Sequence[Taken], agents: Iterable[str], *, dead: Iterable[str]) -> None:
        """Count deaths in partitions that were taken, and withhold the suspects in these.

        Args:
            taken: the partitions, all with an owner that died, or all without one.
            agents: agents that this node hosts.
            dead: names of the owners that died.

        Raises:
            JournalFailed: the database does not answer.
        """
        if not taken:
            return
        names, hosted, numbers = set(dead), list(agents), [each.partition for each in taken]
        table, of = self._journal.suspects, self._journal.count
        if names:
            await table.clear_all(await self._list_progressed(await table.list_near(numbers, of, hosted)))
        for suspect in await table.count(numbers, of, hosted, dead=names):
            self._withheld.setdefault(_root(suspect.key.session_id), trio.Event())
            self._suspects.put(suspect)
        if names:
            self._counted.put(None)

    async def choose(self, keys: Sequence[SessionKey]) -> list[SessionKey]:
        """Return those sessions that may be opened, after noting that they are; see `Runtime.take_up`."""
        chosen = [each for each in keys if not self.is_withheld(each.session_id)]
        await self._journal.suspects.mark_open(chosen)
        return chosen

    def is_withheld(self, session_id: str) -> bool:
        """Return True for a session that may not be opened yet."""
        return _root(session_id) in self._withheld

    async def wait(self, session_id: str) -> None:
        """Wait until a session may be opened."""
        if (released := self._withheld.get(_root(session_id))) is not None:
            await released.wait()

    async def _list_progressed(self, near: Mapping[SessionKey, int]) -> list[SessionKey]:
        """Return the sessions that completed a model call behind some record, themselves or in a session below."""
        found: list[SessionKey] = []
        for key, records in near.items():
            try:
                later = (await self._journal.load(key.session_id, agent=key.agent))[records:]
            except JournalDamaged:
                continue
            if any(isinstance(each, Said) and each.stop for each in later):
                found.append(key)
        ids = [each.session_id for each in found]
        return [
            key
            for key in near
            if any(each == key.session_id or each.startswith(f"{key.session_id}/") for each in ids)
        ]

    async def _run_forgetting(self) -> None:
        await self._counted.run(self._forget_ended, together=COUNTED)

    async def _forget_ended(self, _: Sequence[None]) -> None:
        """Forget the deaths of sessions that ended what they were at; looks again while any is left."""
        is_left = True
        try:
            slots = slots_of(self._journal.owned, self._journal.count)
            is_left = await self._journal.suspects.forget_ended(slots, list(self._runtime.agents))
        except JournalError as error:
            _log.debug("the deaths of sessions are not forgotten yet: %s", error)
        if is_left:
            self._counted.put(None)

    # --- the suspects ----------------------------------------------------------------------

    async def _try_all(self, suspects: Sequence[Suspect]) -> None:
        """Open suspects group by group, and the next group when the one before has survived for a while."""
        for group, seconds in _groups_of(_trees_of(suspects)):
            async with trio.open_nursery() as nursery:
                for tree in group:
                    nursery.start_soon(self._try_tree, tree, seconds, len(group) == 1)

    async def _try_tree(self, tree: Tree, seconds: float, is_alone: bool) -> None:  # noqa: FBT001 - started by a nursery
        root = _root(tree[0].key.session_id)
        try:
            await self._try(tree, seconds, is_alone)
        except ActgentError as error:
            _log.warning("session %s is left for later: %s", Each(root), Each(str(error)))
        finally:
            self._release(root)

    def _release(self, root: str) -> None:
        if (released := self._withheld.pop(root, None)) is not None:
            released.set()
            self._on_released(root)

    async def _try(self, tree: Tree, seconds: float, is_alone: bool) -> None:  # noqa: FBT001 - as above
        """Open a tree, and watch it for so long; the message of its deepest session that was alone at two deaths is given up before."""
        table, first = self._journal.suspects, tree[0].key
        buried = next((each for each in tree if each.is_to_be_buried), None)
        for each in tree:
            if each is buried:
                await self._persist(each.key, self._bury, each)
            elif is_alone:
                _log.warning(
                    "session %s was at work when %s died: it is opened alone",
                    Each(each.key.session_id),
                    counted(each.crashes, "process", "processes"),
                )
                await self._persist(each.key, table.mark_alone, each.key)
            else:
                await self._persist(each.key, table.mark_open, [each.key])
        root = _root(first.session_id)
        await self._persist(first, self._runtime.take_up, lambda session_id: _root(session_id) == root)
        until = trio.current_time() + seconds
        for key in [each.key for each in tree]:
            has_ended = await self._persist(key, self._wait_done, key, until)
            await self._persist(key, table.clear if has_ended else table.note_survived, key)

    async def _persist(self, key: SessionKey, fn: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Call `fn(*args)` until the database answers, for as long as this node owns the session."""
        while True:
            self._journal.epoch_of(key.session_id)  # or another node tries it
            try:
                return await fn(*args)
            except (JournalFailed, JournalFull) as error:
                _log.warning("suspect %s has to wait: %s", Each(key.session_id), Each(str(error)))
            await trio.sleep(AGAIN)

    async def _wait_done(self, key: SessionKey, until: float) -> bool:
        """Wait until a session ended what it was at; returns False if it still is at it at this time."""
        with trio.move_on_at(until):
            while True:
                head = await self._journal.head(*key)
                if head is None or not head.unfinished or head.suspended:
                    return True
                await trio.sleep(LOOK)
        return False

    async def _bury(self, suspect: Suspect) -> None:
        """End the message that kills its process, without running it; its sender gets the failure."""
        key = suspect.key
        records = await self._journal.load(key.session_id, agent=key.agent)
        left = _messages_left(records)
        if not left:
            return
        message = left[0]
        words = f"{counted(suspect.crashes, 'process', 'processes')} died while it was worked on, {suspect.alone} of them with it alone"
        await self._journal.suspects.bury(key, message.id, words)
        ended: tuple[Record, ...] = (
            Ended(message_id=message.id, failed=POISON, error="ActorFailed", words=words),
        )
        if _is_task(records, message, key):
            answered = Answered(message_id=message.id, text=words, failed=POISON)
            await self._runtime.delegation.report_buried(key, records, answered)
            ended = (answered, *ended, *([Closed()] if len(left) == 1 else []))
        entry = Entry(session_id=key.session_id, agent=key.agent, records=ended, follows=True)
        await self._journal.commit(entry, epoch=self._journal.epoch_of(key.session_id))
        _log.error("session %s: message %s is given up: %s", Each(key.session_id), Each(message.id), words)


def _trees_of(suspects: Iterable[Suspect]) -> list[Tree]:
    """Return the suspects of each tree, the deepest first; the most suspicious trees first, others in random order."""
    trees: dict[str, list[Suspect]] = {}
    for each in sorted(suspects, key=lambda each: -each.key.session_id.count("/")):
        trees.setdefault(_root(each.key.session_id), []).append(each)
    mixed = _random.sample(list(trees.values()), len(trees))
    return sorted(mixed, key=lambda tree: -max(each.alone for each in tree))


def _groups_of(trees: Sequence[Tree]) -> Iterator[tuple[Sequence[Tree], float]]:
    """Yield trees that are opened together, with the seconds for which they are watched.

    A tree with which a process died alone is opened alone again, before all others. The total wait is bounded: 20 groups of
    1 s after the third death, and more and smaller groups, watched for longer, after each further death.
    """
    deaths = max((each.crashes - each.alone for tree in trees for each in tree), default=CRASHES) - CRASHES
    further = max(0, deaths)
    seconds = min(LONGEST, WATCHED * 2.0 ** min(further, 10))
    alone = [tree for tree in trees if any(each.alone for each in tree)]
    yield from (([tree], seconds) for tree in alone)
    others = trees[len(alone) :]
    size = math.ceil(len(others) / (GROUPS << min(further, 10))) or 1
    yield from ((others[start : start + size], seconds) for start in range(0, len(others), size))


def _messages_left(records: Iterable[Record]) -> list[Message]:
    """Return the messages that a session accepted and did not end: the one that it was working on, then those that wait."""
    accepted: dict[str, Message] = {}
    begun: set[str] = set()
    for record in records:
        match record:
            case Accepted(message=message):
                accepted[message.id] = message
            case Appended(message_id=message_id):
                begun.add(message_id)
            case Ended(message_id=message_id):
                accepted.pop(message_id, None)
    return sorted(accepted.values(), key=lambda each: each.id not in begun)


def _is_task(records: Sequence[Record], message: Message, key: SessionKey) -> bool:
    """Return True for the message for which another session opened this one, and waits for the result."""
    opened = owner_of(records)
    is_asked = opened is not None and opened.transient and bool(opened.parent_id or opened.asker)
    return is_asked and message.id == message_id_of(key.session_id)


def _root(session_id: str) -> str:
    return session_id.partition("/")[0]
