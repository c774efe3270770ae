"""Sessions that may kill their process: opened one tree at a time, and buried if it dies even so.

What was unfinished when a node died is counted before any of it is opened, also by a request: `PartitionedJournal.suspects`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, TypeVarTuple
from urllib.parse import parse_qsl

import orjson
import trio

from actgent.errors import ActgentError, JournalDamaged, JournalError, JournalFailed, JournalFull
from actgent.errors.printable import counted
from actgent.journal.base import Entry
from actgent.journal.listing import SessionKey, is_storable
from actgent.journal.postgres import PartitionedJournal, Suspect, slots_of
from actgent.journal.records import Accepted, Answered, Appended, Closed, Ended, Record, message_id_of
from actgent.messages import Message, new_id
from actgent.runtime.runtime import Runtime
from actgent.sessions.restore import owner_of
from actgent.support.concurrency import Batches
from actgent.support.logs import Each, logger_of

from .amqp import NotConfirmed, Unroutable
from .link import BROKEN, BrokerLink
from .queues import dead_queue
from .wire import ASK, PERSISTENT, Buried, WireRequest, encode_message, properties, session_named

WATCHED = 30.0
"""Seconds for which a suspect is watched alone; then it goes on beside the next one."""
LOOK = 0.2
"""Seconds between two looks at a suspect."""
AGAIN = 0.5
"""Seconds until a database that did not answer is asked again."""
COUNTED = 2.0
"""Seconds between two looks at which of those that were counted have ended what they were at."""
KEPT_MS = 7 * 24 * 3_600_000
"""Milliseconds for which a notice waits for a reader."""
_LONGEST = 800
"""Bytes of a name, at most: three of them stand in one entry of an index."""
POISON = "poison"
"""The kind of the failure of a message that was buried."""
_log = logger_of(__name__)
T = TypeVar("T")
Args = TypeVarTuple("Args")


class Quarantine:
    """The suspects among the sessions of one node."""

    def __init__(self, journal: PartitionedJournal, link: BrokerLink) -> None:
        self._journal, self._link, self.node = journal, link, journal.node
        self._runtime: Runtime
        self.alone = trio.Lock()
        """Held by whoever begins a request or opens a session alone, as nodes may have died of it."""
        self._withheld: dict[str, trio.Event] = {}
        """By the ids of their roots, what is set when they may be opened by others."""
        self._blamed: set[str] = set()
        """The roots of those with which nodes have died while nothing else of them was begun."""
        self._suspects = Batches[Suspect]()
        self._counted = Batches[None]()

    async def run(self, runtime: Runtime) -> None:
        """Try suspects one after the other, until cancelled."""
        self._runtime = runtime
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._suspects.run, self._try_all)
            nursery.start_soon(partial(self._counted.run, self._forget_ended, together=COUNTED))

    async def count(self, partitions: Sequence[int], agents: Iterable[str], *, have_died: bool) -> None:
        """Find the suspects of partitions that were taken, from now on withheld; counts what is unfinished if their owner died.

        Raises:
            JournalFailed: the database does not answer.
        """
        if not partitions:
            return
        of, suspects = self._journal.count, self._journal.suspects
        for suspect in await suspects.count(partitions, of, list(agents), has_died=have_died):
            self._withheld.setdefault(root := _root(suspect.key.session_id), trio.Event())
            if suspect.is_blamed:
                self._blamed.add(root)
            self._suspects.put(suspect)
        self._counted.put(None)

    def is_withheld(self, session_id: str) -> bool:
        """Return True for a session that nobody may open yet."""
        return _root(session_id) in self._withheld

    def is_blamed(self, session_id: str) -> bool:
        """Return True for such a session of which nodes have died, and not of a request to it: that has waited."""
        return _root(session_id) in self._blamed

    async def wait(self, session_id: str) -> None:
        """Wait until a session may be opened."""
        released = self._withheld.get(_root(session_id))
        if released is not None:
            await released.wait()

    async def _forget_ended(self, _: Sequence[None]) -> None:
        """Leave no session on the list, and counted the next time, that has gone on well; looks again while any is left."""
        is_left = True
        with suppress(JournalError):
            slots = slots_of(self._journal.owned, self._journal.count)
            is_left = await self._journal.suspects.forget_ended(slots, list(self._runtime.agents))
        if is_left:
            self._counted.put(None)

    async def has_accepted(self, asked: WireRequest) -> bool:
        """Return True if a session is in the middle of what a request has said: that a node died is counted there.

        Raises:
            JournalFailed: the database does not answer.
        """
        session_id = session_named(asked)
        if not (session_id and is_storable(session_id)):
            return False
        agents = await self._journal.suspects.agents_of(session_id)
        if asked.verb == ASK:  # the session is there for nothing else
            return bool(agents)
        with suppress(JournalDamaged):
            for agent in agents:
                left = _messages_left(await self._journal.load(session_id, agent=agent))
                if _id_of(asked) in {each.id for each in left}:
                    return True
        return False

    async def bury_request(self, asked: WireRequest, words: str) -> bool:
        """Note a request that is given up, so that a person can have it sent again; False if that cannot be done now."""
        key = SessionKey(_agent_named(asked), _kept(session_named(asked)))
        message_id = _id_of(asked)
        try:
            await self._journal.suspects.bury(key, message_id, words, request=encode_message(asked))
        except JournalError as error:
            _log.warning("request %s is not given up yet: %s", Each(asked.path), Each(str(error)))
            return False
        await self._give_notice(key, message_id, words)
        return True

    # --- one suspect ---------------------------------------------------------------------

    async def _try_all(self, suspects: Sequence[Suspect]) -> None:
        for root, tree in _trees_of(suspects).items():
            try:
                async with self.alone:
                    await self._try(tree)
            except (ActgentError, *BROKEN) as error:
                _log.warning("session %s is left for later: %s", Each(root), Each(str(error)))
            finally:
                self._blamed.discard(root)
                if (released := self._withheld.pop(root, None)) is not None:
                    released.set()

    async def _try(self, tree: Sequence[Suspect]) -> None:
        """Open the suspects of a tree, the deepest first in it; the deepest that is to be buried is, and those above it are tried again."""
        suspects, first = self._journal.suspects, tree[0].key
        buried = next((each for each in tree if each.is_to_be_buried), None)
        for each in tree:
            await self._persist(each.key, self._bury if each is buried else self._mark, each)
        await self._persist(first, self._runtime.take_up, partial(_is_same, first.session_id))
        over = trio.current_time() + WATCHED
        for key in [each.key for each in tree]:
            if await self._persist(key, self._wait_done, key, over):
                await self._persist(key, suspects.clear, key)
            else:
                await self._persist(key, partial(suspects.mark_alone, is_alone=False), key)

    async def _persist(self, key: SessionKey, fn: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Do a step of a trial until the database answers, for as long as the session is ours: nobody else opens it."""
        while True:
            self._journal.epoch_of(key.session_id)  # or another node tries it
            try:
                return await fn(*args)
            except (JournalFailed, JournalFull) as error:
                _log.warning("suspect %s has to wait: %s", Each(key.session_id), Each(str(error)))
            await trio.sleep(AGAIN)

    async def _mark(self, suspect: Suspect) -> None:
        """Write that it goes on alone, before it does."""
        _log.warning(
            "session %s was unfinished when %s died: it goes on alone",
            Each(suspect.key.session_id),
            counted(suspect.crashes, "process", "processes"),
        )
        await self._journal.suspects.mark_alone(suspect.key, is_alone=True)

    async def _wait_done(self, key: SessionKey, over: float) -> bool:
        """Wait until a session has ended what it was at; False if that takes until `over`, or it is another node's."""
        with trio.move_on_at(over):
            while True:
                head = await self._journal.head(*key)
                if head is None or not head.unfinished or head.suspended:
                    return True
                await trio.sleep(LOOK)
        return False

    async def _bury(self, suspect: Suspect) -> None:
        """End the message that kills its process, without running it: who waits for it hears that."""
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
        await self._give_notice(key, message.id, words)

    async def _give_notice(self, key: SessionKey, message_id: str, words: str) -> None:
        notice = Buried(session_id=key.session_id, agent=key.agent, message_id=message_id, reason=words)
        about = properties(delivery_mode=PERSISTENT, expiration=str(KEPT_MS))
        try:
            await self._link.publish(dead_queue().name, encode_message(notice), about)
        except (*BROKEN, Unroutable, NotConfirmed, JournalError) as error:
            _log.warning("nobody was told of a message that was given up: %s", Each(str(error)))


def _trees_of(suspects: Iterable[Suspect]) -> dict[str, list[Suspect]]:
    """The suspects of each tree by its root's id, the deepest first."""
    trees: dict[str, list[Suspect]] = {}
    for each in sorted(suspects, key=lambda each: -each.key.session_id.count("/")):
        trees.setdefault(_root(each.key.session_id), []).append(each)
    return trees


def _messages_left(records: Iterable[Record]) -> list[Message]:
    """The messages that a session has accepted and not ended: the one that it was working on, then those that wait."""
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
    """Return True for the message for which another session has opened this one: it is to hear what comes of that."""
    opened = owner_of(records)
    is_asked = opened is not None and opened.transient and bool(opened.parent_id or opened.asker)
    return is_asked and message.id == message_id_of(key.session_id)


def _agent_named(asked: WireRequest) -> str:
    """The agent that a request names; empty if it names none."""
    return _kept(dict(parse_qsl(asked.query)).get("agent") or _fields(asked).get("agent"))


def _id_of(asked: WireRequest) -> str:
    """The id of what a request says, which is the same however often it is sent, or else its own."""
    said = _fields(asked).get("message_id") or asked.headers.get("idempotency-key")
    return _kept(said) or _kept(asked.id) or new_id()


def _kept(named: object) -> str:
    """A name as the table has room for; empty for what is none of anything that is there."""
    is_name = isinstance(named, str) and is_storable(named) and len(named.encode()) <= _LONGEST
    return str(named) if is_name else ""


def _fields(asked: WireRequest) -> Mapping[str, Any]:
    with suppress(orjson.JSONDecodeError):
        if isinstance(found := orjson.loads(asked.body), dict):
            return found
    return {}


def _root(session_id: str) -> str:
    return session_id.partition("/")[0]


def _is_same(root_of: str, session_id: str) -> bool:
    return _root(session_id) == _root(root_of)
