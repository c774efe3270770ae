"""`open_portal`, and `PortalBlock`, the context manager that it returns."""

import asyncio
from collections.abc import Generator, Iterable
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any

from actgent.actors.supervision import Supervision
from actgent.errors.text_escaping import shown
from actgent.information_flow_labels import Policy
from actgent.journal.journal_interface import Journal
from actgent.journal.journal_wrappers import Redact
from actgent.limits_and_schedules.quotas import Quotas
from actgent.runtime.runtime import THREAD_GRACE_SECONDS, Durability, Runtime, open_runtime
from actgent.runtime.session_erasure import Retention
from actgent.support.common_mistake_hints import OF_RUNTIMES
from actgent.support.tracing_interface import Tracing
from actgent.support.unknown_name_hints import block_function
from actgent.tools.worker_threads import RUNTIME_THREADS

from .asyncio_portal import AsyncPortal, end_async
from .sync_portal import Portal, end
from .trio_thread import TrioThread


class PortalBlock:
    """Portal that is not open yet. Open it once, with `with`, `async with`, `await`, or `open()`."""

    def __init__(self, thread: TrioThread[Runtime]) -> None:
        self._thread = thread

    def open(self) -> Portal:
        """Open the portal for synchronous code, until `portal.close()` or the end of the program.

        Raises:
            UsageError: trio runs in this thread, or the portal was opened before.
        """
        self._thread.start()
        try:
            return Portal(self._thread)
        except BaseException:
            self._thread.close(abort=True)
            self._thread.ended.exception()
            self._thread.join()
            raise

    def __enter__(self) -> Portal:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            end(self._thread, abort=error is not None)
        except Exception as raised:
            if error is None:
                raise
            _note(error, raised)

    async def _open(self) -> AsyncPortal:
        self._thread.start()
        try:
            runtime = await asyncio.wrap_future(self._thread.opened)
        except BaseException:
            self._thread.close(abort=True)
            ended = asyncio.wrap_future(self._thread.ended)
            await asyncio.wait([ended])
            ended.exception()  # asyncio logs an exception that is never read, and `opened` has raised it already
            self._thread.join()
            raise
        return AsyncPortal(self._thread, runtime)

    def __await__(self) -> Generator[Any, None, AsyncPortal]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncPortal:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await end_async(self._thread, abort=error is not None)
        except Exception as raised:
            if error is None:
                raise
            _note(error, raised)


def _note(error: BaseException, raised: Exception) -> None:
    """Add the error of closing a portal as a note to `raised`, the exception that ended the portal's block."""
    error.add_note(f"then the portal ended with {type(raised).__name__}: {shown(raised)}")


@block_function(OF_RUNTIMES)
def open_portal(
    *,
    journal: str | Journal | None = None,
    durability: Durability = "full",
    redact: Redact | None = None,
    context: Iterable[ContextVar[Any]] = (),
    retention: Retention | None = None,
    index: bool = False,
    quotas: Quotas | None = None,
    supervision: Supervision | None = None,
    policy: Policy | None = None,
    max_threads: int = RUNTIME_THREADS,
    thread_grace: float = THREAD_GRACE_SECONDS,
    telemetry: Tracing | None = None,
    cluster: str | None = None,
    advertise: str | None = None,
    node: str | None = None,
) -> PortalBlock:
    """Open a runtime on trio in a background thread, for asyncio, notebooks, threads and synchronous code.

    `with open_portal() as portal` opens a `Portal`, whose methods block. In asyncio, `async with open_portal() as
    portal` opens an `AsyncPortal`, whose methods are awaited. `open_portal().open()` and `await open_portal()` open a
    portal without a block, e.g. in a notebook, until `close()` or `aclose()`. All arguments are those of
    `open_runtime`.

    Leaving the block finishes accepted messages, within each agent's `grace`. An exception, Ctrl-C or the end of the
    program stops the agents at once.

    Raises:
        UsageError: When the portal is opened: trio runs in this thread; use `open_runtime` there.
        ActgentError: When the portal is opened: an error of `open_runtime`.
    """
    block = partial(
        open_runtime,
        journal=journal,
        durability=durability,
        redact=redact,
        context=context,
        retention=retention,
        index=index,
        quotas=quotas,
        supervision=supervision,
        policy=policy,
        max_threads=max_threads,
        thread_grace=thread_grace,
        telemetry=telemetry,
        cluster=cluster,
        advertise=advertise,
        node=node,
    )
    return PortalBlock(TrioThread(block))
