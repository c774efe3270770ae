"""A connection to the broker that comes back: what is built on it is built again on each new one."""

import random
from collections.abc import Awaitable, Callable

import trio
from pamqp import commands

from actgent.errors import BrokerLost, ConfigurationError
from actgent.support.logs import Each, logger_of

from .amqp import (
    BrokerAddress,
    Channel,
    ChannelClosed,
    Connection,
    ConsumerCancelled,
    Hearer,
    open_connection,
)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two tries."""
FIRST_TRIES = 5
"""How often the first connection is built where the broker says that a queue is not there, which is just being made or coming up."""
NOT_FOUND = 404
Build = Callable[[Connection], Awaitable[None]]
_random = random.Random()  # noqa: S311 - spreads clients over time, and is no secret
_log = logger_of(__name__)
BROKEN = (BrokerLost, ChannelClosed, ConsumerCancelled)
"""What ends a connection here; it is opened again."""


class BrokerLink:
    """The way of one process to its brokers."""

    def __init__(self, address: BrokerAddress, *, name: str) -> None:
        self.address = address
        self._name = name
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._is_up = trio.Event()
        self.connections = 0
        """The number of connections that were built."""

    def __repr__(self) -> str:
        return f"<BrokerLink to {self.address}, {'up' if self.is_up else 'down'}>"

    @property
    def is_up(self) -> bool:
        """True while there is a connection on which all is built."""
        return self._is_up.is_set()

    async def run(
        self,
        build: Build,
        on_lost: Callable[[], object] = lambda: None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Hold a connection, and another one when it is lost; `build` sets up what is needed on each, and returns.

        `on_lost` hears of each that is lost after that.

        Raises:
            BrokerLost, ConfigurationError, ChannelClosed: the first one cannot be opened.
        """
        pause, has_begun, tries = FIRST_PAUSE, False, 0
        while True:
            why: BaseException | str
            try:
                async with open_connection(self.address, name=self._name) as connection:
                    await self._build(connection, build)
                    pause = FIRST_PAUSE
                    if not has_begun:
                        has_begun = True
                        task_status.started()
                    why = await connection.wait_lost()
            except (*BROKEN, ConfigurationError) as error:
                tries += 1
                if not has_begun and (not _may_pass(error) or tries == FIRST_TRIES):
                    raise
                why = error
            finally:
                if self._lose():
                    on_lost()
            _log.warning("the broker is lost: %s", Each(str(why)))
            await trio.sleep(pause * _random.uniform(0.75, 1.25))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _build(self, connection: Connection, build: Build) -> None:
        self._connection, self._channel = connection, await connection.open_channel(confirms=True)
        await build(connection)
        self.connections += 1
        self._is_up.set()

    def _lose(self) -> bool:
        """There is no connection any more; returns False if there was none on which all was built."""
        self._connection = self._channel = None
        was_up = self.is_up
        if was_up:
            self._is_up = trio.Event()
        return was_up

    async def wait_up(self) -> None:
        """Wait for a connection on which all is built."""
        await self._is_up.wait()

    async def publish(
        self, key: str, body: bytes, properties: commands.Basic.Properties, *, exchange: str = ""
    ) -> None:
        """Send a message, and return when a queue has it; see `Channel.publish`.

        Raises:
            BrokerLost: there is no connection, or it is lost: nobody knows whether it arrived.
            Unroutable, NotConfirmed, ChannelClosed: see `Channel.publish`.
        """
        if self._channel is None:
            raise BrokerLost(str(self.address), "there is no connection now")
        try:
            await self._channel.publish(key, body, properties, exchange=exchange)
        except ChannelClosed as error:
            self.break_off(str(error))
            raise

    def publish_now(
        self, key: str, body: bytes, properties: commands.Basic.Properties, hearer: Hearer
    ) -> bool:
        """Send a message if it goes at once; see `Channel.publish_now`."""
        return self._channel is not None and self._channel.publish_now(key, body, properties, hearer)

    def break_off(self, why: str) -> None:
        """Give the connection up, as something on it has ended that was to last; another one is opened."""
        if self._connection is not None:
            self._connection.lose(why)


def _may_pass(error: BaseException) -> bool:
    """Return True for what RabbitMQ says of a durable queue whose home is down or not up yet, as while several nodes begin at once."""
    return isinstance(error, ChannelClosed) and error.code == NOT_FOUND
