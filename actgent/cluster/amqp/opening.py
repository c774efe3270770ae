"""How a connection begins: which broker answers, who we are, and what is agreed on."""

import platform
import random
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

import trio
from pamqp import base, commands, header
from pamqp.common import FieldTable

from actgent.errors import BrokerLost, ConfigurationError
from actgent.errors.printable import quoted, shown

from .address import BrokerAddress
from .connection import BROKEN, CHUNK, Agreed, Connection, words_of_loss
from .failures import ProtocolError
from .framing import FIRST_MAX, AnyFrame, FrameReader, encode_frames

CONNECTING = 10.0
"""Seconds that one broker has from the first packet to the end of the greetings."""
HEARTBEAT = 2
"""Seconds; a broker says that a node is dead after about three of them."""
CHANNELS = 2047
"""Channels of a connection, at most, unless the broker wants fewer."""
ACCESS_REFUSED = 403
NOT_ALLOWED = 530
"""RabbitMQ's number where the user may not into the virtual host, or there is none."""
F = TypeVar("F", bound=base.Frame)


@asynccontextmanager
async def open_connection(
    address: BrokerAddress, *, name: str = "actgent", heartbeat: int = HEARTBEAT
) -> AsyncGenerator[Connection, None]:
    """A block with a connection to the first broker of the address that answers, beginning with any.

    Leaving it sends what waits, and closes. A connection that is lost does not end the block: what is asked of it raises.

    Raises:
        BrokerLost: none of them answers; the text says how each of them failed.
        ConfigurationError: the broker does not let this user in, or not into this virtual host.
    """
    stream, connection = await _reach_any(address, name, heartbeat)
    error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            try:
                yield connection
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
                error = raised
            with trio.CancelScope(shield=True):
                await connection.say_goodbye()
            nursery.cancel_scope.cancel()
    finally:
        connection.lose("its block was left")
        await trio.aclose_forcefully(stream)
    if error is not None:
        raise error


async def _reach_any(address: BrokerAddress, name: str, heartbeat: int) -> tuple[trio.abc.Stream, Connection]:
    """Try the brokers one after the other: not always the same one first, or it would have all the clients."""
    failures: list[str] = []
    for host, port in random.sample(address.hosts, len(address.hosts)):
        place = f"{host}:{port}"
        try:
            with trio.fail_after(CONNECTING):
                return await _reach(address, host, port, name, heartbeat)
        except trio.TooSlowError:
            failures.append(f"{place} has not answered within {CONNECTING:g} s")
        except (*BROKEN, ProtocolError) as error:
            failures.append(f"{place}: {shown(words_of_loss(error))}")
    places = ", ".join(f"{host}:{port}" for host, port in address.hosts)
    raise BrokerLost(
        places, f"{'; '.join(failures)}: look whether RabbitMQ runs there, and at the broker's address"
    )


async def _reach(
    address: BrokerAddress, host: str, port: int, name: str, heartbeat: int
) -> tuple[trio.abc.Stream, Connection]:
    stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)
    if address.tls is not None:
        stream = trio.SSLStream(stream, address.tls, server_hostname=host)
    try:
        greeting = _Greeting(stream, address, f"{host}:{port}")
        return stream, await greeting.run(name, heartbeat)
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


class _Greeting:
    """The first words of both sides, one after the other."""

    def __init__(self, stream: trio.abc.Stream, address: BrokerAddress, place: str) -> None:
        self._frames = FrameReader()
        self._stream = stream
        self._address = address
        self._place = place
        self._came: deque[tuple[int, AnyFrame]] = deque()

    async def run(self, name: str, heartbeat: int) -> Connection:
        await self._stream.send_all(header.ProtocolHeader().marshal())
        start = await self._expect(commands.Connection.Start)
        await self._say(self._introduce(name))
        tune = await self._expect(commands.Connection.Tune)
        agreed = self._agree(start, tune, heartbeat)
        beat = int(agreed.heartbeat)
        await self._say(commands.Connection.TuneOk(agreed.channel_max, agreed.frame_max, beat))
        await self._say(commands.Connection.Open(virtual_host=self._address.vhost))
        await self._expect(commands.Connection.OpenOk)
        self._frames.max_size = agreed.frame_max
        connection = Connection(self._stream, self._frames, agreed)
        connection.take(self._came)
        return connection

    def _introduce(self, name: str) -> commands.Connection.StartOk:
        capabilities: FieldTable = {
            "publisher_confirms": True,
            "basic.nack": True,
            "consumer_cancel_notify": True,
            "connection.blocked": True,
            "authentication_failure_close": True,
        }
        about: FieldTable = {
            "product": "actgent",
            "platform": f"Python {platform.python_version()}",
            "connection_name": name,
            "capabilities": capabilities,
        }
        login = f"\0{self._address.user}\0{self._address.password}"
        return commands.Connection.StartOk(client_properties=about, mechanism="PLAIN", response=login)

    def _agree(
        self, start: commands.Connection.Start, tune: commands.Connection.Tune, heartbeat: int
    ) -> Agreed:
        about = start.server_properties or {}
        version = str(about.get("version", "")).split(".")
        return Agreed(
            place=self._place,
            frame_max=min(tune.frame_max or FIRST_MAX, FIRST_MAX),
            channel_max=min(tune.channel_max or CHANNELS, CHANNELS),
            heartbeat=min(tune.heartbeat or heartbeat, heartbeat),
            product=shown(about.get("product", "")),
            version=tuple(int(each) for each in version if each.isascii() and each.isdigit()),
        )

    async def _say(self, frame: AnyFrame) -> None:
        await self._stream.send_all(encode_frames(0, frame))

    async def _expect(self, kind: type[F]) -> F:
        frame = await self._next()
        if isinstance(frame, commands.Connection.Close):
            self._refuse(frame)
        if not isinstance(frame, kind):
            raise ProtocolError(f"{frame.name} is no greeting")
        return frame

    async def _next(self) -> AnyFrame:
        while not self._came:
            data = await self._stream.receive_some(CHUNK)
            if not data:
                raise ProtocolError("it closed the connection in the middle of the greetings")
            self._came += self._frames.feed(data)
        return self._came.popleft()[1]

    def _refuse(self, frame: commands.Connection.Close) -> None:
        if frame.reply_code == ACCESS_REFUSED:
            raise ConfigurationError(
                f"the broker {self._place} does not let user {quoted(self._address.user)} in: name or password is wrong"
            )
        if frame.reply_code == NOT_ALLOWED:
            raise ConfigurationError(
                f"the broker {self._place} does not let user {quoted(self._address.user)} into the virtual host "
                f"{quoted(self._address.vhost)}, or has none of this name"
            )
        raise ProtocolError(f"{frame.reply_code} {frame.reply_text}")
