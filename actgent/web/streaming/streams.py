"""Server-sent events: pieces, what waits for one connection, and the answer that sends them.

A connection whose client reads too slowly is told `lagged` and ends; the client comes back with the number that it saw
last. Who produces events never waits: a piece goes to the socket of each reader at once, as far as that takes it, and what
is left waits for the reader's own task. Source: the HTML standard, section 9.2 (server-sent events).
"""

import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence, Set as AbstractSet
from functools import cached_property
from typing import Any, Protocol, TypeVar

import attrs
import orjson
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope as ASGIScope, Send

from actgent.web.server.framing import DIRECT, PLAIN, chunked

MAX_FRAMES = 1000
MAX_BYTES = 1_000_000
"""What waits for one connection at most."""
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


class Piece:
    """Frames that are sent together, to any number of readers: joined and encoded once."""

    def __init__(self, frames: Sequence[tuple[int | None, bytes]]) -> None:
        """Args: `frames` each have the number of their record, if they are of one; numbers rise."""
        self.frames = frames
        self.data = b"".join([data for _, data in frames])
        """All of it."""
        numbers = [number for number, _ in frames if number is not None]
        self.first: float = numbers[0] if numbers else math.inf
        """The lowest number; infinite where there is none."""
        self.last = numbers[-1] if numbers else 0
        """The highest number; 0 where there is none."""

    @cached_property
    def chunk(self) -> bytes:
        """All of it, as one chunk of an answer."""
        return chunked(self.data)

    def behind(self, number: int) -> "Piece":
        """As much of it as follows a number."""
        if self.first > number:
            return self
        return Piece([each for each in self.frames if each[0] is None or each[0] > number])


ALIVE_PIECE = Piece([(None, ALIVE_FRAME)])


class DirectWay(Protocol):
    """The way to one client, which a server gives to what writes a stream."""

    is_cut: bool
    """True: its client read too slowly."""

    def send_now(self, data: bytes) -> int:
        """Send what goes at once, and return how much that is."""

    async def send_all(self, data: bytes) -> None:
        """Send all of it; raises as `StreamWriter.write`."""


class StreamWriter:
    """Where one answer goes: straight to the client where the server gives a way, else message by message (ASGI)."""

    def __init__(self, send: Send, direct: DirectWay | None = None, *, is_chunked: bool = True) -> None:
        """Args: `is_chunked` is False for a way that takes what is written as it is, and no chunks of HTTP."""
        self.is_cut = False
        """True: its client read too slowly."""
        self._send = send
        self._direct = direct
        self._is_chunked = direct is not None and is_chunked

    def encoded(self, piece: Piece) -> bytes:
        """A piece as `write` and `write_now` take it."""
        return piece.chunk if self._is_chunked else piece.data

    def write_now(self, encoded: bytes) -> int:
        """Write as much as goes at once; returns how much that is."""
        return 0 if self._direct is None else self._direct.send_now(encoded)

    async def write(self, encoded: bytes) -> None:
        """Write all of it.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the client has gone, or takes nothing.
        """
        if self._direct is not None:
            await self._direct.send_all(encoded)
        else:
            await self._send({"type": "http.response.body", "body": encoded, "more_body": True})

    async def __call__(self, data: bytes) -> None:
        """Encode something for this connection alone, and write it."""
        if data:
            await self.write(chunked(data) if self._is_chunked else data)


class Frames:
    """What waits for one connection."""

    def __init__(
        self,
        wire: StreamWriter,
        wanted: AbstractSet[str] | None = None,
        along: AbstractSet[str] | None = None,
    ) -> None:
        """Args: `wanted` are those of `SessionReading`, as `along`."""
        self.wanted = wanted
        """The events that its client waits for, by their names; None: all of them."""
        self.told = None if wanted is None or along is None else wanted | along | {"closed"}
        """Those that it is told, and perhaps others; None: all of them."""
        self.is_live = False
        """False: it still reads what was before, and nothing is kept for it."""
        self.seen = 0
        """The number of the last record that it was sent."""
        self.told_at = trio.current_time()
        """When it was told something, by trio's clock."""
        self._wire = wire
        self._rest = b""
        """What its socket did not take of a piece."""
        self._waiting: deque[Piece] = deque()
        self._count = self._size = 0
        self._is_over = False
        self._changed: trio.Event | None = None
        """There while its task waits, and the connection is free."""

    def wants(self, names: Collection[str]) -> bool:
        """True if its client waits for one of these events."""
        return self.wanted is None or not self.wanted.isdisjoint(names)

    def is_told(self, names: Collection[str]) -> bool:
        """True if its client is told one of these events."""
        return self.told is None or not self.told.isdisjoint(names)

    def put(self, piece: Piece, now: float) -> bool:
        """Send a piece, or keep it; beyond what may wait, the connection is told that it lags, and ends.

        Returns False if it takes no more.
        """
        if not self.is_live or self._is_over:
            return not self._is_over
        self.told_at = now
        if self._changed is not None:
            self._put_now(piece.behind(self.seen))
            return True
        if self._count + len(piece.frames) > MAX_FRAMES or self._size + len(piece.data) > MAX_BYTES:
            self._waiting.clear()
            self._wire.is_cut = True
            self.end(frame("lagged", {}))
            return False
        self._keep(piece)
        return True

    def _put_now(self, piece: Piece) -> None:
        """Send a piece to a connection that is free; its task sends what is left."""
        encoded = self._wire.encoded(piece)
        sent = self._wire.write_now(encoded) if encoded else 0
        if sent:
            self.seen = max(self.seen, piece.last)
            self._rest = encoded[sent:]
        elif encoded:
            self._keep(piece)
        if self._rest:
            self._wake()

    def _keep(self, piece: Piece) -> None:
        self._waiting.append(piece)
        self._count += len(piece.frames)
        self._size += len(piece.data)
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def remind(self, now: float) -> None:
        """Say that the stream is there, unless something waits anyway."""
        if self._changed is not None:
            self.put(ALIVE_PIECE, now)

    def put_first(self, data: bytes) -> None:
        """Send this before all that waits."""
        if not self._is_over:
            self._waiting.appendleft(Piece([(None, data)]))

    def end(self, last: bytes = b"") -> None:
        """Send this last, and end."""
        if self._is_over:
            return
        self._is_over = True
        self._waiting.append(Piece([(None, last)]))
        self._wake()

    async def take(self) -> bytes | None:
        """All that waits, encoded; None at the end."""
        while not (self._waiting or self._rest):
            if self._is_over:
                return None
            self._changed = trio.Event()
            try:
                await self._changed.wait()
            finally:
                self._changed = None
        pieces = [piece.behind(self.seen) for piece in self._waiting]
        self.seen = max([self.seen, *(piece.last for piece in pieces)])
        taken = self._rest + b"".join(map(self._wire.encoded, pieces))
        self._waiting.clear()
        self._rest, self._count, self._size = b"", 0, 0
        return taken

    async def write_all(self) -> None:
        """Write what comes, to the end."""
        while (data := await self.take()) is not None:
            if data:  # all of it may have been read from the journal
                await self._wire.write(data)


Write = Callable[[bytes], Awaitable[None]]


@attrs.define(eq=False)
class StreamCounts:
    """The streams of a gateway."""

    open: int = 0
    cut: int = 0
    """Those that ended because their client read too slowly."""


class Streamed(Response):
    """An answer that is written piece by piece, and not known before."""


class StreamedEvents(Streamed):
    """An answer of events, which `run` writes until the stream is over or the client has gone."""

    def __init__(self, run: Callable[[StreamWriter], Awaitable[None]], counts: StreamCounts) -> None:
        super().__init__(status_code=200, headers=HEADERS)
        del self.headers["content-length"]  # nobody knows yet
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
            await unless_gone(receive, run)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has gone, or took nothing for too long
        finally:
            self._counts.open -= 1
            self._counts.cut += wire.is_cut or (direct is not None and direct.is_cut)
        if is_whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class StreamedFile(Streamed):
    """An answer of a known size that `run` writes piece by piece, as fast as the client takes it."""

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
        await unless_gone(receive, run)


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
