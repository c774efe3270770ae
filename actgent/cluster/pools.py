"""Tasks between pools: requests into the queue of the partition of the session that answers, repeated until they are answered.

A request is one of the kind `ASK` or `CANCEL` at `/sessions/ID/task`, which only a broker carries; its body is a `PoolTask`
and its answer a `PoolReport`, both with their tags. One that finds its session at work is answered after a while all the
same, and comes again.
"""

from collections.abc import Callable
from urllib.parse import quote

import attrs
import orjson
import trio

from actgent.client.http.forms import refused
from actgent.client.transport import ConnectionLost
from actgent.errors import (
    ActgentError,
    ConfigurationError,
    Fenced,
    InboxFull,
    JournalError,
    NotRunning,
    WireError,
)
from actgent.errors.wording import safe_words
from actgent.messages import MEDIA_TAGS, PART_TAGS, Medium, Part
from actgent.runtime.delegation.pools import PoolReport, PoolTask, PoolTasks
from actgent.support.logs import Each, logger_of
from actgent.support.wire import Wire
from actgent.web.server.wired import Tell, WiredApplication, WiredRequest

from .amqp import BrokerAddress
from .link import BROKEN, BrokerLink
from .quarantine import POISON
from .transport import BrokerTransport, NoQueue
from .wire import ASK, CANCEL, WireRequest

WAIT = 10.0
"""Seconds for which a node waits for what a task comes to, before it says that it is at work."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two tries."""
_OK, _FIRST_ERROR, _UNAVAILABLE = 200, 400, 503
PoolMessage = PoolTask | PoolReport
_WIRE = Wire(
    {Medium: MEDIA_TAGS, Part: PART_TAGS, PoolMessage: {"pool_task": PoolTask, "pool_report": PoolReport}}
)
_log = logger_of(__name__)


class PoolLinks:
    """The way of one node to other pools at its brokers: a connection for each of them, from its first task on."""

    def __init__(
        self, address: BrokerAddress, *, pool: str, node: str, nursery: Callable[[], trio.Nursery]
    ) -> None:
        """Args: `nursery` returns that of the node, once it runs."""
        self.pool = pool
        self._address, self._node, self._nursery = address, node, nursery
        self._transports: dict[str, BrokerTransport] = {}

    async def ask(self, pool: str, task: PoolTask, *, patience: float) -> PoolReport:
        """See `Pools`."""
        until, pause = trio.current_time() + patience, FIRST_PAUSE
        while True:
            try:
                report = await self._try(pool, ASK, task)
            except NoQueue:
                if trio.current_time() > until:
                    raise NotRunning(f"{task.agent}@{pool}", pool=pool) from None
            except (ConnectionLost, *BROKEN) as error:
                _log.debug("pool %s is asked again: %s", Each(pool), error)
            else:
                if report.refused or report.answered is not None:
                    return report
                pause = 0.0
            await trio.sleep(pause)
            pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)

    async def cancel(self, pool: str, task: PoolTask) -> PoolReport:
        """See `Pools`."""
        pause = FIRST_PAUSE
        while True:
            try:
                report = await self._try(pool, CANCEL, task)
            except NoQueue:
                return PoolReport(spent={})  # nobody was ever there to begin it
            except (ConnectionLost, *BROKEN) as error:
                _log.debug("a task of pool %s is stopped again: %s", Each(pool), error)
            else:
                if report.refused or report.answered is not None:
                    return report
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _try(self, pool: str, verb: str, task: PoolTask) -> PoolReport:
        """Say something once.

        Raises:
            ConnectionLost, BrokerLost: nobody knows whether it arrived, or it is to be said again.
        """
        asked = WireRequest(
            id="",
            verb=verb,
            path=f"/sessions/{quote(task.session_id, safe='')}/task",
            body=_WIRE.encode([task], PoolMessage),
            owner=task.owner,
            scopes=(),
        )
        status, data = await self._transport(pool).exchange(task.session_id, asked, seconds=WAIT)
        if status >= _FIRST_ERROR and (problem := refused(status, data)).kind == POISON:
            return PoolReport(refused=problem.detail)
        if status != _OK:
            raise ConnectionLost(f"a node answered {status}", was_sent=True)
        report = _read(data)
        if not isinstance(report, PoolReport):
            raise ConnectionLost("a node answered something else", was_sent=True)
        return report

    def _transport(self, pool: str) -> BrokerTransport:
        if pool not in self._transports:
            link = BrokerLink(self._address, name=f"{self._node} to pool {pool}")
            transport = self._transports[pool] = BrokerTransport(link, name="", pool=pool, owner=self._node)
            self._nursery().start_soon(self._hold, link, transport)
        return self._transports[pool]

    async def _hold(self, link: BrokerLink, transport: BrokerTransport) -> None:
        """Keep a connection, and try again where the first one cannot be opened."""

        async def build(connection: object) -> None:
            await transport.build(connection, self._nursery())  # type: ignore[arg-type]  # it is one

        while True:
            try:
                await link.run(build)
            except (*BROKEN, ConfigurationError) as error:
                _log.warning("there is no way to another pool: %s", Each(str(error)))
            await trio.sleep(LONGEST_PAUSE)


@attrs.frozen(kw_only=True, eq=False)
class PoolApplication(WiredApplication):
    """The gateway's endpoints, and the tasks of other pools, which come by the broker alone."""

    tasks: PoolTasks

    async def answer(self, request: WiredRequest, tell: Tell, gone: trio.Event) -> None:
        if request.verb not in (ASK, CANCEL):
            await super().answer(request, tell, gone)
            return
        status, data = await self._report(request)
        await tell(status, data, True, {})  # noqa: FBT003 - as `Tell` has it

    async def _report(self, request: WiredRequest) -> tuple[int, bytes]:
        try:
            task = _read(request.body)
            if not isinstance(task, PoolTask):
                raise WireError("a task belongs here")
            what = self.tasks.answer if request.verb == ASK else self.tasks.cancel
            report = await what(task, wait=WAIT)
        except Fenced:
            return _UNAVAILABLE, orjson.dumps({"moved": True})
        except (JournalError, InboxFull) as error:
            _log.warning("a task of another pool waits: %s", Each(str(error)))
            return _UNAVAILABLE, b"{}"
        except ActgentError as error:
            report = PoolReport(refused=safe_words(error))
        return _OK, _WIRE.encode([report], PoolMessage)


def _read(data: bytes) -> PoolMessage:
    """Read a task or what is known of one.

    Raises:
        WireError: it is neither, or of a newer release.
    """
    found = _WIRE.decode(data, PoolMessage)
    if len(found) != 1:
        raise WireError(f"{len(found)} tasks where one belongs")
    message: PoolMessage = found[0]
    return message
