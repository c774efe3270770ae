"""Tasks between pools: requests to the owner of the session that answers, repeated until they are answered.

A request has the verb `ASK` or `CANCEL` at `/sessions/ID/task`, which only the relay listeners of nodes take; its body is a
`PoolTask` and its answer a `PoolReport`, both with their tags. A request that finds its session at work is answered after a
while, and sent again. The pools of one database share it, so a node reads the owners of another pool where it reads its own.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import quote

import attrs
import orjson
import trio

from actgent.client.http.forms import HTTPForm, refused
from actgent.client.transport import ConnectionLost
from actgent.errors import ActgentError, Fenced, InboxFull, JournalError, NotRunning, WireError
from actgent.errors.wording import safe_words
from actgent.messages import MEDIA_TAGS, PART_TAGS, Medium, Part
from actgent.runtime.delegation.pools import PoolReport, PoolTask, PoolTasks
from actgent.support.logs import Each, logger_of
from actgent.support.wire import Wire
from actgent.web.server.wired import Tell, WiredApplication, WiredRequest

from .directory import PoolDirectory
from .quarantine import POISON
from .relay_client import NodeTransport

ASK, CANCEL = "ASK", "CANCEL"
"""Verbs of requests for tasks: begin a task or wait for its report, and stop it."""
WAIT_SECONDS = 10.0
"""Seconds for which a node waits for the report of a task, before it answers that the task is at work."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
"""Seconds between two tries."""
_OK, _FIRST_ERROR, _UNAVAILABLE = 200, 400, 503
PoolMessage = PoolTask | PoolReport
_WIRE = Wire(
    {Medium: MEDIA_TAGS, Part: PART_TAGS, PoolMessage: {"pool_task": PoolTask, "pool_report": PoolReport}}
)
_log = logger_of(__name__)
FollowPool = Callable[[str], Awaitable[PoolDirectory | None]]
"""Returns the directory of a pool, which is kept current from then on; None if the database knows no such pool."""


class PoolUnknown(ConnectionLost):
    """No node of the pool has ever owned the partition of the session."""

    def __init__(self) -> None:
        super().__init__("no node of this pool has run yet", was_sent=False)


class PoolLinks:
    """The way of one node to other pools of its database."""

    def __init__(
        self,
        *,
        pool: str,
        node: str,
        follow: FollowPool,
        key: bytes,
        now: Callable[[], float],
        nursery: trio.Nursery,
    ) -> None:
        """Make links that read the owners of a pool from its first task on.

        Args:
            pool: Pool of this node.
            node: Name of this node, for whom the requests are.
            follow: Returns the directory of another pool.
            key: Cluster key.
            now: Unix time in seconds by the clock of the database.
            nursery: Keeps the transports.
        """
        self.pool = pool
        self._node, self._follow, self._key, self._now, self._nursery = node, follow, key, now, nursery
        self._known: dict[str, tuple[PoolDirectory, NodeTransport]] = {}

    async def ask(self, pool: str, task: PoolTask, *, patience: float) -> PoolReport:
        """See `Pools`."""
        until, pause = trio.current_time() + patience, FIRST_PAUSE_SECONDS
        while True:
            try:
                report = await self._try(pool, ASK, task)
            except PoolUnknown:
                if trio.current_time() > until:
                    raise NotRunning(f"{task.agent}@{pool}", pool=pool) from None
            except (ConnectionLost, JournalError) as error:
                _log.debug("pool %s is asked again: %s", Each(pool), error)
                until = trio.current_time() + patience
            else:
                if report.refused or report.answered is not None:
                    return report
                until, pause = trio.current_time() + patience, 0.0
            await trio.sleep(pause)
            pause = min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)

    async def cancel(self, pool: str, task: PoolTask) -> PoolReport:
        """See `Pools`."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                report = await self._try(pool, CANCEL, task)
            except PoolUnknown:
                return PoolReport(spent={})  # the task cannot have begun
            except (ConnectionLost, JournalError) as error:
                _log.debug("a task of pool %s is stopped again: %s", Each(pool), error)
            else:
                if report.refused or report.answered is not None:
                    return report
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _try(self, pool: str, verb: str, task: PoolTask) -> PoolReport:
        """Send a request once.

        Raises:
            PoolUnknown: No node of the pool has ever owned the session's partition.
            ConnectionLost: It may have arrived, or is to be sent again.
            JournalFailed: The database does not answer.
        """
        form = HTTPForm(
            verb=verb,
            path=f"/sessions/{quote(task.session_id, safe='')}/task",
            query="",
            headers={},
            body=_WIRE.encode([task], PoolMessage),
        )
        directory, transport = await self._find(pool)
        if not directory.owner_of(task.session_id).epoch:
            raise PoolUnknown
        status, data = await transport.exchange(
            form, session_id=task.session_id, owner=task.owner, seconds=WAIT_SECONDS
        )
        if status >= _FIRST_ERROR and (problem := refused(status, data)).kind == POISON:
            return PoolReport(refused=problem.detail)
        if status != _OK:
            raise ConnectionLost(f"a node answered {status}", was_sent=True)
        report = _read(data)
        if not isinstance(report, PoolReport):
            raise ConnectionLost("a node answered with another message", was_sent=True)
        return report

    async def _find(self, pool: str) -> tuple[PoolDirectory, NodeTransport]:
        """Return the owners of a pool's partitions and the way to its nodes.

        Raises:
            PoolUnknown: The database knows no such pool.
            JournalFailed: The database does not answer.
        """
        if pool not in self._known:
            directory = await self._follow(pool)
            if directory is None:
                raise PoolUnknown
            transport = NodeTransport(directory, key=self._key, now=self._now, owner=self._node)
            self._known[pool] = directory, transport
            self._nursery.start_soon(transport.run)
        return self._known[pool]


@attrs.frozen(kw_only=True, eq=False)
class PoolApplication(WiredApplication):
    """The gateway's endpoints, and the tasks of other pools, which only nodes send."""

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
            report = await what(task, wait=WAIT_SECONDS)
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
