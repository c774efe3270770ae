"""Requests that some node had before: perhaps it has died of them.

Where it has, the death is noted with the request, which goes into its queue again: what counts is there, whichever node is next.
After a second death it is begun while no other one is of which a node may have died; if the node dies even so, it was this one.
"""

from collections.abc import Awaitable, Callable

import attrs
import trio

from actgent.cluster.amqp import NotConfirmed, Unroutable
from actgent.cluster.link import BROKEN, BrokerLink
from actgent.cluster.quarantine import POISON, Quarantine
from actgent.cluster.wire import deaths_of, was_alone, with_death
from actgent.errors import JournalFailed
from actgent.support.logs import Each, logger_of
from actgent.web.problems import Problem

from .work import AGAIN, RequestWork

MOST_DEATHS = 2
"""Nodes that may die while they have one request; then nobody begins it any more beside others, and nobody at all one of the queue of all nodes."""
TRIED = 5.0
"""Seconds for which a request is watched that was begun alone; then the next one is begun beside it."""
TAKEN = 5.0
"""Seconds in which a broker takes a request into its queue again; one that takes nothing now is not waited for while others wait here."""
NOTED = 1000
"""Requests with deaths of which a partition knows at most."""
_KILLED = "nodes have gone that were to answer it, so that no other one begins with it: look why"
_log = logger_of(__name__)
Judge = Callable[[float], Awaitable[bool]]
"""Finds out whether a node has died not long before a time."""
LeadOn = Callable[[RequestWork], Awaitable[None]]
"""Has whoever reads ask again."""
Refuse = Callable[[RequestWork, Problem], Awaitable[None]]
"""Answers a request of which nothing was done."""


@attrs.define(eq=False)
class Redeliveries:
    """What has come into one queue again."""

    _link: BrokerLink
    _quarantine: Quarantine
    _queue: str
    """Where it comes from."""
    _judge: Judge | None
    """None for a partition: who takes it knows whether its last owner has died."""
    _refuse: Refuse
    _lead_on: LeadOn
    has_died: bool = False
    """True for a partition whose last owner has died: what was delivered before may have been at it."""
    before: str = ""
    """The last owner of a partition, by its name."""
    _given_back: set[tuple[str, str]] = attrs.field(init=False, factory=set)
    """What this node itself has put back into the queue."""
    _tried: dict[tuple[str, str], trio.Event] = attrs.field(init=False, factory=dict)
    """What is begun alone, with what is set when it has ended."""
    _deaths: dict[tuple[str, str], int] = attrs.field(init=False, factory=dict)
    """How many have been noted with what came, at most: it comes twice where a node dies of it before its acknowledgement has gone."""
    _is_held: bool = attrs.field(init=False, default=False)
    """True: another node is about to have the queue."""
    _queueing: set[trio.CancelScope] = attrs.field(init=False, factory=set)
    """What ends the waiting of those that are to be begun alone."""

    def forget(self) -> None:
        """The queue is another node's: what comes from there again, that one has had."""
        self._is_held = False
        self._given_back.clear()
        self._deaths.clear()

    def hold(self) -> None:
        """The queue is about to be another node's, which knows of no death before: all are noted, and nothing is begun alone here."""
        self._is_held = True
        for scope in self._queueing:
            scope.cancel()

    def give_back(self, work: RequestWork) -> None:
        """Have a request come again: to this node, unless the queue is another one's by then."""
        if not work.is_stopped:  # else it is its channel that gives it back, and other nodes may begin it
            self._given_back.add(work.place)
        work.delivery.requeue()

    def note_end(self, work: RequestWork) -> None:
        """A request that was begun has ended, or is a stream that tells something by now: the next one may be begun alone."""
        if (done := self._tried.get(work.place)) is not None:
            done.set()

    def may_have_killed(self, work: RequestWork) -> bool:
        """Return True if a node may have died of a request that has come, perhaps again; asked once each time."""
        self._note_deaths(work)
        if not work.delivery.redelivered:
            return False
        if work.place in self._given_back:
            self._given_back.discard(work.place)
            return False
        return self._judge is not None or self.has_died

    def _note_deaths(self, work: RequestWork) -> None:
        if deaths := deaths_of(work.delivery):
            self._deaths[work.place] = max(deaths, self._deaths.get(work.place, 0))
            if len(self._deaths) > NOTED:
                del self._deaths[next(iter(self._deaths))]

    async def look_at(self, work: RequestWork) -> bool:
        """Return True if a request may be begun; if its node has died of it, it is put again, begun alone, or refused.

        A death is counted once: with the session, where that has accepted what the request says, or is tried alone.
        """
        if self._quarantine.is_blamed(work.session):
            return True
        if self._judge is not None and not await self._judge(work.came_at):
            return True
        if self._judge is None and work.is_read and not deaths_of(work.delivery):
            await self._lead_on(work)  # they say with the next one that a node has gone
            return False
        try:
            if not work.is_read and await self._quarantine.has_accepted(work.asked):
                return True
        except JournalFailed:
            await self._return(work)
            return False
        await self._count(work)
        return False

    async def _count(self, work: RequestWork) -> None:
        deaths, is_shared = deaths_of(work.delivery) + 1, self._judge is not None
        is_twice = self._deaths.get(work.place, 0) >= deaths  # it was put again, and is here as that, too
        if is_twice or (work.is_read and work.gone.is_set()):
            work.delivery.acknowledge()
        elif was_alone(work.delivery, self.before) or (is_shared and deaths >= MOST_DEATHS):
            await self._give_up(work, deaths)
        elif deaths >= MOST_DEATHS and await self._queue_alone(work):
            await self._try_alone(work)
        else:
            await self._put_again(work)

    async def _queue_alone(self, work: RequestWork) -> bool:
        """Wait until a request may be begun alone, which holds `Quarantine.alone` from then on; False if its next owner is to do that.

        Not while it would only wait for its session, of which the node may die as well.
        """
        with trio.CancelScope() as scope:
            self._queueing.add(scope)
            if self._is_held:
                scope.cancel()
            try:
                await self._quarantine.wait(work.session)
                await self._quarantine.alone.acquire()
            finally:
                self._queueing.discard(scope)
            return True
        return False

    async def _try_alone(self, work: RequestWork) -> None:
        """Have a request begun while no other one is begun of which a node may have died; if the node dies, it was this one."""
        done = self._tried[work.place] = trio.Event()
        try:
            if work.is_read and work.gone.is_set():  # it was asked for again meanwhile
                work.delivery.acknowledge()
            elif await self._put_again(work, alone=True):
                with trio.move_on_after(TRIED):
                    await done.wait()
        finally:
            del self._tried[work.place]
            self._quarantine.alone.release()

    async def _put_again(self, work: RequestWork, *, alone: bool = False) -> bool:
        """Put a request into its queue again, with one death more noted; returns False if that cannot be done now."""
        about = with_death(work.delivery, alone_at=self._quarantine.node if alone else "")
        try:
            with trio.fail_after(TAKEN):
                await self._link.publish(self._queue, work.delivery.body, about)
        except (Unroutable, NotConfirmed, trio.TooSlowError):
            await self._return(work)
            return False
        except BROKEN:  # it is not acknowledged, and comes again
            return False
        work.delivery.acknowledge()
        return True

    async def _give_up(self, work: RequestWork, deaths: int) -> None:
        """Refuse a request that kills its nodes; one that a person can send again is kept for that."""
        words = f"{deaths} {_KILLED}"
        _log.error("request %s is refused: %s", Each(work.asked.path), words)
        is_kept = self._judge is None and not work.is_read
        if is_kept and not await self._quarantine.bury_request(work.asked, words):
            await self._return(work)
            return
        await self._refuse(work, Problem(POISON, words))

    async def _return(self, work: RequestWork) -> None:
        """Have a request looked at again after a moment."""
        await trio.sleep(AGAIN)
        work.delivery.requeue()
