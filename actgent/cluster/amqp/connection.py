"""A connection: one task reads, one writes, and whoever waits hears when it is lost."""

import functools
import heapq
import ssl
from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio
from pamqp import commands, heartbeat

from actgent.errors import BrokerLost, UsageError
from actgent.errors.printable import shown

from .awaited import Awaited
from .channel import Channel
from .content import encode_content
from .failures import ProtocolError
from .framing import AnyFrame, FrameReader, encode_frames
from .frequent import Whole

WAITING = 1_000_000
"""Bytes that wait to be sent, until whoever publishes waits, too."""
CHUNK = 1 << 16
"""Bytes that are read at once, at most."""
GOODBYE = 1.0
"""Seconds that the broker has to answer a goodbye."""
BROKEN = (OSError, ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What a stream raises that is lost."""


@attrs.frozen(kw_only=True)
class Agreed:
    """What broker and connection have agreed on."""

    place: str
    """The host and port, for errors."""
    frame_max: int
    channel_max: int
    heartbeat: float
    """Seconds; whoever hears nothing for twice as long takes the other one for dead."""
    product: str
    version: tuple[int, ...]
    """Of the broker's program."""


class Connection:
    """A connection to a broker; made by `open_connection`. Once it is lost all who wait, and all that is asked, get `BrokerLost`."""

    def __init__(self, stream: trio.abc.Stream, frames: FrameReader, agreed: Agreed) -> None:
        self.agreed = agreed
        self.frame_max = agreed.frame_max
        self._stream = stream
        self._frames = frames
        self._out = bytearray()
        self._has_out = trio.Event()
        self._writable = trio.Event()
        """Set while the broker takes messages, and not too much waits to be sent."""
        self._writable.set()
        self.is_blocked = False
        """True while the broker takes no messages, as it has no memory or disk for them."""
        self._channels: dict[int, Channel] = {}
        self._unused = iter(range(1, agreed.channel_max + 1))
        self._freed: list[int] = []
        self._lost: str | None = None
        self._end = Awaited[str]()
        self._goodbye = Awaited[None]()

    # --- channels ----------------------------------------------------------------------------

    async def open_channel(self, *, prefetch: int = 0, confirms: bool = False) -> Channel:
        """Open a line of work; `prefetch` bounds what each of its consumers gets and has not acknowledged.

        Raises:
            BrokerLost: the connection is lost.
            UsageError: all channels that the broker allows are open.
        """
        self._check()
        number = heapq.heappop(self._freed) if self._freed else next(self._unused, 0)
        if not number:
            raise UsageError(f"all {self.agreed.channel_max} channels of the connection are open: close some")
        channel = self._channels[number] = Channel(number, self, self._free)
        await channel.open(prefetch=prefetch, confirms=confirms)
        return channel

    def _free(self, number: int) -> None:
        del self._channels[number]
        heapq.heappush(self._freed, number)

    # --- out ---------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """True if a message would be sent now."""
        return self._writable.is_set() and self._lost is None

    async def wait_writable(self) -> None:
        """Wait until the broker takes messages, and not too much waits before; raises `BrokerLost`."""
        self._check()
        await trio.lowlevel.checkpoint()
        while not self._writable.is_set():
            await self._writable.wait()
        self._check()

    def send(self, channel: int, *frames: AnyFrame) -> None:
        """Hand whole frames over to be sent.

        Raises:
            BrokerLost: the connection is lost.
            UsageError: one of them holds what AMQP cannot carry.
        """
        self._check()
        try:
            data = encode_frames(channel, *frames)
        except ValueError as error:
            raise _not_carried(error) from error
        self.write(data)

    def send_content(
        self,
        channel: int,
        exchange: str,
        key: str,
        body: bytes,
        properties: commands.Basic.Properties,
        *,
        mandatory: bool,
    ) -> None:
        """Hand a message over to be sent; raises as `send`."""
        self._check()
        try:
            data = encode_content(
                channel, exchange, key, body, properties, mandatory=mandatory, frame_max=self.frame_max
            )
        except ValueError as error:
            raise _not_carried(error) from error
        self.write(data)

    def write(self, data: bytes) -> None:
        """Hand frames over to be sent that are bytes already; raises `BrokerLost`."""
        self._check()
        self._out += data
        self._has_out.set()
        if self.is_blocked or len(self._out) >= WAITING:
            self._look_writable()

    def _look_writable(self) -> None:
        if self.is_blocked or len(self._out) >= WAITING:
            if self._writable.is_set():
                self._writable = trio.Event()
        else:
            self._writable.set()

    async def _write(self) -> None:
        """Send what waits, and something at least twice a heartbeat."""
        while True:
            with trio.move_on_after(self.agreed.heartbeat / 2):
                await self._has_out.wait()
            data = bytes(self._out) or encode_frames(0, heartbeat.Heartbeat())
            self._out.clear()
            self._has_out = trio.Event()
            self._look_writable()
            await self._stream.send_all(data)

    # --- in ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Take what the broker says, until it says goodbye or nothing."""
        while True:
            data = None
            with trio.move_on_after(2 * self.agreed.heartbeat):
                data = await self._stream.receive_some(CHUNK)
            if data is None:
                self.lose(f"it has said nothing for {2 * self.agreed.heartbeat:g} s")
            elif not data:
                self.lose("it closed the connection")
            else:
                self.take(self._frames.feed_whole(data))
            if self._lost is not None:
                return

    def take(self, frames: Iterable[tuple[int, AnyFrame | Whole]]) -> None:
        """Frames came, or whole messages, each with its channel.

        Raises:
            ProtocolError: one of them is none that may come now.
        """
        for number, frame in frames:
            if self._lost is not None:  # also by the writer, while these were on their way
                return
            if number:
                self._take_for(number, frame)
            else:
                self._take_own(frame)

    def _take_for(self, number: int, frame: AnyFrame | Whole) -> None:
        channel = self._channels.get(number)
        if channel is None:
            raise ProtocolError(f"there is no channel {number}")
        channel.take(frame)

    def _take_own(self, frame: AnyFrame | Whole) -> None:
        if isinstance(frame, tuple):
            raise ProtocolError("a message is not for a connection")
        if isinstance(frame, commands.Connection.Blocked | commands.Connection.Unblocked):
            self.is_blocked = isinstance(frame, commands.Connection.Blocked)
            self._look_writable()
        elif isinstance(frame, commands.Connection.Close):
            self.send(0, commands.Connection.CloseOk())
            self.lose(f"{frame.reply_code} {shown(frame.reply_text)}")
        elif isinstance(frame, commands.Connection.CloseOk):
            self._goodbye.fulfil(None)
        elif not isinstance(frame, heartbeat.Heartbeat):
            raise ProtocolError(f"{frame.name} is not for a connection")

    # --- its life and end -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Read and write until the connection is lost, whatever ends the block meanwhile: the last frames have to go out."""
        with trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guard, self._read)
                nursery.start_soon(self._guard, self._write)
                await self.wait_lost()
                scope.cancel()

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ProtocolError as error:
            self.lose(f"it does not keep to AMQP: {error}")
        except BROKEN as error:
            self.lose(shown(words_of_loss(error)))

    async def wait_lost(self) -> str:
        """Wait until the connection is lost; returns why."""
        return await self._end.wait()

    def lose(self, why: str) -> None:
        """All that is asked from now on, and all who wait, hear that the broker is lost; the first reason stays."""
        if self._lost is not None:
            return
        self._lost = why
        error = functools.partial(BrokerLost, self.agreed.place, why)
        for channel in list(self._channels.values()):
            channel.fail(error)
        self._end.fulfil(why)
        self._goodbye.fulfil(None)
        self._writable.set()

    async def say_goodbye(self) -> None:
        """Send what waits, and close; the broker has a second for it."""
        if self._lost is None:
            self.send(0, commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
            with trio.move_on_after(GOODBYE, shield=True):
                await self._goodbye.wait()
        self.lose("it was closed here")

    def _check(self) -> None:
        if self._lost is not None:
            raise BrokerLost(self.agreed.place, self._lost)


def _not_carried(error: ValueError) -> UsageError:
    return UsageError(f"this is nothing that AMQP carries: {shown(error)}")


def words_of_loss(error: BaseException) -> str:
    """What an error of a stream says; trio's name their cause only."""
    cause = error.__cause__ if isinstance(error, (trio.BrokenResourceError, OSError)) else None
    if isinstance(cause, ExceptionGroup):  # one for each address of the host
        return "; ".join(
            dict.fromkeys(getattr(each, "strerror", None) or str(each) for each in cause.exceptions)
        )
    text = str(cause or error)
    if isinstance(cause or error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {text}"
    return text or type(error).__name__
