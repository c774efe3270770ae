"""A broker on loopback, names of a test's own, and a way to the broker that can be cut, held up and encrypted."""

import itertools
import os
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
import trio

pytest.importorskip("pamqp", reason="the extra `cluster` is not installed")

from actgent.cluster.amqp import ChannelClosed, open_connection, parse_broker
from actgent.errors import BrokerLost, ConfigurationError

from . import certificates
from .services import make_broker, make_database

BROKER = "amqp://guest:guest@127.0.0.1:5672/"
_names = itertools.count()


@pytest.fixture
async def broker():
    """The address of RabbitMQ on loopback; skips where none lets us in."""
    try:
        async with open_connection(parse_broker(BROKER)):
            return BROKER
    except (BrokerLost, ConfigurationError) as error:
        pytest.skip(f"no RabbitMQ with its guest at 127.0.0.1:5672: {error}")


@pytest.fixture
async def connection(broker):
    """A connection to it."""
    async with open_connection(parse_broker(broker)) as opened:
        yield opened


@pytest.fixture
async def new_name(broker):
    """`new_name()`: the name of a queue of this test, which is deleted afterwards."""
    names = []

    def make():
        names.append(f"actgent.test-{os.getpid()}-{next(_names)}.g1.0")
        return names[-1]

    yield make
    async with open_connection(parse_broker(broker)) as connection:
        for name in names:
            channel = await connection.open_channel()
            with suppress(ChannelClosed):
                await channel.delete_queue(name)


class Relay:
    """The way to a broker, or to whatever is at a port of loopback; `find_port()` says it anew for each connection, if it is one."""

    def __init__(self, find_port):
        self._find_port = find_port
        self.flows = trio.Event()
        """Nothing goes through while this is not set, and nobody hears of it."""
        self.flows.set()
        self.port = 0
        self.delay = 0.0
        """Seconds for which each piece is held up, on either way."""
        self._scopes = set()

    @property
    def url(self):
        """The address of a broker behind it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def cut(self):
        """Break all connections."""
        for scope in self._scopes:
            scope.cancel()

    def hold(self):
        """Let nothing through."""
        self.flows = trio.Event()

    async def carry(self, client):
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            await client.send_all(b"")  # a client that does not trust us goes here
            server = await trio.open_tcp_stream("127.0.0.1", self._find_port())
            async with client, server, trio.open_nursery() as nursery:
                self._scopes.add(nursery.cancel_scope)
                nursery.start_soon(self._pump, client, server, nursery.cancel_scope)
                nursery.start_soon(self._pump, server, client, nursery.cancel_scope)

    async def _pump(self, source, target, scope):
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            while data := await source.receive_some():
                await self.flows.wait()
                await trio.sleep(self.delay)
                await target.send_all(data)
        scope.cancel()


@asynccontextmanager
async def _open_relay(tls=None, port=5672):
    """A `Relay` to the broker at a port, which its clients reach in plain text or by TLS."""
    relay = Relay(port if callable(port) else lambda: port)
    async with trio.open_nursery() as nursery:
        if tls is None:
            listeners = await nursery.start(trio.serve_tcp, relay.carry, 0)
            relay.port = listeners[0].socket.getsockname()[1]
        else:
            listeners = await nursery.start(trio.serve_ssl_over_tcp, relay.carry, 0, tls)
            relay.port = listeners[0].transport_listener.socket.getsockname()[1]
        try:
            yield relay
        finally:
            nursery.cancel_scope.cancel()


@pytest.fixture
async def relay(broker):
    """An open `Relay` in plain text."""
    async with _open_relay() as opened:
        yield opened


@pytest.fixture
def open_relay(broker):
    """`open_relay(tls, port)`: a block with a `Relay` that its clients reach by TLS, or in plain text without."""
    return _open_relay


@pytest.fixture
def write_certificates():
    """`write_certificates(folder, host)`: an authority and a certificate of it; the paths of both, and of its key."""
    return certificates.write_certificates


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    """A broker and a database of the module's own, started, which its tests may kill and start again.

    They speak plain text and TLS, with a certificate for 127.0.0.1 of the authority `ca`.
    """
    paths = certificates.write_certificates(tmp_path_factory.mktemp("certificates"), "127.0.0.1")
    with ExitStack() as opened:
        started = []
        for make in (make_broker, make_database):
            service = make()
            opened.callback(service.close)
            service.certify(*paths)
            trio.run(service.start)
            started.append(service)
        yield tuple(started)


@pytest.fixture
def make_services():
    """`make_services(**options)`: a broker and a database that are not started, and end with the test."""
    with ExitStack() as opened:

        def make(*, trusted, **options):
            made = make_broker(**options), make_database(trusted=trusted, **options)
            for service in made:
                opened.callback(service.close)
            return made

        yield make
