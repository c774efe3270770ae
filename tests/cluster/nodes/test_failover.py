"""A primary server is lost, and its synchronous standby is promoted. Both servers belong to the tests."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from actgent.journal.postgres.server_startup_wait import wait_until_reachable

from .conversations import PATIENCE, open_nodes, talking

LOOPBACK = "127.0.0.1/32"


async def start_servers(make_services):
    """Start a primary and its synchronous standby."""
    primary = make_services(trusted=LOOPBACK)
    await primary.start()
    standby = make_services(trusted=LOOPBACK, primary=primary)
    await standby.start()
    await primary.confirm_by_standby()
    return primary, standby


@asynccontextmanager
async def open_pair(make_services, process_server, open_cluster):
    """Yield a primary, its synchronous standby, and two nodes that find the server that accepts writes."""
    primary, standby = await start_servers(make_services)
    both = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    async with open_cluster(both) as cluster, open_nodes(process_server, cluster) as nodes:
        for name in "ab":
            await nodes.start(name, journal=f"{cluster.journal}&target_session_attrs=read-write")
        await nodes.settle("ab")
        yield primary, standby, nodes


@pytest.mark.parametrize("pause", [0, 3])
async def test_promoted_standby_keeps_confirmed_writes(process_server, make_services, open_cluster, pause):
    """Confirmed writes survive.

    No message is lost or answered twice, no model call is repeated, and no node counts as dead.
    """
    async with open_pair(make_services, process_server, open_cluster) as (primary, standby, nodes):
        async with talking(nodes) as talks:
            await talks.reach(100)
            primary.kill()
            await trio.sleep(pause)
            assert await standby.execute("SELECT pg_promote()") == [(True,)]
        assert await standby.execute("SELECT pg_is_in_recovery()") == [(False,)]
        assert await nodes.count("suspects") == 0
    assert set(nodes.calls.values()) == {1}


async def test_node_death_during_a_promotion_loses_no_message(process_server, make_services, open_cluster):
    """The other node takes its partitions from the promoted server. No message is lost or answered twice."""
    async with (
        open_pair(make_services, process_server, open_cluster) as (primary, standby, nodes),
        talking(nodes) as talks,
    ):
        await talks.reach(100)
        primary.kill()
        nodes.kill("a")
        assert await standby.execute("SELECT pg_promote()") == [(True,)]
    assert sum(nodes.calls.values()) <= 300 + 30


async def test_a_node_that_starts_waits_until_a_server_accepts_writes(make_services):
    """The node reports the reason for the wait."""
    primary, standby = await start_servers(make_services)
    primary.kill()
    reports, address = [], f"{standby.url}?target_session_attrs=read-write"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(wait_until_reachable, address, seconds=PATIENCE, report=reports.append))
        while not reports:  # noqa: ASYNC110 - no event signals this state
            await trio.sleep(0.05)
        await standby.execute("SELECT pg_promote()")
    assert "session is read-only. Promote a server of the address" in reports[0]
