"""Delegation of tasks to agents of other pools: requests to the owner of the task's session, retried until answered.

A request has the verb `ASK` or `CANCEL` at `/sessions/ID/task`, which only the relay listeners of nodes accept. Its body is
a `PoolTask` and its answer a `PoolReport`, both tagged. While the task is running, a request is answered after
`WAIT_SECONDS`, and sent again. The pools share one database, in which a node also reads the owners of the other pools.
"""

from collections.abc import Callable
from urllib.parse import quote

import attrs
import orjson
import trio

from actgent.client.http.http_request import HTTPRequest, parse_problem
from actgent.client.request_sender import RetryBackoff
from actgent.client.transport_interface import ConnectionLost
from actgent.errors import (
    ActgentError,
    ConfigurationError,
    Fenced,
    InboxFull,
    JournalError,
    NotRunning,
    WireError,
)
from actgent.errors.safe_error_texts import model_error_text
from actgent.messages import MEDIA_TAGS, PART_TAGS, Medium, Part
from actgent.runtime.delegation.tasks_between_cluster_pools import PoolReport, PoolTask, PoolTasks
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.support.tagged_codec import TaggedCodec
from actgent.web.server.relayed_request_handler import RelayApplication, SendChunk
from actgent.web.server.request_relay import RelayedRequest

from .crashing_session_quarantine import POISON_KIND
from .relay_client import NodeTransport, open_pool_transport

ASK, CANCEL = "ASK", "CANCEL"
"""HTTP verbs of task requests: `ASK` starts a task or waits for its report, `CANCEL` stops it."""
WAIT_SECONDS = 10.0
"""Seconds for which a node waits for the report of a task before it answers that the task is running."""
MAX_PAUSE_SECONDS = 2.0
"""Longest pause in seconds between two tries."""
_OK, _FIRST_ERROR, _UNAVAILABLE = 200, 400, 503
PoolMessage = PoolTask | PoolReport
_WIRE = TaggedCodec(
    {Medium: MEDIA_TAGS, Part: PART_TAGS, PoolMessage: {"pool_task": PoolTask, "pool_report": PoolReport}}
)
_log = logger_of(__name__)


class PoolUnknown(ConnectionLost):
    """Raised if no node of the pool has ever owned the partition of the session."""

    def __init__(self) -> None:
        super().__init__("no node of this pool has run yet", was_sent=False)


class PoolLinks:
    """Client of one node for task requests to other pools of the same database."""

    def __init__(
        self,
        *,
        journal: str,
        pool: str,
        node: str,
        key: bytes,
        now: Callable[[], float],
        nursery: trio.Nursery,
    ) -> None:
        """Create links without connections. The owners of a pool are read from its first task on.

        Args:
            journal: Address of the database.
            pool: Name of this node's pool.
            node: Name of this node, used as the owner of its requests.
            key: Cluster key.
            now: Unix time in seconds by the clock of the database.
            nursery: Runs the background tasks of the transports to other pools.
        """
        self.pool = pool
        self._journal, self._node, self._key, self._now, self._nursery = journal, node, key, now, nursery
        self._known: dict[str, NodeTransport] = {}

    async def ask(self, pool: str, task: PoolTask, *, retry_timeout: float) -> PoolReport:
        """Run a task in another pool, and wait for its report. Repeat the request until the other pool answers.

        Raises:
            NotRunning: The pool has had no node for `retry_timeout` seconds.
        """
        report = await self._send(pool, ASK, task, retry_timeout)
        if report is None:
            raise NotRunning(f"{task.agent}@{pool}", pool=pool)
        return report

    async def cancel(self, pool: str, task: PoolTask) -> PoolReport:
        """Stop a task in another pool, and wait for its report. Retry until the pool answers."""
        report = await self._send(pool, CANCEL, task, 0.0)
        return (
            PoolReport(spent={}) if report is None else report
        )  # without a node, the task cannot have begun

    async def _send(self, pool: str, verb: str, task: PoolTask, retry_timeout: float) -> PoolReport | None:
        """Send a request about a task until it is answered, and return the report of the ended task. `verb` is `ASK` or `CANCEL`.

        Return None if the pool has had no node for `retry_timeout` seconds.
        """
        until, backoff = trio.current_time() + retry_timeout, RetryBackoff(max_pause=MAX_PAUSE_SECONDS)
        while True:
            try:
                report = await self._try(pool, verb, task)
            except PoolUnknown:
                if trio.current_time() >= until:
                    return None
            except (ConnectionLost, JournalError) as error:
                _log.debug("pool %s is asked again: %s", LogVariable(pool), error)
                until = trio.current_time() + retry_timeout
            else:
                if report.refused or report.answered is not None:
                    return report
                until = trio.current_time() + retry_timeout
                backoff.reset()
            await trio.sleep(backoff.next_pause())

    async def _try(self, pool: str, verb: str, task: PoolTask) -> PoolReport:
        """Send a request about a task once, and return the report.

        `verb` is `ASK` or `CANCEL`.

        Raises:
            PoolUnknown: No node of the pool has ever owned the session's partition.
            ConnectionLost: The answer is missing or unusable, so the request has to be sent again.
            JournalFailed: The database does not answer.
        """
        http_request = HTTPRequest(
            verb=verb,
            path=f"/sessions/{quote(task.session_id, safe='')}/task",
            query="",
            headers={},
            body=_WIRE.encode([task], PoolMessage),
        )
        transport = await self._find(pool)
        if not transport.directory.owner_of(task.session_id).epoch:
            raise PoolUnknown
        request = RelayedRequest(
            http_request=http_request, session_id=task.session_id, owner=task.owner, scopes=()
        )
        status, data = await transport.exchange(request, seconds=WAIT_SECONDS)
        if status >= _FIRST_ERROR and (problem := parse_problem(status, data)).kind == POISON_KIND:
            return PoolReport(refused=problem.detail)
        if status != _OK:
            raise ConnectionLost(f"a node answered {status}", was_sent=True)
        report = _read(data)
        if not isinstance(report, PoolReport):
            raise ConnectionLost(
                "a node answered with a message that is not a report of a task", was_sent=True
            )
        return report

    async def _find(self, pool: str) -> NodeTransport:
        """Return the transport to the nodes of a pool. It is opened at the first call.

        Raises:
            PoolUnknown: The database has no such pool.
            JournalFailed: The database does not answer.
        """
        if pool not in self._known:
            transport: NodeTransport | None = await self._nursery.start(self._keep_transport, pool)
            if transport is None:
                raise PoolUnknown
            self._known[pool] = transport
        return self._known[pool]

    async def _keep_transport(
        self, pool: str, *, task_status: trio.TaskStatus[NodeTransport | None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the transport to a pool open until cancelled, and report it as started. Report None if the pool is unknown."""
        opened = open_pool_transport(self._journal, pool, key=self._key, now=self._now, owner=self._node)
        try:
            async with opened as transport:
                task_status.started(transport)
                await trio.sleep_forever()
        except ConfigurationError:
            task_status.started(None)


@attrs.frozen(kw_only=True, eq=False)
class PoolApplication(RelayApplication):
    """The gateway's endpoints, and in addition task requests of other pools, which only nodes send."""

    tasks: PoolTasks

    async def answer(self, request: RelayedRequest, send: SendChunk, gone: trio.Event) -> None:
        if request.http_request.verb not in (ASK, CANCEL):
            await super().answer(request, send, gone)
            return
        status, data = await self._handle_task_request(request.http_request)
        await send(status, data, True, {})  # noqa: FBT003 - as `SendChunk` has it

    async def _handle_task_request(self, request: HTTPRequest) -> tuple[int, bytes]:
        """Run or stop the task in a request of another pool. Return the HTTP status and body of the answer."""
        try:
            task = _read(request.body or b"")
            if not isinstance(task, PoolTask):
                raise WireError("the body of the request must be a task")
            what = self.tasks.answer if request.verb == ASK else self.tasks.cancel
            report = await what(task, wait=WAIT_SECONDS)
        except Fenced:
            return _UNAVAILABLE, orjson.dumps({"moved": True})
        except (JournalError, InboxFull) as error:
            _log.warning("a task of another pool waits: %s", LogVariable(str(error)))
            return _UNAVAILABLE, b"{}"
        except ActgentError as error:
            report = PoolReport(refused=model_error_text(error))
        return _OK, _WIRE.encode([report], PoolMessage)


def _read(data: bytes) -> PoolMessage:
    """Decode the single task or report in the body of a request or answer.

    Raises:
        WireError: The data is not exactly one task or report, or was encoded by a newer release.
    """
    found = _WIRE.decode(data, PoolMessage)
    if len(found) != 1:
        raise WireError(f"{len(found)} tasks instead of one")
    message: PoolMessage = found[0]
    return message
