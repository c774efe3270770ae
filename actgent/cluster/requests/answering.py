"""The requests of a node: answered as soon as their partition is served here, and acknowledged when they are answered.

A request that only reads a session is acknowledged when it begins, since who asks can ask again, and is told when to: when
the session has another owner; unless that was so before, and a node may have died of it. Any other is acknowledged when the
broker has its answer: what had an effect the journal has by then, and a node that takes over finds its id there. Nobody waits
for that word of the broker's where the answer goes at once, but for what hears it, and acknowledges; and requests are answered
by workers, as turns are.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import orjson
import trio

from actgent.actors.timer import Timer
from actgent.actors.workers import Workers
from actgent.cluster.amqp import ChannelClosed, Delivery, NotConfirmed, Unroutable
from actgent.cluster.link import BrokerLink
from actgent.cluster.operations.figures import NodeFigures
from actgent.cluster.quarantine import Quarantine
from actgent.cluster.wire import CONTROL, DEATHS, AnswerPiece, WireRequest
from actgent.errors import BrokerLost
from actgent.messages import new_id
from actgent.support.logs import Each, logger_of
from actgent.web.problems import Problem
from actgent.web.server.wired import WiredApplication, WiredRequest

from .redelivery import Judge, Redeliveries
from .telling import CannotTell, Telling, send_back
from .work import AGAIN, RequestWork

MOST = 16
"""Requests of one session that may wait for their answers; the next one hears `busy`, and comes again."""
DROPS = 1000
"""Drops that came before their requests, of which a partition knows at most."""
_BUSY = Problem("busy", f"{MOST} requests of this session wait for their answers: send it again later")
_log = logger_of(__name__)
Starter = Callable[..., object]
"""Starts a task, as `nursery.start_soon`."""


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
        self._redeliveries = Redeliveries(link, quarantine, queue, judge, self._refuse, self._cut)
        self._figures = figures
        self._link, self._application = link, application
        self._quarantine, self._start, self._workers = quarantine, start, workers
        self._waiting: list[RequestWork] | None = []
        """Until the partition is served; None: it is."""
        self._is_held = False
        """True: another node is to have it, as soon as the turns here have ended."""
        self._running: dict[tuple[str, str], RequestWork] = {}
        self._looked_at: dict[RequestWork, trio.Event] = {}
        """Of those that may have killed a node, what is set when it is known what is to be done with them."""
        self._dropped: dict[tuple[str, str], None] = {}
        """Those that nobody waits for any more, and that may still come: their drops overtake them."""
        self._lines = Counter[str]()
        """Requests at work by the sessions that they wait for."""

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting or ())

    def take(self, delivery: Delivery, asked: WireRequest) -> None:
        """A request came."""
        work = RequestWork(delivery, asked, self._figures.now())
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

    def note_before(self, node: str) -> None:
        """The partition was this node's before."""
        self._redeliveries.before = node

    def open(self, *, has_died: bool = False) -> None:
        """The partition is served from now on; `has_died`: its last owner has not given it back."""
        waiting, self._waiting, self._is_held = self._waiting, None, False
        self._redeliveries.has_died = has_died
        for work in waiting or ():
            self._look_at(work)

    def close(self) -> None:
        """The partition is not served any more: what runs ends here, and the broker gives it to another node."""
        self._waiting, self._is_held = [], False
        self._redeliveries.forget()
        self._dropped.clear()  # what they are about goes to another node, too
        for work in self._running.values():
            work.stop()

    def hold(self) -> None:
        """Begin nothing more but what turns may wait for, or what stops them; what runs goes on. The rest goes to the next owner when it is closed."""
        self._waiting, self._is_held = self._waiting or [], True
        self._redeliveries.hold()

    async def wait_looked_at(self) -> None:
        """Wait until it is noted with each request that came again that a node may have died of it, or it is begun."""
        while self._looked_at:
            await next(iter(self._looked_at.values())).wait()

    # --- one request ---------------------------------------------------------------------

    def _look_at(self, work: RequestWork) -> None:
        """Begin a request, unless a node may have died of it."""
        delivery = work.delivery
        is_known = delivery.redelivered or delivery.properties.headers
        if is_known and self._redeliveries.may_have_killed(work):
            self._running[work.place], self._looked_at[work] = work, trio.Event()
            self._start(self._suspect, work)
        else:
            self._begin(work)

    def _begin(self, work: RequestWork) -> None:
        if work.place in self._dropped:
            del self._dropped[work.place]
            if work.is_read:
                work.delivery.acknowledge()
                return
        if (line := work.line) and self._lines[line] >= MOST:
            self._start(self._refuse, work, _BUSY)
            self._redeliveries.note_end(work)
            return
        self._running[work.place] = work
        self._lines[line] += 1
        self._workers.start_soon(self, work)

    async def _suspect(self, work: RequestWork) -> None:
        """A node may have died of a request: begin it only if that was not so."""
        may_begin = False
        with trio.CancelScope() as scope:
            work.scope = scope
            may_begin = await self._redeliveries.look_at(work)
        self._looked_at.pop(work).set()
        if self._running.get(work.place) is work:
            del self._running[work.place]
        if may_begin:
            work.scope = None
            self._begin(work)

    async def _refuse(self, work: RequestWork, problem: Problem) -> None:
        """Answer a request of which nothing was done."""
        with suppress(CannotTell):
            data = orjson.dumps(problem.document(new_id()))
            await self._telling(work)(problem.status, data, is_last=True)
        if not work.is_confirming:
            work.delivery.acknowledge()

    async def run(self, work: RequestWork, scope: trio.CancelScope) -> None:
        """Answer a request, unless the scope is cancelled; `finish` comes behind it."""
        work.scope = scope
        if work.is_read and work.session and DEATHS not in (work.delivery.properties.headers or ()):
            work.delivery.acknowledge()
        if work.is_stopped:
            scope.cancel()
        try:
            await self._quarantine.wait(work.session)
            await self._application.answer(_of(work.asked), self._telling(work), work.gone)
        except* CannotTell:  # from a nursery of the endpoint's it comes in a group
            pass
        except* Exception:  # noqa: BLE001 - the edge: what a stream raises that has begun
            _log.exception("request %s failed", Each(work.asked.id))
            work.has_moved = True
        work.is_answered = True

    async def finish(self, work: RequestWork) -> None:
        """Acknowledge a request that was answered, unless that is left to the broker's word; others go to who is to answer them."""
        self.leave(work)
        if work.has_moved or not work.is_answered:
            await self._cut(work)
        elif not work.is_confirming:
            work.delivery.acknowledge()

    def leave(self, work: RequestWork) -> None:
        """A request is at work no more."""
        if self._running.get(work.place) is work:
            del self._running[work.place]
        self._leave_line(work.line)
        self._redeliveries.note_end(work)

    def _telling(self, work: RequestWork) -> Telling:
        return Telling(work, self._link, self._figures, lambda: self._is_held, self._redeliveries.note_end)

    def _leave_line(self, line: str) -> None:
        left = self._lines[line] - 1
        if left:
            self._lines[line] = left
        else:
            del self._lines[line]

    async def _cut(self, work: RequestWork) -> None:
        """A session has another owner: who reads hears that, and what was to have an effect goes to that one."""
        if work.is_read:
            piece = AnswerPiece(id=work.asked.id, number=work.number, is_last=True)
            with suppress(Unroutable, BrokerLost, ChannelClosed, NotConfirmed):
                await send_back(self._link, work.delivery, piece, priority=CONTROL)
            work.delivery.acknowledge()
        elif not self._is_held:
            await trio.sleep(AGAIN)
            self._redeliveries.give_back(work)


RequestWorkers = Workers[Requests, RequestWork]
"""What answers the requests of all partitions."""


def workers_of(nursery: trio.Nursery, timer: Timer) -> RequestWorkers:
    """Return workers of this nursery; the timer has to run."""
    return Workers(nursery, timer=timer, run=_run, finish=Requests.finish, abandon=_abandon)


async def _run(scope: trio.CancelScope, requests: Requests, work: RequestWork) -> None:
    await requests.run(work, scope)


async def _abandon(requests: Requests, work: RequestWork) -> None:
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
