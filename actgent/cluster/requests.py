"""The requests of a node: answered as soon as their partition is served here, and acknowledged when they are answered.

A request that only reads a session is acknowledged when it begins, since who asks can ask again, and is told when to: when
the session has another owner. Any other is acknowledged when the broker has its answer: what had an effect the journal has
by then, and a node that takes over finds its id there. Nobody waits for that word of the broker's where the answer goes at
once, but for what hears it, and acknowledges; and requests are answered by workers, as turns are.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

import attrs
import orjson
import trio
from pamqp import commands

from actgent.actors.timer import Timer
from actgent.actors.workers import Workers
from actgent.errors import BrokerLost, UsageError
from actgent.messages import new_id
from actgent.support.logs import Each, logger_of
from actgent.web.problems import Problem
from actgent.web.server.wired import WiredApplication, WiredRequest, has_moved

from .amqp import ChannelClosed, Delivery, NotConfirmed, Unroutable
from .link import BROKEN, BrokerLink
from .operations.figures import NodeFigures
from .quarantine import POISON, Quarantine
from .wire import (
    CONTROL,
    USER,
    AnswerPiece,
    Message,
    WireRequest,
    deaths_of,
    encode_message,
    form_of,
    is_alone,
    is_repeated,
    properties,
    session_named,
    with_death,
)

AGAIN = 0.2
"""Seconds after which a request goes back into its queue whose session turned out to live elsewhere."""
MOST = 16
"""Requests of one session that may wait for their answers; the next one hears `busy`, and comes again."""
MOST_DEATHS = 2
"""Nodes that may die while they have one request; then nobody begins it any more beside others, and nobody at all one of the queue of all nodes."""
TRIED = 5.0
"""Seconds for which a request is watched that was begun alone; then the next one is begun beside it."""
DROPS = 1000
"""Drops that came before their requests, of which a partition knows at most."""
_FREEING = ("interrupt", "close", "decision")
"""What ends something, or lets it go on, which all others may wait for: also a partition that is about to be another node's,
which is held until its turns have ended."""
_STOPPING = ("interrupt", "close")
"""What ends turns."""
_BUSY = Problem("busy", f"{MOST} requests of this session wait for their answers: send it again later")
_KILLED = "nodes have gone that were to answer it, so that no other one begins with it: look why"
_OK = 200
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_log = logger_of(__name__)
Starter = Callable[..., object]
"""Starts a task, as `nursery.start_soon`."""
Judge = Callable[[float], Awaitable[bool]]
"""Finds out whether a node has died not long before a time."""


class _CannotTell(trio.BrokenResourceError):
    """Nobody hears the answer, or it cannot be sent now."""


@attrs.define(eq=False)
class _Work:
    """A request at work."""

    delivery: Delivery
    asked: WireRequest
    came_at: float
    """When, by trio's clock."""
    gone: trio.Event = attrs.field(factory=trio.Event)
    """Set when nobody reads the answer any more."""
    scope: trio.CancelScope | None = None
    """What ends it; None while it has not begun."""
    is_stopped: bool = False
    """True: it is another node's to answer."""
    is_answered: bool = False
    """True once there is nothing more to tell."""
    is_confirming: bool = False
    """True: the broker has not confirmed its answer; who hears that acknowledges it."""
    number: int = 0
    """Of the next piece."""
    has_moved: bool = False
    place: tuple[str, str] = attrs.field(init=False)
    """Who asked, and under which id."""
    session: str = attrs.field(init=False)
    """The session that it names, if any."""
    line: str = attrs.field(init=False)
    """The session whose requests wait together with this one; empty where as many may wait as come."""
    is_read: bool = attrs.field(init=False)
    """True if it only reads."""
    is_freeing: bool = attrs.field(init=False)
    """True if others may wait for what it does."""
    is_stop: bool = attrs.field(init=False)
    """True if it ends a turn that runs."""

    def __attrs_post_init__(self) -> None:
        asked, what = self.asked, self.asked.path.rpartition("/")[2]
        self.place = self.delivery.properties.reply_to or "", asked.id
        self.session, self.is_read = session_named(asked), asked.verb == "GET"
        self.is_freeing = what in _FREEING
        self.line = "" if self.is_read or self.is_freeing else self.session
        self.is_stop = what in _STOPPING

    def stop(self) -> None:
        """Have it end here: another node answers it."""
        self.is_stopped = True
        if self.scope is not None:
            self.scope.cancel()


@attrs.define(eq=False)
class Telling:
    """Tells the answer to a request, in pieces: see `Tell`."""

    work: _Work
    link: BrokerLink
    figures: NodeFigures
    is_held: Callable[[], bool]
    """Tells whether another node is to have the partition."""
    is_sending: bool = False
    """True while the broker has not confirmed a piece that nobody waits for."""

    async def __call__(
        self,
        status: int,
        data: bytes,
        is_last: bool,  # noqa: FBT001 - as `Tell`
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        work = self.work
        if work.number == 0 and is_last and has_moved(status, data):
            work.has_moved = True
            return
        piece = self._piece(status, data, headers, is_last=is_last)
        if (work.is_read and not is_last) or (work.is_stop and is_last and self.is_held()):
            work.delivery.acknowledge()  # a stream has no end; a stop that was done may not stop what the next node runs
        if piece.number == 0 and not work.is_read:
            self.figures.note_answer(status, self.figures.now() - work.came_at)
        if not (is_last and self.send_last(piece)):
            await self.send(piece)

    def send_last(self, piece: AnswerPiece) -> bool:
        """Send the last piece if it goes at once, and have the request acknowledged when the broker has it."""
        self.work.is_confirming = not self.is_sending and self._send_now(piece)
        return self.work.is_confirming

    async def send(self, piece: AnswerPiece) -> None:
        """Send a piece, and wait until the broker has it."""
        begun = self.figures.now()
        try:
            await send_back(self.link, self.work.delivery, piece, priority=USER)
            self.figures.note_told(self.figures.now() - begun)
        except (Unroutable, BrokerLost, ChannelClosed, NotConfirmed) as error:
            self.work.gone.set()
            raise _CannotTell from error

    def now(self, data: bytes) -> bool:
        if self.is_sending:
            return False
        work, number = self.work, self.work.number
        if not self._send_now(self._piece(_OK, data, NO_HEADERS, is_last=False)):
            work.number = number
        return self.is_sending

    def _send_now(self, piece: AnswerPiece) -> bool:
        work, sent = self.work, _Sent(self, self.figures.now())
        about = _about(work.delivery, USER)
        try:
            self.is_sending = self.link.publish_now(work.place[0], encode_message(piece), about, sent)
        except UsageError:  # it is too long: its own task hears of that
            return False
        return self.is_sending

    def _piece(self, status: int, data: bytes, headers: Mapping[str, str], *, is_last: bool) -> AnswerPiece:
        work = self.work
        piece = AnswerPiece(
            id=work.asked.id,
            number=work.number,
            status=status,
            data=data,
            is_last=is_last,
            headers=NO_HEADERS if work.number else headers,
            is_repeated=is_repeated(work.delivery),
        )
        work.number += 1
        return piece


@attrs.frozen(eq=False)
class _Sent:
    """A piece that nobody waits for; hears what the broker says of it."""

    telling: Telling
    begun: float

    def fulfil(self, _: None) -> None:
        self.telling.is_sending = False
        self.telling.figures.note_told(self.telling.figures.now() - self.begun)
        if self.telling.work.is_confirming:
            self.telling.work.delivery.acknowledge()

    def fail(self, error: Callable[[], Exception]) -> None:
        self.telling.is_sending = False
        self.telling.work.gone.set()
        if self.telling.work.is_confirming and isinstance(error(), Unroutable | NotConfirmed):
            self.telling.work.delivery.acknowledge()  # else it is the broker that is lost, and it comes again


class Requests:
    """The requests of one partition, or of the queue of all nodes."""

    def __init__(
        self,
        link: BrokerLink,
        application: WiredApplication,
        quarantine: Quarantine,
        start: Starter,
        figures: NodeFigures,
        *,
        workers: "RequestWorkers",
        queue: str = "",
        judge: Judge | None = None,
    ) -> None:
        self._queue = queue
        """Where they come from."""
        self._judge = judge
        """None for a partition: who takes it knows whether its last owner has died."""
        self._has_died = False
        """True for a partition whose last owner has died: what was delivered before may have been at it."""
        self._given_back: set[tuple[str, str]] = set()
        """Those that this node itself has put back into their queue."""
        self._tried: dict[tuple[str, str], trio.Event] = {}
        """Those that are begun alone, with what is set when they have ended."""
        self._figures = figures
        self._link, self._application = link, application
        self._quarantine, self._start, self._workers = quarantine, start, workers
        self._waiting: list[_Work] | None = []
        """Until the partition is served; None: it is."""
        self._is_held = False
        """True: another node is to have it, as soon as the turns here have ended."""
        self._running: dict[tuple[str, str], _Work] = {}
        self._dropped: dict[tuple[str, str], None] = {}
        """Those that nobody waits for any more, and that may still come: their drops overtake them."""
        self._lines = Counter[str]()
        """Requests at work by the sessions that they wait for."""

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting or ())

    def take(self, delivery: Delivery, asked: WireRequest) -> None:
        """A request came."""
        work = _Work(delivery, asked, self._figures.now())
        if self._waiting is None or (self._is_held and work.is_freeing):
            self._look_at(work)
        else:
            self._waiting.append(work)

    def drop(self, place: tuple[str, str]) -> None:
        """Nobody reads the answer to a request any more."""
        work = self._running.get(place)
        if work is not None:
            work.gone.set()
            return
        self._dropped[place] = None
        if len(self._dropped) > DROPS:
            del self._dropped[next(iter(self._dropped))]

    def open(self, *, has_died: bool = False) -> None:
        """The partition is served from now on; `has_died`: its last owner has not given it back."""
        waiting, self._waiting, self._is_held, self._has_died = self._waiting, None, False, has_died
        for work in waiting or ():
            self._look_at(work)

    def close(self) -> None:
        """The partition is not served any more: what runs ends here, and the broker gives it to another node."""
        self._waiting, self._is_held = [], False
        self._given_back.clear()
        self._dropped.clear()  # what they are about goes to another node, too
        for work in self._running.values():
            work.stop()

    def hold(self) -> None:
        """Begin nothing more but what turns may wait for, or what stops them; what runs goes on. The rest goes to the next owner when it is closed."""
        self._waiting, self._is_held = self._waiting or [], True

    # --- one request ---------------------------------------------------------------------

    def _look_at(self, work: _Work) -> None:
        """Begin a request, unless a node may have died of it."""
        if not work.delivery.redelivered:
            self._begin(work)
        elif work.place in self._given_back:
            self._given_back.discard(work.place)
            self._begin(work)
        elif self._judge is None and not self._has_died:
            self._begin(work)
        else:
            self._running[work.place] = work
            self._start(self._suspect, work)

    def _begin(self, work: _Work) -> None:
        if work.place in self._dropped:
            del self._dropped[work.place]
            if work.is_read:
                work.delivery.acknowledge()
                return
        if (line := work.line) and self._lines[line] >= MOST:
            self._start(self._refuse, work, _BUSY)
            self._note_tried(work)
            return
        self._running[work.place] = work
        self._lines[line] += 1
        self._workers.start_soon(self, work)

    async def _suspect(self, work: _Work) -> None:
        """Some node had this request: where it has died, have it begun with that noted, alone, or by nobody any more.

        Where its session is a suspect, nodes have died of what that had accepted: the request waits for its trial.
        """
        has_died = False
        with trio.CancelScope() as scope:
            work.scope = scope
            if not self._quarantine.is_withheld(work.session):
                has_died = self._judge is None or await self._judge(work.came_at)
            if has_died:
                await self._count(work)
        if self._running.get(work.place) is work:
            del self._running[work.place]
        if not (has_died or scope.cancelled_caught):
            work.scope = None
            self._begin(work)

    async def _count(self, work: _Work) -> None:
        deaths, is_shared = deaths_of(work.delivery) + 1, self._judge is not None
        if is_alone(work.delivery) or (is_shared and deaths >= MOST_DEATHS):
            await self._give_up(work, deaths)
        elif deaths >= MOST_DEATHS:
            await self._try_alone(work)
        else:
            await self._put_again(work)

    async def _try_alone(self, work: _Work) -> None:
        """Have a request begun while no other one is begun of which a node may have died; if the node dies, it was this one."""
        async with self._quarantine.alone:
            done = self._tried[work.place] = trio.Event()
            try:
                if await self._put_again(work, alone=True):
                    with trio.move_on_after(TRIED):
                        await done.wait()
            finally:
                del self._tried[work.place]

    def _note_tried(self, work: _Work) -> None:
        if (done := self._tried.get(work.place)) is not None:
            done.set()

    async def _put_again(self, work: _Work, *, alone: bool = False) -> bool:
        """Put a request into its queue again, with one death more noted; returns False if that cannot be done now."""
        about = with_death(work.delivery, alone=alone)
        try:
            await self._link.publish(self._queue, work.delivery.body, about)
        except (Unroutable, NotConfirmed):
            await trio.sleep(AGAIN)
            work.delivery.requeue()
            return False
        except BROKEN:  # it is not acknowledged, and comes again
            return False
        work.delivery.acknowledge()
        return True

    async def _give_up(self, work: _Work, deaths: int) -> None:
        """Refuse a request that kills its nodes; one that a person can send again is kept for that."""
        words = f"{deaths} {_KILLED}"
        _log.error("request %s is refused: %s", Each(work.asked.path), words)
        if self._judge is None and not await self._quarantine.bury_request(work.asked, words):
            await trio.sleep(AGAIN)
            work.delivery.requeue()
            return
        await self._refuse(work, Problem(POISON, words))

    async def _refuse(self, work: _Work, problem: Problem) -> None:
        """Answer a request of which nothing was done."""
        with suppress(_CannotTell):
            data = orjson.dumps(problem.document(new_id()))
            await self._telling(work)(problem.status, data, is_last=True)
        if not work.is_confirming:
            work.delivery.acknowledge()

    async def run(self, work: _Work, scope: trio.CancelScope) -> None:
        """Answer a request, unless the scope is cancelled; `finish` comes behind it."""
        work.scope = scope
        if work.is_read and work.session:
            work.delivery.acknowledge()
        if work.is_stopped:
            scope.cancel()
        try:
            await self._quarantine.wait(work.session)
            await self._application.answer(_of(work.asked), self._telling(work), work.gone)
        except* _CannotTell:  # from a nursery of the endpoint's it comes in a group
            pass
        except* Exception:  # noqa: BLE001 - the edge: what a stream raises that has begun
            _log.exception("request %s failed", Each(work.asked.id))
            work.has_moved = True
        work.is_answered = True

    async def finish(self, work: _Work) -> None:
        """Acknowledge a request that was answered, unless that is left to the broker's word; others go to who is to answer them."""
        self.leave(work)
        if work.has_moved or not work.is_answered:
            await self._cut(work)
        elif not work.is_confirming:
            work.delivery.acknowledge()

    def leave(self, work: _Work) -> None:
        """A request is at work no more."""
        if self._running.get(work.place) is work:
            del self._running[work.place]
        self._leave_line(work.line)
        self._note_tried(work)

    def _telling(self, work: _Work) -> Telling:
        return Telling(work, self._link, self._figures, lambda: self._is_held)

    def _leave_line(self, line: str) -> None:
        left = self._lines[line] - 1
        if left:
            self._lines[line] = left
        else:
            del self._lines[line]

    async def _cut(self, work: _Work) -> None:
        """A session has another owner: who reads hears that, and what was to have an effect goes to that one."""
        if work.is_read:
            piece = AnswerPiece(id=work.asked.id, number=work.number, is_last=True)
            with suppress(Unroutable, BrokerLost, ChannelClosed, NotConfirmed):
                await send_back(self._link, work.delivery, piece, priority=CONTROL)
            work.delivery.acknowledge()
        elif not self._is_held:
            await trio.sleep(AGAIN)
            if not work.is_stopped:  # else it is its channel that gives it back, and other nodes may begin it
                self._given_back.add(work.place)
            work.delivery.requeue()


RequestWorkers = Workers[Requests, _Work]
"""What answers the requests of all partitions."""


def workers_of(nursery: trio.Nursery, timer: Timer) -> RequestWorkers:
    """Return workers of this nursery; the timer has to run."""
    return Workers(nursery, timer=timer, run=_run, finish=Requests.finish, abandon=_abandon)


async def _run(scope: trio.CancelScope, requests: Requests, work: _Work) -> None:
    await requests.run(work, scope)


async def _abandon(requests: Requests, work: _Work) -> None:
    """The node ends: the broker gives the request to another one."""
    requests.leave(work)


def _of(asked: WireRequest) -> WiredRequest:
    return WiredRequest(
        verb=asked.verb,
        path=asked.path,
        query=asked.query,
        headers=asked.headers,
        body=asked.body,
        owner=asked.owner,
        scopes=asked.scopes,
    )


async def send_back(link: BrokerLink, delivery: Delivery, message: Message, *, priority: int) -> None:
    """Send something to who asked, in the form of the question; raises as `BrokerLink.publish` does."""
    about = _about(delivery, priority)
    await link.publish(delivery.properties.reply_to or "", encode_message(message), about)


def _about(asked: Delivery, priority: int) -> commands.Basic.Properties:
    return properties(form=form_of(asked.properties), priority=priority)
