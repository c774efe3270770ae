"""How a portal is opened, in each world."""

import asyncio
from collections.abc import Generator, Iterable
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any

from actgent.actors.supervision import Supervision
from actgent.control.quotas import Quotas
from actgent.errors.printable import shown
from actgent.journal.base import Journal
from actgent.journal.wrapped import Redact
from actgent.runtime.retention import Retention
from actgent.runtime.runtime import THREAD_GRACE, Durability, Runtime, open_runtime
from actgent.support.hints import block
from actgent.support.leads import OF_RUNTIMES
from actgent.support.tracing import Tracing
from actgent.tools.threads import ALL_THREADS

from .blocking import Portal, end
from .cooperative import AsyncPortal, end_soon
from .thread import TrioThread


class PortalBlock:
    """A portal that is about to be opened, once: by `with`, `async with`, `await`, or `open()`."""

    def __init__(self, thread: TrioThread[Runtime]) -> None:
        self._thread = thread

    def open(self) -> Portal:
        """Open it for synchronous code, until `portal.close()` or the end of the program."""
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
            await asyncio.wait([asyncio.wrap_future(self._thread.ended)])
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
            await end_soon(self._thread, abort=error is not None)
        except Exception as raised:
            if error is None:
                raise
            _note(error, raised)


def _note(error: BaseException, raised: Exception) -> None:
    """Let the block's own exception come first."""
    error.add_note(f"then the portal ended with {type(raised).__name__}: {shown(raised)}")


@block(OF_RUNTIMES)
def open_portal(
    *,
    journal: str | Journal | None = None,
    durability: Durability = "full",
    redact: Redact | None = None,
    context: Iterable[ContextVar[Any]] = (),
    retention: Retention | None = None,
    quotas: Quotas | None = None,
    supervision: Supervision | None = None,
    threads: int = ALL_THREADS,
    thread_grace: float = THREAD_GRACE,
    telemetry: Tracing | None = None,
    broker: str | None = None,
    pool: str = "default",
    node: str | None = None,
) -> PortalBlock:
    """Open a runtime on trio in a thread of its own, for asyncio, notebooks, threads and synchronous code.

    `with open_portal() as portal` gives a `Portal`, whose methods wait; `async with open_portal() as portal`, in asyncio, an
    `AsyncPortal`, whose methods are awaited. `open_portal().open()` and `await open_portal()` do the same without a block,
    e.g. for a notebook, until `close()` or `aclose()`. All arguments are those of `open_runtime`.

    Leaving the block lets each agent end what it has accepted, for its `grace`; an exception, Ctrl-C or the end of the program
    stops them at once.

    Raises:
        UsageError: on opening, trio runs here: there take `open_runtime`.
        ActgentError: on opening, what `open_runtime` raises.
    """
    block = partial(
        open_runtime,
        journal=journal,
        durability=durability,
        redact=redact,
        context=context,
        retention=retention,
        quotas=quotas,
        supervision=supervision,
        threads=threads,
        thread_grace=thread_grace,
        telemetry=telemetry,
        broker=broker,
        pool=pool,
        node=node,
    )
    return PortalBlock(TrioThread(block))
