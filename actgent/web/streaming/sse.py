"""Server-sent events: encoding, the queue of one connection, and streaming responses.

A connection whose client reads too slowly receives `lagged` and is closed; the client reconnects with the last id that it
received. Producers never wait for clients: they write as many bytes to the socket as it accepts without blocking, and the
connection's own task sends the rest. Source: the HTML standard, section 9.2 (server-sent events).
"""

import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence, Set as AbstractSet
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import attrs
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope as ASGIScope, Send

from actgent.support.strict_json import encode_json
from actgent.web.server.http_request_framing import DIRECT, PLAIN, chunked

MAX_FRAMES = 1000
MAX_QUEUED_BYTES = 1_000_000
"""Maximum number of bytes queued for one connection."""
ALIVE_INTERVAL_SECONDS = 15.0
"""Seconds without events after which a stream sends a keep-alive comment."""
RETRY_MILLISECONDS = 1000
"""Milliseconds after which a client reconnects."""
ALIVE_FRAME = b": alive\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "x-accel-buffering": "no",
    "cache-control": "no-store",
}
T = TypeVar("T")
_random = random.Random()  # noqa: S311 - spreads clients over a second, and is no secret


def frame(name: str, data: Any, *, number: int | None = None, retry: int | None = None) -> bytes:
    """Encode one server-sent event.

    Args:
        name: Type of the event.
        data: JSON value of the event.
        number: Record number to send as the event's id, after which a client resumes; None sends no id.
        retry: Reconnection delay for the client in milliseconds; None keeps the client's delay.
    """
    head = f"event: {name}\n"
    if number is not None:
        head = f"id: {number}\n{head}"
    if retry is not None:
        head = f"retry: {retry}\n{head}"
    return head.encode() + b"data: " + encode_json(data) + b"\n\n"


def bye() -> bytes:
    """Return the encoded event `bye`, the last one of a closing server.

    It has a random reconnection delay, which spreads the reconnections of clients over a second.
    """
    return frame("bye", {}, retry=RETRY_MILLISECONDS + _random.randrange(1000))


class FrameBatch:
    """Frames (encoded events) that are sent together to any number of connections. They are joined and encoded once."""

    def __init__(self, frames: Sequence[tuple[int | None, bytes]]) -> None:
        """Args: `frames` are pairs of record number and encoded event, in ascending order; None for events without a record."""
        self.frames = frames
        self.data = b"".join([data for _, data in frames])
        """Bytes of all frames."""
        numbers = [number for number, _ in frames if number is not None]
        self.first: float = numbers[0] if numbers else math.inf
        """Lowest record number; infinity if no frame has a number."""
        self.last = numbers[-1] if numbers else 0
        """Highest record number; 0 if no frame has a number."""

    @cached_property
    def chunk(self) -> bytes:
        """Bytes of all frames as one chunk of a chunked HTTP response."""
        return chunked(self.data)

    def after(self, number: int) -> "FrameBatch":
        """Return a batch without the frames up to record `number`, which the reader has already received.

        Frames without a record number are not removed.
        """
        if self.first > number:
            return self
        return FrameBatch([each for each in self.frames if each[0] is None or each[0] > number])


ALIVE_BATCH = FrameBatch([(None, ALIVE_FRAME)])


class DirectConnection(Protocol):
    """Interface of a client connection that the HTTP server provides, to write to it without ASGI messages."""

    is_cut: bool
    """True if the connection was closed because the client read too slowly."""

    def send_now(self, data: bytes) -> int:
        """Send as many bytes as possible without blocking, and return their number."""

    async def send_all(self, data: bytes) -> None:
        """Send all bytes.

        Raises:
            trio.BrokenResourceError: The client disconnected or stopped reading.
            trio.ClosedResourceError: The connection was closed.
        """


class StreamWriter:
    """Writer of the body of one streamed response. It writes to the `DirectConnection` if there is one, else ASGI messages."""

    def __init__(
        self, send: Send, direct: DirectConnection | None = None, *, is_chunked: bool = True
    ) -> None:
        """Args: `is_chunked` is False if `direct` expects the plain body bytes instead of HTTP chunks."""
        self.is_cut = False
        """True if the stream was closed because the client read too slowly."""
        self._send = send
        self._direct = direct
        self._is_chunked = direct is not None and is_chunked

    def encode(self, batch: FrameBatch) -> bytes:
        """Return the bytes of a batch in the encoding that `write` and `write_now` expect."""
        return batch.chunk if self._is_chunked else batch.data

    def write_now(self, encoded: bytes) -> int:
        """Write as many bytes as possible without blocking, and return the number of written bytes."""
        return 0 if self._direct is None else self._direct.send_now(encoded)

    async def write(self, encoded: bytes) -> None:
        """Write all bytes.

        Raises:
            trio.BrokenResourceError: The client disconnected or stopped reading.
            trio.ClosedResourceError: The connection was closed.
        """
        if self._direct is not None:
            await self._direct.send_all(encoded)
        else:
            await self._send({"type": "http.response.body", "body": encoded, "more_body": True})

    async def __call__(self, data: bytes) -> None:
        """Encode bytes for this connection and write them; empty data is ignored."""
        if data:
            await self.write(chunked(data) if self._is_chunked else data)


class FrameQueue:
    """Queue of the frames to send to one connection."""

    def __init__(
        self,
        wire: StreamWriter,
        immediate: AbstractSet[str] | None = None,
        delayed: AbstractSet[str] | None = None,
    ) -> None:
        """Args: `immediate` are the names of events to send without delay, `delayed` the names of events to delay until the next of them."""
        self.immediate = immediate
        """Names of the events that are sent without delay; None means all."""
        self.accepted = None if immediate is None or delayed is None else immediate | delayed | {"closed"}
        """Names of all events that are sent; None means all."""
        self.is_live = False
        """False while the connection still reads older events from the journal; new frames are then ignored."""
        self.seen = 0
        """Number of the last record that was sent."""
        self.sent_at = trio.current_time()
        """Time of the last frame, by trio's clock."""
        self._wire = wire
        self._rest = b""
        """Bytes of a partly sent batch that were not sent yet."""
        self._waiting: deque[FrameBatch] = deque()
        self._count = self._size = 0
        self._is_closed = False
        self._changed: trio.Event | None = None
        """Event that wakes the task of the connection; None while the task is sending."""

    def wants(self, names: Collection[str]) -> bool:
        """Return True if the client wants one of these events without delay."""
        return self.immediate is None or not self.immediate.isdisjoint(names)

    def accepts(self, names: Collection[str]) -> bool:
        """Return True if the client subscribed to at least one of these event names."""
        return self.accepted is None or not self.accepted.isdisjoint(names)

    def put(self, batch: FrameBatch, now: float) -> bool:
        """Send a batch at once if the connection is idle, else queue the batch. Return False if the queue is closed.

        If the queue is full, a `lagged` event replaces its frames, and the stream is closed.
        """
        if not self.is_live or self._is_closed:
            return not self._is_closed
        self.sent_at = now
        if self._changed is not None:
            self._put_now(batch.after(self.seen))
            return True
        if self._count + len(batch.frames) > MAX_FRAMES or self._size + len(batch.data) > MAX_QUEUED_BYTES:
            self._waiting.clear()
            self._wire.is_cut = True
            self.close(frame("lagged", {}))
            return False
        self._enqueue(batch)
        return True

    def _put_now(self, batch: FrameBatch) -> None:
        """Send as much of a batch as possible to an idle connection without blocking. The connection's task sends the rest."""
        encoded = self._wire.encode(batch)
        sent = self._wire.write_now(encoded) if encoded else 0
        if sent:
            self.seen = max(self.seen, batch.last)
            self._rest = encoded[sent:]
        elif encoded:
            self._enqueue(batch)
        if self._rest:
            self._wake()

    def _enqueue(self, batch: FrameBatch) -> None:
        self._waiting.append(batch)
        self._count += len(batch.frames)
        self._size += len(batch.data)
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def keep_alive(self, now: float) -> None:
        """Send a keep-alive comment if the connection is idle, so that proxies do not close it."""
        if self._changed is not None:
            self.put(ALIVE_BATCH, now)

    def put_first(self, data: bytes) -> None:
        """Add a frame at the beginning of the queue."""
        if not self._is_closed:
            self._waiting.appendleft(FrameBatch([(None, data)]))

    def close(self, last: bytes = b"") -> None:
        """Queue a last frame, and close the queue. The stream ends after this frame."""
        if self._is_closed:
            return
        self._is_closed = True
        self._waiting.append(FrameBatch([(None, last)]))
        self._wake()

    async def pop_all(self) -> bytes | None:
        """Wait for frames, and return all queued frames as encoded bytes; None if the queue is closed and empty."""
        while not (self._waiting or self._rest):
            if self._is_closed:
                return None
            self._changed = trio.Event()
            try:
                await self._changed.wait()
            finally:
                self._changed = None
        batches = [batch.after(self.seen) for batch in self._waiting]
        self.seen = max([self.seen, *(batch.last for batch in batches)])
        encoded = self._rest + b"".join(map(self._wire.encode, batches))
        self._waiting.clear()
        self._rest, self._count, self._size = b"", 0, 0
        return encoded

    async def write_all(self) -> None:
        """Write queued frames to the connection until the queue is closed and empty."""
        while (data := await self.pop_all()) is not None:
            if data:  # empty if all frames were read from the journal before
                await self._wire.write(data)


Write = Callable[[bytes], Awaitable[None]]


@attrs.define(eq=False)
class StreamCounts:
    """Counts of the event streams of a gateway."""

    open: int = 0
    """Number of open streams."""
    cut: int = 0
    """Number of streams that were closed because their client read too slowly."""


class Streamed(Response):
    """HTTP response whose body is written while it is produced."""


class StreamedEvents(Streamed, Generic[T]):
    """HTTP response with server-sent events of type `T`. `run` writes them until the stream ends or the client disconnects."""

    def __init__(self, run: Callable[[StreamWriter], Awaitable[None]], counts: StreamCounts) -> None:
        super().__init__(status_code=200, headers=HEADERS)
        del self.headers["content-length"]  # the length of a stream is unknown
        self._run = run
        self._counts = counts

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        state = scope.get("state", {})
        chunked_way = state.get(DIRECT) if scope["http_version"] == "1.1" else None
        direct = chunked_way or state.get(PLAIN)
        wire, is_whole = StreamWriter(send, direct, is_chunked=chunked_way is not None), False

        async def run() -> None:
            nonlocal is_whole
            await self._run(wire)
            is_whole = True

        self._counts.open += 1
        try:
            await run_until_disconnect(receive, run)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client disconnected, or stopped reading for too long
        finally:
            self._counts.open -= 1
            self._counts.cut += wire.is_cut or (direct is not None and direct.is_cut)
        if is_whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class StreamedFile(Streamed):
    """HTTP response with a file of `size` bytes, which `run` writes as fast as the client reads."""

    media_type = "application/octet-stream"

    def __init__(self, run: Callable[[Write], Awaitable[None]], size: int) -> None:
        super().__init__(status_code=200, headers={"content-length": str(size)})
        self._run = run

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        async def run() -> None:
            await self._run(write)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await run_until_disconnect(receive, run)


async def _cancel_on_disconnect(receive: Receive, stream: trio.CancelScope) -> None:
    """Wait until the client disconnects, then cancel the scope `stream`."""
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.cancel()


async def run_until_disconnect(receive: Receive, work: Callable[[], Awaitable[T]]) -> T | None:
    """Run the function `work` and return its result. If the client disconnects first, cancel `work` and return None."""
    result: T | None = None
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_on_disconnect, receive, nursery.cancel_scope)
        try:
            result = await work()
        except Exception as raised:  # noqa: BLE001 - raised again below, not wrapped into a group
            error = raised
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
    return result
