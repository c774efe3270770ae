"""Delivery of tool progress: tools report progress from any thread, and one task publishes the latest progress of each call."""

from collections.abc import Awaitable, Callable

import attrs
import trio

from actgent.messages import CallProgress
from actgent.support.attrs_class_repr import FieldRepr


@attrs.define(eq=False, repr=False)
class ProgressPublisher(FieldRepr):
    """Publishes the progress of tool calls. It buffers only the latest progress of each call, so a tool never waits."""

    _publish: Callable[[CallProgress], Awaitable[object]]
    _latest: dict[str, CallProgress] = attrs.field(factory=dict, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _loop: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    def put(self, progress: CallProgress) -> None:
        """Buffer the latest progress of a tool call for publication, in place of its older progress. Any thread may call this method.

        After the end of `run`, the progress is ignored.
        """
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
        """Await `work()` while a background task publishes progress. Return after all stored progress is published.

        An error of `work()` is raised after that, without an exception group.
        """
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish_all)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - raised again below, out of the nursery's exception group
                failed = error
            finally:
                self._is_closed = True
                self._wake.set()
        if failed is not None:
            raise failed

    async def _publish_all(self) -> None:
        while True:
            with trio.CancelScope(shield=True):  # handlers end at their own timeout
                while self._latest:
                    for call_id in list(self._latest):
                        await self._publish(self._latest.pop(call_id))
            if self._is_closed:
                return
            await self._wake.wait()
            self._wake = trio.Event()
