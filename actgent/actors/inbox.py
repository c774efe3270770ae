"""The priority inbox: who is next, decided without a task of its own.

Theory. Each session has a *line* of waiting messages, a heap by key. The key of a message is
static: its arrival time plus its level times `age_step`, so an older message of a lower level
overtakes a younger one of a higher level in time and nothing starves, without ever touching a
queued message again. URGENT is minus infinity.

A line is *listed* in the heap `_ready` by the key of its first message, as long as nothing of
its session is out. Taking a message claims its line; follow-ups of the claimed turn go into a
place of their own, and `release` lists the line again. A message that is put `first` has a key before
all others but URGENT. A listing that is no longer true (the
line is claimed, or a sooner message came) is skipped when it surfaces, and all such are thrown
away when they are more than the true ones.

A sender that finds no room queues at two gates, first its session's, then the inbox's, with its
session's place kept. Whoever frees a place takes the first in the queue in at once and only then
wakes its task: no wake-up is lost, and nobody slips in between.
"""

import enum
import heapq
import itertools
import math
import typing
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs
import trio

from actgent.errors import ConfigurationError, InboxFull, UsageError
from actgent.messages import Priority


class Mail(typing.Protocol):
    """What an inbox has to know of a message."""

    @property
    def session_id(self) -> str: ...
    @property
    def priority(self) -> Priority: ...
    @property
    def deadline(self) -> float | None: ...


M = TypeVar("M", bound=Mail)
_Entry = tuple[float, int, M]
"""Key, serial number, message: what is sorted."""

_Bound = tuple[str, bool] | None
"""A bound that can be reached: of a session and whether for URGENT, or None for the whole inbox."""


class _NoBound(enum.Enum):
    NO_BOUND = enum.auto()


_NO_BOUND = _NoBound.NO_BOUND

_FIRST = -1e300
"""The key of messages that go before all but URGENT."""
DEFAULT_WAIT = 30.0
"""Seconds that `put` waits where the message has no deadline of its own."""


@attrs.define(eq=False)
class _Line(Generic[M]):
    """What waits for one session. It exists only while something waits or is out."""

    session_id: str
    waiting: list[_Entry[M]] = attrs.field(factory=list)
    urgent: int = 0
    """URGENT messages that wait."""
    places: int = 0
    """Other messages that wait, here or with their sender at the inbox's gate."""
    claimed: bool = False
    lent: bool = False
    parked: bool = False
    """Its turn waits for something outside: it is claimed, and nobody waits for it."""
    followups: deque[M] | None = None

    @property
    def is_empty(self) -> bool:
        return not ((self.claimed and not self.parked) or self.places or self.urgent)


@attrs.define(eq=False)
class _Sender(Generic[M]):
    """A task that waits for room for its message."""

    entry: _Entry[M]
    task: trio.lowlevel.Task
    gate: _Bound = None


@attrs.frozen(kw_only=True)
class InboxStatistics:
    """A snapshot of an inbox, for people and tests."""

    waiting: int
    """Messages that wait, URGENT ones and follow-ups not counted."""
    urgent: int
    claimed: int
    """Sessions with a message out."""
    senders: int
    """Tasks that wait for room."""
    sessions: int
    """Sessions with anything waiting or out."""


class PriorityInbox(Generic[M]):
    """A bounded inbox that hands out one message of a session at a time.

    `capacity` bounds the waiting messages, `session_capacity` those of one session,
    `urgent_capacity` the URGENT ones of one session, which count for nothing else. At most
    `concurrency` sessions are out side by side; an URGENT message goes beyond.
    """

    def __init__(
        self,
        name: str = "inbox",
        *,
        capacity: int = 1000,
        session_capacity: int = 100,
        urgent_capacity: int = 64,
        concurrency: int = 100,
        age_step: float = 30.0,
    ) -> None:
        if min(capacity, session_capacity, urgent_capacity, concurrency) < 1 or not age_step >= 0:
            raise ConfigurationError(
                f"inbox {name!r}: its bounds are at least 1, and its age_step at least 0"
            )
        self.name = name
        self.capacity = capacity
        self.session_capacity = session_capacity
        self.urgent_capacity = urgent_capacity
        self.concurrency = concurrency
        self._delays = (-math.inf, 0.0, age_step, 2 * age_step)
        self._arrivals = itertools.count()
        self._listings = itertools.count()
        self._lines: dict[str, _Line[M]] = {}
        self._held: set[str] = set()
        """Sessions that are parked; without mail they have no line."""
        self._parked = 0
        """Lines of theirs."""
        self._ready: list[tuple[float, int, int, _Line[M]]] = []
        self._waiting = 0
        self._urgent = 0
        self._claimed = 0
        self._getters = trio.lowlevel.ParkingLot()
        self._idlers = trio.lowlevel.ParkingLot()
        self._gates: dict[_Bound, OrderedDict[_Sender[M], None]] = {}

    def __len__(self) -> int:
        return self._waiting + self._urgent

    def statistics(self) -> InboxStatistics:
        return InboxStatistics(
            waiting=self._waiting,
            urgent=self._urgent,
            claimed=self._claimed,
            senders=sum(len(gate) for gate in self._gates.values()),
            sessions=len(self._lines),
        )

    # --- in ------------------------------------------------------------------------------

    def put_nowait(self, message: M, now: float | None = None, *, first: bool = False) -> None:
        """Take a message that arrived at `now`, in seconds of the clock that all senders use.

        None is `trio.current_time()`, which `put` uses, too. `first` lets it go before all but URGENT ones.

        Raises:
            InboxFull: a bound is reached.
        """
        bound = self._reached(message)
        if bound is not _NO_BOUND:
            raise self._full(bound)
        self._insert(self._stamp(message, trio.current_time() if now is None else now, first=first))

    def waiting(self, session_id: str) -> list[M]:
        """The messages of a session that wait, in no order."""
        line = self._lines.get(session_id)
        return [] if line is None else [message for _, _, message in line.waiting]

    def check_room(self, message: M) -> None:
        """See that a message could be put now.

        Raises:
            InboxFull: a bound is reached.
        """
        bound = self._reached(message)
        if bound is not _NO_BOUND:
            raise self._full(bound)

    def try_put(self, message: M, *, now: float, first: bool = False) -> bool:
        """Take a message if there is room."""
        if self._reached(message) is not _NO_BOUND:
            return False
        self._insert(self._stamp(message, now, first=first))
        return True

    def try_claim(self, message: M) -> bool:
        """Claim the session of a message that could go out as soon as it was put; False where something goes before it.

        The same as `try_put` and then `poll`, without the way through the queue.
        """
        session_id = message.session_id
        if (
            self._ready
            or self._gates
            or session_id in self._lines
            or session_id in self._held
            or self._claimed >= self.concurrency
            or self._waiting >= self.capacity
        ):
            return False
        self._lines[session_id] = _Line(session_id, claimed=True)
        self._claimed += 1
        return True

    async def put(self, message: M, *, first: bool = False) -> None:
        """Take a message, waiting for room until its deadline. Cancelled, it leaves nothing behind.

        Raises:
            InboxFull: there was no room until the deadline.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.try_put(message, now=trio.current_time(), first=first):
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await self._put_when_room(message, first=first)

    def restore(self, message: M, *, now: float, first: bool = False) -> None:
        """Take a message whose place was granted before, as to one that was accepted before a restart, whatever the bounds."""
        self._insert(self._stamp(message, now, first=first))

    def claim(self, session_id: str) -> None:
        """A turn of this session goes on that began before a restart; its first message is not here any more."""
        line = self._line(session_id)
        line.claimed = True
        self._claimed += 1

    def put_followup(self, message: M) -> None:
        """Take a message of the turn that is out: it goes before all other mail of its session, except URGENT.

        Its place was reserved when the session was claimed, so it is never refused.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._claimed_line(message.session_id)
        if line.followups is None:
            line.followups = deque()
        line.followups.append(message)

    def _reached(self, message: M) -> "_Bound | _NoBound":
        """The bound that keeps a message out."""
        line = self._lines.get(message.session_id)
        if message.priority == Priority.URGENT:
            if line is not None and line.urgent >= self.urgent_capacity:
                return (message.session_id, True)
        elif line is not None and line.places >= self.session_capacity:
            return (message.session_id, False)
        elif self._waiting >= self.capacity:
            return None
        return _NO_BOUND

    def _full(self, bound: _Bound) -> InboxFull:
        if bound is None:
            return InboxFull(self.name, self.capacity)
        session_id, urgent = bound
        if urgent:
            return InboxFull(f"session {session_id} (URGENT)", self.urgent_capacity)
        return InboxFull(f"session {session_id}", self.session_capacity)

    def _stamp(self, message: M, now: float, *, first: bool) -> _Entry[M]:
        key = (
            _FIRST if first and message.priority != Priority.URGENT else now + self._delays[message.priority]
        )
        return (key, next(self._arrivals), message)

    def _insert(self, entry: _Entry[M]) -> None:
        line = self._line(entry[2].session_id)
        if entry[0] == -math.inf:
            line.urgent += 1
            self._urgent += 1
        else:
            line.places += 1
            self._waiting += 1
        heapq.heappush(line.waiting, entry)
        if line.waiting[0] is entry and not line.claimed:
            self._list(line)

    def _line(self, session_id: str) -> _Line[M]:
        line = self._lines.get(session_id)
        if line is None:
            line = self._lines[session_id] = _Line(session_id)
            if session_id in self._held:
                self._hold(line)
        return line

    def _hold(self, line: _Line[M]) -> None:
        line.claimed = line.lent = line.parked = True
        line.followups = None
        self._parked += 1

    def _list(self, line: _Line[M]) -> None:
        """Let a line stand for its first message among those that may go out."""
        heapq.heappush(self._ready, self._listing(line))
        if len(self._ready) > 2 * len(self._lines) + 64:
            self._drop_stale_listings()
        if self._getters:
            self._getters.unpark()

    def _drop_stale_listings(self) -> None:
        lines = self._lines.values()
        self._ready[:] = [self._listing(line) for line in lines if line.waiting and not line.claimed]
        heapq.heapify(self._ready)

    def _listing(self, line: _Line[M]) -> tuple[float, int, int, _Line[M]]:
        key, arrival, _ = line.waiting[0]
        return (key, arrival, next(self._listings), line)

    # --- waiting for room ----------------------------------------------------------------

    async def _put_when_room(self, message: M, *, first: bool) -> None:
        stamped = self._stamp(message, trio.current_time(), first=first)
        sender = _Sender(stamped, trio.lowlevel.current_task())
        with trio.move_on_after(DEFAULT_WAIT if message.deadline is None else message.deadline):
            self._queue(sender)
            await trio.lowlevel.wait_task_rescheduled(lambda _: self._give_up(sender))
            return
        raise self._full(sender.gate)

    def _queue(self, sender: _Sender[M]) -> None:
        """Let a sender wait at the gate that keeps it out; at the inbox's it keeps a place of its session."""
        message = sender.entry[2]
        gate = self._reached(message)
        if gate is _NO_BOUND:
            self._insert(sender.entry)
            trio.lowlevel.reschedule(sender.task)
            return
        if gate is None:
            self._line(message.session_id).places += 1
        sender.gate = gate
        self._gates.setdefault(gate, OrderedDict())[sender] = None

    def _unqueue(self, sender: _Sender[M]) -> _Line[M]:
        queue = self._gates[sender.gate]
        del queue[sender]
        if not queue:
            del self._gates[sender.gate]
        line = self._lines[sender.entry[2].session_id]
        if sender.gate is None:
            line.places -= 1
        return line

    def _open(self, gate: _Bound) -> None:
        """A place behind this gate is free: let the first sender on."""
        queue = self._gates.get(gate)
        if queue:
            sender = next(iter(queue))
            self._unqueue(sender)
            self._queue(sender)

    def _give_up(self, sender: _Sender[M]) -> trio.lowlevel.Abort:
        line = self._unqueue(sender)
        if sender.gate is None:
            self._open((line.session_id, False))
            self._forget_if_empty(line)
        return trio.lowlevel.Abort.SUCCEEDED

    # --- out -----------------------------------------------------------------------------

    def get_nowait(self) -> M:
        """Hand out the next message and claim its session until `release`.

        Raises:
            trio.WouldBlock: nothing may go out.
        """
        message = self.poll()
        if message is None:
            raise trio.WouldBlock
        return message

    def poll(self) -> M | None:
        """`get_nowait`, or None where nothing may go out."""
        ready = self._ready
        while ready:
            key, arrival, _, line = ready[0]
            if line.claimed or not line.waiting or line.waiting[0][1] != arrival:
                heapq.heappop(ready)
                continue
            if self._claimed >= self.concurrency and key != -math.inf:
                return None
            heapq.heappop(ready)
            line.claimed = True
            self._claimed += 1
            return self._pop(line)
        return None

    async def get(self) -> M:
        """Wait for the next message and claim its session until `release`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        message = self.poll()
        if message is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return message
        while message is None:
            await self._getters.park()
            message = self.poll()
        return message

    def next_followup(self, session_id: str) -> M | None:
        """The next follow-up of the turn that is out.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._lines.get(session_id)
        if line is None or not line.claimed:
            raise self._not_out(session_id)
        return line.followups.popleft() if line.followups else None

    def next_urgent(self, session_id: str) -> M | None:
        """The next URGENT message of a session whose turn is out; what that turn still had to follow up is dropped.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._lines.get(session_id)
        if line is None or not line.claimed:
            raise self._not_out(session_id)
        if not line.urgent:
            return None
        line.followups = None
        return self._pop(line)

    def has_first(self, session_id: str) -> bool:
        """Whether a message that was put `first` is the next of its session."""
        line = self._lines.get(session_id)
        return line is not None and bool(line.waiting) and line.waiting[0][0] == _FIRST

    def take_along(self, session_id: str, wanted: Callable[[M], bool]) -> list[M]:
        """Take out what goes next in a session whose turn is out, as long as it is `wanted`; the turn answers for it, too.

        Raises:
            UsageError: nothing of the session is out.
        """
        line, taken = self._claimed_line(session_id), []
        while line.waiting and wanted(line.waiting[0][2]):
            taken.append(self._pop(line))
        return taken

    def release(self, session_id: str) -> None:
        """The turn of a session has ended: its next message may go out, follow-ups left are dropped.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._claimed_line(session_id)
        if not line.lent:
            self._claimed -= 1
        line.claimed = line.lent = False
        line.followups = None
        if line.waiting:
            self._list(line)
            return
        self._forget_if_empty(line)
        if self._ready and self._getters:
            self._getters.unpark()

    def lend(self, session_id: str) -> None:
        """The turn that is out waits for something else: another session may go out in its place.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._claimed_line(session_id)
        if not line.lent:
            line.lent = True
            self._claimed -= 1
            if self._ready and self._getters:
                self._getters.unpark()

    def reclaim(self, session_id: str) -> None:
        """The turn goes on, even if by that one more than `concurrency` is out.

        Raises:
            UsageError: nothing of the session is out.
        """
        line = self._claimed_line(session_id)
        if line.lent:
            line.lent = False
            self._claimed += 1

    def park(self, session_id: str) -> None:
        """The session's turn waits for something outside, and holds no place: its mail waits until `unpark`.

        Nobody who waits for the inbox to be idle waits for that.
        """
        self._held.add(session_id)
        line = self._lines.get(session_id)
        if line is None or line.parked:
            return
        if line.claimed and not line.lent:
            self._claimed -= 1
        self._hold(line)
        self._forget_if_empty(line)
        self._tell_if_idle()
        if self._ready and self._getters:
            self._getters.unpark()

    def unpark(self, session_id: str) -> None:
        """The turn goes on: its session is out, even if by that one more than `concurrency` is."""
        self._held.discard(session_id)
        line = self._line(session_id)
        if line.parked:
            self._parked -= 1
        line.claimed, line.lent, line.parked = True, False, False
        self._claimed += 1

    def forget_parked(self, session_id: str) -> None:
        """A parked session without mail leaves memory: `park` it again when it comes back."""
        self._held.discard(session_id)

    def is_parked(self, session_id: str) -> bool:
        """Whether mail of a parked session waits."""
        line = self._lines.get(session_id)
        return line is not None and line.parked

    def has_urgent(self, session_id: str) -> bool:
        """Whether an URGENT message of a session waits."""
        line = self._lines.get(session_id)
        return line is not None and line.urgent > 0

    def withdraw(self, session_id: str) -> list[M]:
        """Take all waiting messages of a session out again, in the order they would have gone.

        Senders that wait for room come in afterwards, as after any message that left.
        """
        line = self._lines.get(session_id)
        if line is None:
            return []
        messages = [message for _, _, message in sorted(line.waiting)]
        line.waiting.clear()
        for message in messages:
            self._free(line, message)
        self._forget_if_empty(line)
        return messages

    def _claimed_line(self, session_id: str) -> _Line[M]:
        line = self._lines.get(session_id)
        if line is None or not line.claimed:
            raise self._not_out(session_id)
        return line

    def _not_out(self, session_id: str) -> UsageError:
        return UsageError(f"inbox {self.name!r}: nothing of session {session_id!r} is out, get() comes first")

    def _forget_if_empty(self, line: _Line[M]) -> None:
        if line.is_empty:
            del self._lines[line.session_id]
            if line.parked:
                self._parked -= 1
            self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        if self._idlers and len(self._lines) == self._parked:
            self._idlers.unpark_all()

    async def wait_idle(self) -> None:
        """Wait until nothing waits and nothing is out, but for parked sessions."""
        await trio.lowlevel.checkpoint()
        while len(self._lines) > self._parked:
            await self._idlers.park()

    def sessions(self) -> list[str]:
        """The sessions with anything waiting or out, but for parked ones."""
        return [session_id for session_id, line in self._lines.items() if not line.parked]

    def _pop(self, line: _Line[M]) -> M:
        message = heapq.heappop(line.waiting)[2]
        self._free(line, message)
        return message

    def _free(self, line: _Line[M], message: M) -> None:
        """Give the place of a message that left to whoever waits for it."""
        urgent = message.priority == Priority.URGENT
        if urgent:
            line.urgent -= 1
            self._urgent -= 1
        else:
            line.places -= 1
            self._waiting -= 1
        if self._gates:
            if not urgent:
                self._open(None)
            self._open((line.session_id, urgent))
