"""Server-sent events: frames, the queue of one connection, and the answer that sends them.

A connection whose client reads too slowly is told `lagged` and ends; the client comes back with the number that it saw
last. Who produces frames never waits. Source: the HTML standard, section 9.2 (server-sent events).
"""

import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope as ASGIScope, Send

MAX_FRAMES = 1000
MAX_BYTES = 1_000_000
"""What waits for one connection at most."""
TOGETHER = 0.05
"""Seconds in which what comes is sent together."""
ALIVE = 15.0
"""Seconds after which a stream in which nothing happens says that it is there."""
RETRY = 1000
"""Milliseconds after which a client comes back."""
ALIVE_FRAME = b": alive\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "x-accel-buffering": "no",
    "cache-control": "no-store",
}
T = TypeVar("T")
_random = random.Random()  # noqa: S311 - spreads clients over a second, and is no secret


def frame(name: str, data: Any, *, number: int | None = None, retry: int | None = None) -> bytes:
    """One event; with a number a client comes back behind it."""
    head = f"event: {name}\n"
    if number is not None:
        head = f"id: {number}\n{head}"
    if retry is not None:
        head = f"retry: {retry}\n{head}"
    return (
        head.encode() + b"data: " + orjson.dumps(data, default=repr, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"
    )


def bye() -> bytes:
    """The last event of a server that closes: clients come back spread over a second."""
    return frame("bye", {}, retry=RETRY + _random.randrange(1000))


class Frames:
    """What waits for one connection."""

    def __init__(self) -> None:
        self.is_live = False
        """False: it still reads what was before, and nothing is kept for it."""
        self.seen = 0
        """The number of the last record that it was sent."""
        self._waiting: deque[tuple[int | None, bytes]] = deque()
        self._size = 0
        self._is_over = False
        self._changed = trio.Event()
        self._pressing = trio.Event()

    def put(self, data: bytes, number: int | None = None) -> bool:
        """Keep a frame; beyond what may wait, the connection is told that it lags, and ends. Returns False if it takes no more."""
        if not self.is_live or self._is_over:
            return not self._is_over
        if len(self._waiting) >= MAX_FRAMES or self._size + len(data) > MAX_BYTES:
            self._waiting.clear()
            self._size = 0
            self.end(frame("lagged", {}))
            return False
        self._waiting.append((number, data))
        self._size += len(data)
        self._changed.set()
        if self._is_much:
            self._pressing.set()
        return True

    @property
    def _is_much(self) -> bool:
        """True if what waits is better sent than kept."""
        return self._is_over or 2 * self._size > MAX_BYTES or 2 * len(self._waiting) > MAX_FRAMES

    async def collect(self) -> None:
        """Let more come for a moment, so that it is sent together; much that waits, and the end, is not let wait."""
        self._pressing = trio.Event()
        if self._is_much:
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(TOGETHER):
            await self._pressing.wait()

    def put_first(self, data: bytes) -> None:
        """Send this before all that waits."""
        if not self._is_over:
            self._waiting.appendleft((None, data))
            self._changed.set()

    def end(self, last: bytes = b"") -> None:
        """Send this last, and end."""
        if self._is_over:
            return
        self._waiting.append((None, last))
        self._is_over = True
        self._changed.set()
        self._pressing.set()

    async def take(self) -> bytes | None:
        """All that waits, or a sign of life where nothing does for long; None at the end."""
        while not self._waiting:
            if self._is_over:
                return None
            self._changed = trio.Event()
            with trio.move_on_after(ALIVE) as limit:
                await self._changed.wait()
            if limit.cancelled_caught:
                return ALIVE_FRAME
        taken = b"".join(data for number, data in self._waiting if number is None or number > self.seen)
        self.seen = max([self.seen, *(number for number, _ in self._waiting if number is not None)])
        self._waiting.clear()
        self._size = 0
        return taken


Write = Callable[[bytes], Awaitable[None]]


class StreamedEvents(Response):
    """An answer of events, which `run` writes until the stream is over or the client has gone."""

    def __init__(self, run: Callable[[Write], Awaitable[None]]) -> None:
        super().__init__(status_code=200, headers=HEADERS)
        del self.headers["content-length"]  # nobody knows yet
        self._run = run

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, receive, nursery.cancel_scope)
            await self._run(write)
            nursery.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _watch(receive: Receive, stream: trio.CancelScope) -> None:
    """End a stream whose client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.cancel()


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[T]]) -> T | None:
    """Return what comes of some work; None where the client went meanwhile, by which it is stopped."""
    result: T | None = None
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, receive, nursery.cancel_scope)
        try:
            result = await work()
        except Exception as raised:  # noqa: BLE001 - raised again below, not wrapped into a group
            error = raised
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
    return result


async def write_all(frames: Frames, write: Write) -> None:
    """Write what comes, to the end: the first at once, and what follows soon in one piece with others."""
    while (data := await frames.take()) is not None:
        await write(data)
        await frames.collect()
