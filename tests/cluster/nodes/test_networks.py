"""Nodes in separate network namespaces. Tests take the links between them down and up.

       ┌─ to-a ──── eth0 ─ node a        Three network namespaces and two pairs of virtual cards. The test runs
hub ───┤                                 in the hub, with the database and the client.
       └─ to-b ──── eth0 ─ node b
"""

import ctypes
import os
import shutil
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest
from trio._core._thread_cache import ThreadCache

from .conversations import open_nodes, talking

HUB = "10.77.0.1"
NETWORK = 0x40000000
"""CLONE_NEWNET of setns(2)."""
_libc = ctypes.CDLL(None, use_errno=True)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)


@attrs.frozen
class Networks:
    """Three network namespaces. The hub is connected to the other two."""

    prefix: str = f"actgent{os.getpid()}"

    def name(self, place):
        return f"{self.prefix}-{place}"

    def inside(self, place):
        """Return the command prefix that runs a command in the namespace."""
        return "ip", "netns", "exec", self.name(place)

    def lay(self, opened):
        """Create the namespaces, and remove them when the stack `opened` closes."""
        for place in ("hub", "a", "b"):
            ip("netns", "add", self.name(place))
            opened.callback(ip, "netns", "del", self.name(place))
            ip("-n", self.name(place), "link", "set", "lo", "up")
        hub = ("-n", self.name("hub"))
        ip(*hub, "addr", "add", f"{HUB}/32", "dev", "lo")
        # A new namespace does not forward packets. Without this setting the two nodes never reach each other.
        ip("netns", "exec", self.name("hub"), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for number, place in enumerate("ab", 1):
            there = ("-n", self.name(place))
            ip(
                *hub,
                "link",
                "add",
                f"to-{place}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                self.name(place),
            )
            ip(*hub, "addr", "add", f"10.77.{number}.1/24", "dev", f"to-{place}")
            ip(*there, "addr", "add", f"10.77.{number}.2/24", "dev", "eth0")
            ip(*hub, "link", "set", f"to-{place}", "up")
            ip(*there, "link", "set", "eth0", "up")
            ip(*there, "route", "add", "default", "via", f"10.77.{number}.1")

    def set_way(self, place, state):
        """Set the link to a node `down` or `up`. Neither end is notified."""
        ip("-n", self.name("hub"), "link", "set", f"to-{place}", state)

    @contextmanager
    def entered(self, place):
        """Run the block with this thread in the namespace."""
        with (
            Path("/proc/thread-self/ns/net").open("rb") as before,
            Path(f"/run/netns/{self.name(place)}").open("rb") as there,
        ):
            _enter(there)
            try:
                yield
            finally:
                _enter(before)

    def popen(self, command, **options):
        """Start a node in the network of its name, like `subprocess.Popen`."""
        name = command[4]
        environment = {
            **(options.pop("env", None) or os.environ),
            "PYTHONPATH": str(Path(__file__).parents[3]),
        }
        return subprocess.Popen([*self.inside(name), *map(str, command)], env=environment, **options)


def _enter(network):
    if _libc.setns(network.fileno(), NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


@pytest.fixture
def networks(monkeypatch):
    """Yield new namespaces. The test runs in the hub.

    A new thread is in the network of the thread that starts it, and trio keeps idle threads for later tests.
    So the threads of the test are kept apart: a later test in this process could not reach PostgreSQL from
    them.
    """
    monkeypatch.setattr("trio._core._thread_cache.THREAD_CACHE", ThreadCache())
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces take root and iproute2")
    made = Networks()
    with ExitStack() as opened:
        try:
            made.lay(opened)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr!r:.200}")
        opened.enter_context(made.entered("hub"))
        yield made


@pytest.fixture
async def nodes(networks, make_services, open_cluster):
    """Yield a `Nodes` that starts nodes in these networks. The database is in the hub."""
    database = make_services(host=HUB, inside=networks.inside("hub"), trusted="10.77.0.0/16")
    await database.start()
    async with open_cluster(database.url) as cluster, open_nodes(networks, cluster) as started:
        yield started


def options_of(number):
    """Return the addresses at which the node listens for clients and for the other node."""
    host = f"10.77.{number}.2"
    return f"bind={host}:8300", f"advertise=http://{host}:8301"


async def test_isolated_node_writes_nothing_and_rejoins(nodes, networks):
    """A node without database and peer writes nothing and gets no requests.

    It rejoins when the link is up again.
    """
    for number, name in enumerate("ab", 1):
        await nodes.start(name, *options_of(number))
    nodes.cluster.balancer.ports[:] = [("10.77.1.2", 8300), ("10.77.2.2", 8300)]
    async with talking(nodes) as talks:
        await talks.reach(75)
        networks.set_way("a", "down")
        await talks.reach(200)
        networks.set_way("a", "up")
        await talks.reach(250)
        nodes.kill("b", signal.SIGTERM)
    assert sum(nodes.calls.values()) <= 300 + 2 * 30
