"""The progress of the calls of one answer, on its way from their tools to who hears of it."""

from collections.abc import Awaitable, Callable

import attrs
import trio

from actgent.messages import CallProgress


@attrs.define(eq=False)
class ProgressBoard:
    """The latest progress of each call, until it is told. A tool never waits for who hears of it, nor is anything queued."""

    _tell: Callable[[CallProgress], Awaitable[object]]
    _latest: dict[str, CallProgress] = attrs.field(factory=dict, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _loop: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    def put(self, progress: CallProgress) -> None:
        """Take what a tool tells, in any thread; an older one of the call that was not told yet is dropped."""
        if self._is_closed:
            return
        self._latest[progress.call_id] = progress
        if trio.lowlevel.in_trio_task():
            self._wake.set()
        else:
            self._loop.run_sync_soon(self._set, idempotent=True)

    def _set(self) -> None:
        self._wake.set()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work, and tell what is put meanwhile; all of it is told when this returns."""
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_all)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - raised below, without the nursery's group
                failed = error
            finally:
                self._is_closed = True
                self._wake.set()
        if failed is not None:
            raise failed

    async def _tell_all(self) -> None:
        while True:
            await self._tell_latest()
            if self._is_closed:
                return
            await self._wake.wait()
            self._wake = trio.Event()

    async def _tell_latest(self) -> None:
        """Handlers are not cancelled: they are cut at their own timeout."""
        with trio.CancelScope(shield=True):
            while self._latest:
                for call_id in list(self._latest):
                    await self._tell(self._latest.pop(call_id))
