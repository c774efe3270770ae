"""Fixtures: a TCP proxy that breaks, delays and encrypts connections, and a database that a test can kill."""

from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
import trio

from tests.clusters import address_of

from . import certificates
from .services import make_database


class Relay:
    """A TCP proxy on a loopback port. `find_port()` returns the target port for each connection."""

    def __init__(self, find_port):
        self._find_port = find_port
        self.flows, self.returns = trio.Event(), trio.Event()
        """Unset events stop the data to the server or from the server. Neither end is notified."""
        self.release()
        self.port = 0
        self.delay = 0.0
        """Seconds by which each chunk is delayed, in both directions."""
        self._scopes = set()

    def cut(self):
        """Break all connections."""
        for scope in self._scopes:
            scope.cancel()

    def hold(self, *, requests=True, answers=True):
        """Stop all data, in both directions or in one direction. Connections stay open."""
        if requests:
            self.flows = trio.Event()
        if answers:
            self.returns = trio.Event()

    def release(self):
        """Forward all data again, also the data that was held."""
        self.flows.set()
        self.returns.set()

    async def carry(self, client):
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            await client.send_all(b"")  # a client that does not trust the certificate raises here
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
    """Open a `Relay` to a port. Clients connect in plain text or by TLS."""
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
    """Yield an open `Relay` to PostgreSQL."""
    async with _open_relay() as opened:
        yield opened


@pytest.fixture
def open_relay():
    """Return `open_relay(tls, port)`, a context manager that yields a `Relay`.

    Clients connect by TLS if `tls` is given.
    """
    return _open_relay


@pytest.fixture
def write_certificates():
    """Return `write_certificates(folder, host)`, which returns the paths of an authority, a certificate and its key."""
    return certificates.write_certificates


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Yield a started database of this module, which its tests may kill and restart.

    It accepts plain text and TLS. The authority `ca` signs its certificate for 127.0.0.1.
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
    """Return `make_services(trusted=, **options)`, which returns a database that is not started.

    It is removed with the test.
    """
    with ExitStack() as opened:

        def make(*, trusted, **options):
            made = make_database(trusted=trusted, **options)
            opened.callback(made.close)
            return made

        yield make
