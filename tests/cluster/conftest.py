"""A TCP proxy that can be cut, held up and encrypted, and a database of a test that may be killed."""

from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
import trio

from tests.clusters import address_of

from . import certificates
from .services import make_database


class Relay:
    """A TCP proxy before a port of loopback; `find_port()` says which, for each connection."""

    def __init__(self, find_port):
        self._find_port = find_port
        self.flows, self.returns = trio.Event(), trio.Event()
        """Nothing goes to the server, or back from it, while this is not set. Neither end is notified."""
        self.release()
        self.port = 0
        self.delay = 0.0
        """Seconds for which each piece is held up, on either way."""
        self._scopes = set()

    def cut(self):
        """Break all connections."""
        for scope in self._scopes:
            scope.cancel()

    def hold(self, *, requests=True, answers=True):
        """Let nothing through: neither to the server nor back, or in one direction only."""
        if requests:
            self.flows = trio.Event()
        if answers:
            self.returns = trio.Event()

    def release(self):
        """Let everything through, also the data that was held."""
        self.flows.set()
        self.returns.set()

    async def carry(self, client):
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            await client.send_all(b"")  # a client that does not trust us goes here
            server = await trio.open_tcp_stream(*address_of(self._find_port()))
            async with client, server, trio.open_nursery() as nursery:
                self._scopes.add(nursery.cancel_scope)
                nursery.start_soon(self._pump, client, server, nursery.cancel_scope, "flows")
                nursery.start_soon(self._pump, server, client, nursery.cancel_scope, "returns")

    async def _pump(self, source, target, scope, direction):
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            while data := await source.receive_some():
                await getattr(self, direction).wait()
                await trio.sleep(self.delay)
                await target.send_all(data)
        scope.cancel()


@asynccontextmanager
async def _open_relay(tls=None, port=5432):
    """A `Relay` to a port, which its clients reach in plain text or by TLS."""
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
async def relay():
    """An open `Relay` to PostgreSQL."""
    async with _open_relay() as opened:
        yield opened


@pytest.fixture
def open_relay():
    """`open_relay(tls, port)`: a block with a `Relay` that its clients reach by TLS, or in plain text without."""
    return _open_relay


@pytest.fixture
def write_certificates():
    """`write_certificates(folder, host)`: an authority and a certificate of it; the paths of both, and of its key."""
    return certificates.write_certificates


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database of the module's own, started, which its tests may kill and start again.

    It speaks plain text and TLS, with a certificate for 127.0.0.1 of the authority `ca`.
    """
    paths = certificates.write_certificates(tmp_path_factory.mktemp("certificates"), "127.0.0.1")
    service = make_database()
    try:
        service.certify(*paths)
        trio.run(service.start)
        yield service
    finally:
        service.close()


@pytest.fixture
def make_services():
    """`make_services(trusted=, **options)`: a database that is not started, and ends with the test."""
    with ExitStack() as opened:

        def make(*, trusted, **options):
            made = make_database(trusted=trusted, **options)
            opened.callback(made.close)
            return made

        yield make
