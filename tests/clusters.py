"""A cluster of a test's own at the broker and the database on loopback: its queues and its schema go with it."""

import itertools
import os
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio

from actgent import BrokerLost, ConfigurationError, connect, open_runtime

BROKER = "amqp://guest:guest@127.0.0.1:5672/"
DATABASE = "postgresql://postgres@127.0.0.1:5432/test"
_names = itertools.count()


@attrs.frozen
class Cluster:
    """The addresses of a cluster, and the name of its pool."""

    pool: str
    journal: str
    broker: str = BROKER

    @asynccontextmanager
    async def node(self, *agents, **options):
        """A node in this process."""
        given = {"journal": self.journal, "broker": self.broker, "pool": self.pool, **options}
        async with open_runtime(**given) as runtime:
            async with runtime.starting():
                for agent in agents:
                    await runtime.start(agent)
            yield runtime

    def connect(self, **options):
        """A client."""
        return connect(options.pop("url", self.broker), **{"pool": self.pool, "name": "tests", **options})


def skip_without_services(database=DATABASE):
    """Skip the test where the broker or the database lets nobody in."""
    pytest.importorskip("pamqp", reason="the extra `cluster` is not installed")
    psycopg = pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    try:
        psycopg.connect(database.replace("postgresql", "postgres"), connect_timeout=3).close()
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL server at {database}: {error}")


async def check_broker(broker=BROKER):
    """Skip the test where no RabbitMQ lets its guest in."""
    from actgent.cluster.amqp import open_connection, parse_broker

    try:
        async with open_connection(parse_broker(broker)):
            pass
    except (BrokerLost, ConfigurationError) as error:
        pytest.skip(f"no RabbitMQ with its guest: {error}")


@asynccontextmanager
async def open_cluster(database=DATABASE, broker=BROKER):
    """A `Cluster` without nodes."""
    skip_without_services(database)
    await check_broker(broker)
    name = f"test-{os.getpid()}-{next(_names)}"
    try:
        yield Cluster(name, f"{database}?schema={name.replace('-', '_')}", broker)
    finally:
        with trio.CancelScope(shield=True):
            await remove(name, database, broker)


async def remove(pool, database=DATABASE, broker=BROKER):
    """Delete the queues, the exchanges and the schema of a cluster."""
    import psycopg

    from actgent.cluster.amqp import ChannelClosed, open_connection, parse_broker
    from actgent.cluster.opening import PARTITIONS
    from actgent.cluster.queues import beacon_exchange, owner_exchange

    async with open_connection(parse_broker(broker)) as connection:
        channel = await connection.open_channel()
        generations = [f"g{each}.{number}" for each in (1, 2) for number in range(PARTITIONS)]
        for queue in ("any", *generations):
            with suppress(ChannelClosed):
                await channel.delete_queue(f"actgent.{pool}.{queue}")
        for exchange in (beacon_exchange(pool), owner_exchange(pool)):
            await channel.delete_exchange(exchange)
    with psycopg.connect(database, autocommit=True) as opened:
        opened.execute(f"DROP SCHEMA IF EXISTS {pool.replace('-', '_')} CASCADE")
