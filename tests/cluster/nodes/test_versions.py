"""Two releases in one cluster: nodes of the previous and the next release run until an operator finishes the upgrade."""

import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from actgent import ConfigurationError, SessionNotFound
from actgent.cluster.pool_operations import finish_upgrade, read_cluster_status
from actgent.journal.postgres import cluster_pool_layout
from actgent.journal.postgres.cluster_tables_reader import read_cluster_tables
from tests.clusters import parse_address

RELEASE = Path(__file__).with_name("release.py")
PATIENCE = 180
"""Seconds for a whole test on a loaded machine."""
OLD, NEW = 2, 3
"""The record formats that the releases read. The next release is this one with the next number."""


@attrs.define(eq=False)
class Releases:
    """Node processes of two releases. The test process is of the newer release."""

    process_server: object
    cluster: object
    running: dict = attrs.field(factory=dict)

    @property
    def place(self):
        return self.cluster.journal, self.cluster.pool

    async def start(self, name, reads):
        """Start a node, and return its first output line."""
        command = [sys.executable, RELEASE, str(reads), *self.place, name]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        life = self.running[name] = self.process_server.popen(command, **pipes)
        line = await self.read(life.stdout.readline)
        if line.startswith(b"PORT "):
            self.cluster.balancer.ports.append(parse_address(line.split()[1].decode()))
            line = await self.read(life.stdout.readline)
        return line

    async def read(self, fn, *args):
        return await trio.to_thread.run_sync(partial(fn, *args), abandon_on_cancel=True)

    async def served(self, owners):
        """Wait until all partitions are served, by nodes whose names have exactly these prefixes."""
        while True:
            status = await read_cluster_status(*self.place)
            names = {each.owner.partition("-")[0] for each in status.partitions if each.is_served}
            if names == set(owners) and len(status.partitions) == sum(
                each.is_served for each in status.partitions
            ):
                return status

    async def end(self, name):
        self.running[name].send_signal(signal.SIGTERM)
        await self.read(self.running[name].wait)


@pytest.fixture
def releases(process_server, open_cluster, monkeypatch):
    """Return `releases()`, a context manager that yields a `Releases`.

    This process is of the newer release.
    """
    monkeypatch.setattr(cluster_pool_layout, "READS", NEW)

    @asynccontextmanager
    async def open_releases():
        async with open_cluster() as cluster:
            started = Releases(process_server, cluster)
            try:
                yield started
            finally:
                for life in started.running.values():
                    life.send_signal(signal.SIGCONT)
                    life.kill()
                    life.wait()
                    life.stdout.close()
                    life.stderr.close()

    return open_releases


async def talk(client, name):
    """Send a message to sessions of all partitions, and check each answer."""
    for number in range(16):
        agent, session_id = client.agent("clerk"), f"{name}{number}"
        try:
            session = await agent.open_session(session_id)
        except SessionNotFound:
            session = await agent.create_session("ada", session_id=session_id)
        assert (await client.agent("clerk").run("hello", session=session)).text == "you said: hello"


async def test_two_releases_run_in_one_cluster(releases):
    """All nodes write the old format until the upgrade is finished, which waits for the end of the last old node."""
    with trio.fail_after(PATIENCE):
        async with releases() as there, there.cluster.connect(retry_timeout=PATIENCE) as client:
            assert await there.start("old", OLD) == b"READY\n"
            assert await there.start("new", NEW) == b"READY\n"
            status = await there.served({"old", "new"})
            assert {each.name[:3]: each.reads for each in status.nodes} == {"old": OLD, "new": NEW}
            assert status.layout.writes == OLD
            await talk(client, "a")
            with pytest.raises(ConfigurationError, match=r"record format 3 cannot be read by old-.*drain"):
                await finish_upgrade(*there.place)
            await there.end("old")
            await there.served({"new"})
            assert await finish_upgrade(*there.place) == NEW
            assert await finish_upgrade(*there.place) == NEW
            await talk(client, "a")
            assert await there.start("late", OLD) == b""
            text = await there.read(there.running["late"].stderr.read)
            assert (
                b"writes record format 3, and this release of actgent reads formats up to 2: use a newer release"
                in text
            )
            await talk(client, "b")


async def test_old_node_that_hung_during_the_upgrade_gets_no_partition(releases):
    """The resumed node is assigned no partition and leaves. Another node has its partitions."""
    with trio.fail_after(PATIENCE):
        async with releases() as there, there.cluster.connect(retry_timeout=PATIENCE) as client:
            await there.start("old", OLD)
            await there.served({"old"})
            await talk(client, "a")
            there.running["old"].send_signal(signal.SIGSTOP)
            await there.start("new", NEW)
            await there.served({"new"})
            assert await finish_upgrade(*there.place) == NEW
            there.running["old"].send_signal(signal.SIGCONT)
            text = b""
            while b"the layout of the pool was changed, so this node leaves" not in text:
                text = await there.read(there.running["old"].stderr.readline)
            await there.end("new")
            tables = await read_cluster_tables(there.cluster.journal, there.cluster.pool)
            assert {each.owner[:3] for each in tables.partitions} == {"new"}
            await there.start("next", NEW)
            await there.served({"next"})
            await talk(client, "a")
            await there.end("old")
