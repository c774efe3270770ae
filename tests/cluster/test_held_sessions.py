"""Requests for a session that its node holds back after deaths of nodes."""

import attrs
import httpx2
import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent.client.http.http_request import BREAKS_HEADER, RETRY_TIMEOUT_HEADER
from actgent.journal.postgres.node_table import NodeRow, NodeTable
from actgent.support.postgres_address import split_schema
from actgent.web.server.request_relay import HOLD_SECONDS
from tests.cluster.nodes.pairs import PATIENCE, open_pair
from tests.clusters import TOKEN

SLACK = 5.0
"""Seconds for which a slow machine may answer later."""


async def get(url, path, headers):
    """Return the status and the body of an answer, and the seconds until it arrived."""
    began = trio.current_time()
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}", **headers}) as client:
        answer = await client.get(f"{url}/v1{path}", timeout=PATIENCE)
    return answer.status_code, answer.json(), trio.current_time() - began


@pytest.mark.parametrize("gateway", ["of the owner", "of another node"])
async def test_request_for_a_held_session_waits_or_returns_retry_later(open_cluster, gateway):
    """A client that counts broken connections gets a response to retry later.

    For other clients the gateway waits.
    """
    with trio.fail_after(PATIENCE):
        async with open_pair(open_cluster) as pair, pair.cluster.connect(retry_timeout=PATIENCE) as client:
            owner = pair.two if gateway == "of another node" else pair.one
            quarantine = owner.membership.node.quarantine
            session_id = pair.id_at(owner)
            session = await client.agent("clerk").create_session("ada", session_id=session_id)
            await client.agent("clerk").run("hello", session=session)
            quarantine._held_back[session_id] = trio.Event()
            url, path = f"http://127.0.0.1:{pair.cluster.balancer.ports[0]}", f"/sessions/{session_id}"
            path += "?agent=clerk"
            counting = {BREAKS_HEADER: "0", RETRY_TIMEOUT_HEADER: "30"}
            status, problem, seconds = await get(url, path, counting)
            assert (status, problem["is_quarantined"], problem["retry_after"]) == (503, True, 1)
            assert seconds < HOLD_SECONDS + SLACK
            status, problem, seconds = await get(url, path, {RETRY_TIMEOUT_HEADER: "3"})
            assert (status, problem["is_quarantined"]) == (503, True)
            assert 1.5 < seconds < 3 + SLACK
            async with trio.open_nursery() as nursery:
                nursery.start_soon(release_later, quarantine, session_id)
                assert (await get(url, path, {}))[0] == 200
            assert (await session.status()) == "idle"


async def release_later(quarantine, session_id):
    await trio.sleep(2 * HOLD_SECONDS)
    quarantine._release(session_id)


async def test_node_reports_seconds_since_the_last_death(open_cluster):
    """The start of the node counts as a death, because it may have been restarted after its death."""
    with trio.fail_after(PATIENCE):
        async with open_pair(open_cluster) as pair:
            url = f"http://127.0.0.1:{pair.cluster.balancer.ports[0]}"
            directory = pair.one.membership.node.directory
            _, known, _ = await get(url, "/health/live", {})
            assert 0 < known["calm_seconds"] <= trio.current_time() - directory.calm_since
            directory.calm_since -= 1000
            _, known, _ = await get(url, "/health/live", {})
            assert known["calm_seconds"] > 1000


@pytest.mark.parametrize("end", ["dies", "leaves"])
async def test_each_node_notices_the_death_of_another_node(open_cluster, end):
    """A node that acquires no partition of the dead node also notices the death.

    A planned leave is not a death.
    """
    with trio.fail_after(PATIENCE):
        async with open_pair(open_cluster) as pair:
            address, schema = split_schema(pair.cluster.journal, default="actgent", owner="the journal")
            table = NodeTable(address, schema, pool=pair.cluster.pool, node="three")
            reads = pair.one.journal.reads
            row = NodeRow(name="three", address="http://127.0.0.1:9", agents=(), release="1", reads=reads)
            await table.beat(row)  # without agents it gets no partitions
            nodes = [each.membership.node for each in (pair.one, pair.two)]
            await wait_for_nodes(nodes, lambda known: "three" in known)
            if end == "leaves":
                await table.beat(attrs.evolve(row, is_leaving=True))
                await wait_for_nodes(nodes, lambda known: known["three"].is_leaving)
            for each in nodes:
                each.directory.calm_since -= 1000
            if end == "leaves":
                await table.remove_ours()
            table.close()
            await wait_for_nodes(nodes, lambda known: "three" not in known)
            for each in (pair.one, pair.two):
                assert (each.membership.calm_seconds() > 1000) == (end == "leaves")
                assert each.membership.statistics().takeovers.get("died", 0) == 0


async def wait_for_nodes(nodes, is_met):
    """Wait until the nodes that each node knows meet a condition."""
    while not all(is_met(each.directory.nodes) for each in nodes):  # noqa: ASYNC110 - no event signals this state
        await trio.sleep(0.02)
