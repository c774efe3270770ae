"""A cluster for one test: a PostgreSQL schema on loopback, nodes with gateways, and a load balancer for all gateways."""

import itertools
import os
import random
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import attrs
import pytest
import trio

from actgent import AccessToken, GatewayLimits, connect, open_gateway, open_runtime
from actgent.support.plain_nursery import plain_nursery
from actgent.web.access_tokens import token_digest

DATABASE = "postgresql://postgres@127.0.0.1:5432/test"
TOKEN = "act_tests"
TOKENS = (AccessToken(name="tests", owner="user", scopes=("admin",), digest=token_digest(TOKEN)),)
MANY = 1_000_000
CONNECT_SECONDS = 2
PROBE_SECONDS, ANSWER_SECONDS = 1, 4
"""Seconds between two probes of a gateway, and the timeout of an answer on a busy machine."""
LIMITS = GatewayLimits(requests=MANY, messages=None, rate=float(MANY), burst=MANY, streams=MANY, grace=1.0)
_names = itertools.count()
_dice = random.Random(1)


@attrs.define(eq=False)
class Balancer:
    """A load balancer on one TCP port for the gateways of a cluster.

    Each connection is forwarded to a gateway that accepts it. A gateway that does not answer probes loses its
    connections and gets no new ones.
    """

    ports: list = attrs.field(factory=list)
    """Ports of gateways on loopback, or pairs of host and port."""
    port: int = 0
    _turn: int = 0
    _down: set = attrs.field(factory=set)
    _scopes: dict = attrs.field(factory=dict)
    """Cancel scopes of connections, by the port of their gateway."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def carry(self, client):
        async with client:
            server, port = await self._open()
            if server is None:
                return
            async with server, trio.open_nursery() as nursery:
                self._scopes.setdefault(port, set()).add(nursery.cancel_scope)
                nursery.start_soon(self._forget, port, nursery.cancel_scope)
                nursery.start_soon(self._pump, client, server, nursery.cancel_scope)
                nursery.start_soon(self._pump, server, client, nursery.cancel_scope)

    async def _open(self):
        """Return a connection to the next gateway that accepts one, and the port of this gateway. Return None, None if no gateway does."""
        self._turn += 1
        ports = [each for each in self.ports if each not in self._down]
        for each in range(len(ports)):
            port = ports[(self._turn + each) % len(ports)]
            with suppress(OSError), trio.move_on_after(CONNECT_SECONDS):
                return await trio.open_tcp_stream(*address_of(port)), port
        return None, None

    async def _forget(self, port, scope):
        try:
            await trio.sleep_forever()
        finally:
            self._scopes[port].discard(scope)

    async def probe(self):
        """Probe every gateway at a fixed interval, without end."""
        while True:
            await trio.sleep(PROBE_SECONDS)
            async with trio.open_nursery() as nursery:
                for port in tuple(self.ports):
                    nursery.start_soon(self._probe, port)

    async def _probe(self, port):
        is_up = False
        with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(ANSWER_SECONDS):
            async with await trio.open_tcp_stream(*address_of(port)) as stream:
                await stream.send_all(
                    b"GET /v1/health/live HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
                )
                is_up = bool(await stream.receive_some(1))
        if is_up:
            self._down.discard(port)
            return
        self._down.add(port)
        for scope in tuple(self._scopes.get(port, ())):
            scope.cancel()

    async def _pump(self, source, target, scope):
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            while data := await source.receive_some():
                await target.send_all(data)
        scope.cancel()


def address_of(port):
    """Return the host and the port of a gateway."""
    return port if isinstance(port, tuple) else ("127.0.0.1", port)


def parse_address(text):
    """Return the host and the port of `HOST:PORT`."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def own_loopback():
    """Return a loopback address that only this process uses.

    Another test may reuse the port of a killed process, but not this address.
    """
    pid = os.getpid()
    return f"127.{64 + (pid >> 16) % 128}.{pid >> 8 & 255}.{pid & 255}"


@asynccontextmanager
async def open_balancer():
    """Yield a `Balancer` that accepts connections."""
    balancer = Balancer()
    async with plain_nursery() as nursery:
        serve = partial(trio.serve_tcp, balancer.carry, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        balancer.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(balancer.probe)
        yield balancer
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Cluster:
    """The journal and the name of a cluster, and the address of its load balancer."""

    pool: str
    journal: str
    balancer: Balancer

    @property
    def url(self):
        """The address of a gateway of any running node."""
        return self.balancer.url

    @asynccontextmanager
    async def node(self, *agents, **options):
        """Run a node with a gateway in this process."""
        settings = {"journal": self.journal, "cluster": self.pool, **options}
        async with open_runtime(**settings) as runtime:
            async with runtime.starting():
                for agent in agents:
                    await runtime.start(agent)
            async with open_gateway(
                runtime, bind="127.0.0.1:0", hosts=["127.0.0.1"], tokens=TOKENS, limits=LIMITS
            ) as gateway:
                port = int(gateway.url.rpartition(":")[2])
                self.balancer.ports.append(port)
                try:
                    yield runtime
                finally:
                    self.balancer.ports[:] = [each for each in self.balancer.ports if each != port]

    def connect(self, **options):
        """Yield a client of all nodes."""
        return connect(options.pop("url", self.url), **{"token": TOKEN, **options})


def skip_without_database(database=DATABASE):
    """Skip the test if the database cannot be reached."""
    psycopg = pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    try:
        psycopg.connect(database.replace("postgresql", "postgres"), connect_timeout=3).close()
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL server at {database}: {error}")


@asynccontextmanager
async def open_cluster(database=DATABASE):
    """Yield a `Cluster` without nodes."""
    skip_without_database(database)
    name = f"test-{os.getpid()}-{next(_names)}"
    async with AsyncExitStack() as opened:
        balancer = await opened.enter_async_context(open_balancer())
        try:
            yield Cluster(name, f"{database}?schema={name.replace('-', '_')}", balancer)
        finally:
            remove(name, database)


def remove(pool, database=DATABASE):
    """Delete the schema of a cluster."""
    import psycopg

    with psycopg.connect(database, autocommit=True) as opened:
        opened.execute(f"DROP SCHEMA IF EXISTS {pool.replace('-', '_')} CASCADE")
