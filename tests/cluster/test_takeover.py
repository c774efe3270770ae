"""Owners of partitions while nodes start, leave, hang and are killed, with a real database."""
# ruff: noqa: ASYNC110 - no event tells what the database or another process does

import os
import signal

import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg

from actgent import BareAgent
from actgent.cluster.cluster_member import DEFAULT_PARTITIONS
from actgent.cluster.failure_detection import SETTLE_SECONDS
from actgent.cluster.pool_operations import read_cluster_status
from actgent.journal.postgres.cluster_tables_reader import read_dead
from actgent.journal.postgres.node_liveness_locks import NODE_TIMEOUT_SECONDS

from .owner_nodes import Slow, node_of, open_owner, open_processes, wait_serving

RUNS = 20 if os.environ.get("ACTGENT_SOAK") else 2
"""Number of nodes that are killed in sequence."""


async def test_two_nodes_share_the_partitions(postgres_url):
    """The second node gets half of the partitions. Both directories name the same owners."""
    with trio.fail_after(60):
        async with open_owner(postgres_url, "a") as a:
            await wait_serving(a)
            async with open_owner(postgres_url, "b") as b:
                await wait_serving(a, 2)
                await wait_serving(b, 2)
                for runtime in (a, b):
                    await node_of(runtime).directory.refresh()
                assert set(node_of(a).serving) | set(node_of(b).serving) == set(range(DEFAULT_PARTITIONS))
                for number in range(DEFAULT_PARTITIONS):
                    owners = [node_of(each).directory.owner_of_partition(number) for each in (a, b)]
                    assert owners[0] == owners[1]
                    assert owners[0].node is not None
                    assert number in {"a": node_of(a), "b": node_of(b)}[owners[0].node.name[0]].serving
            await wait_serving(a)
            assert node_of(a).statistics().takeovers.keys() <= {"new", "given_back"}


async def test_sessions_of_a_killed_node_resume_at_another_node(postgres_url):
    """The other node acquires the partitions of the dead node and answers each turn."""
    answers = []
    clerk = BareAgent("clerk", llm=Slow(0.05, lambda *words: answers.append(words)))
    with trio.fail_after(120):
        async with open_owner(postgres_url, "a", clerk) as a, open_processes(postgres_url) as start:
            for number in range(RUNS):
                b = await start(f"b{number}", 600)
                await wait_serving(a, 2)
                b.say(f"hello {number}")
                await b.wait_line(f"CALL hello {number}")
                b.kill()
                await wait_serving(a)
                while ("DONE", f"hello {number}") not in answers:
                    await trio.sleep(0.01)
            assert node_of(a).statistics().takeovers["died"] >= RUNS


async def test_hanging_node_is_replaced_and_rejoins(postgres_url):
    """Later writes of the hanging node are rejected. Then the node gets its share again."""
    with trio.fail_after(120):
        async with open_owner(postgres_url, "a") as a, open_processes(postgres_url) as start:
            b = await start("b")
            await wait_serving(a, 2)
            b.kill(signal.SIGSTOP)
            await wait_serving(a)
            b.kill(signal.SIGCONT)
            await wait_serving(a, 2)
            b.say("hello")
            await b.wait_line("DONE hello")


async def test_ending_node_hands_over_its_turns(postgres_url):
    """A planned handover is not a death."""
    with trio.fail_after(120):
        async with open_owner(postgres_url, "a") as a, open_processes(postgres_url) as start:
            b = await start("b", 1.0)
            await wait_serving(a, 2)
            for number in range(4):
                b.say(f"hello {number}")
            while len(b.count("CALL")) < 4:
                await trio.sleep(0.01)
            b.kill(signal.SIGTERM)
            await b.wait_line("LEFT")
            await wait_serving(a)
            assert len(b.count("DONE")) == 4
            assert "died" not in node_of(a).statistics().takeovers


def epochs_of(*runtimes):
    """Return the owned partitions of the nodes with their epochs."""
    return [dict(sorted(node_of(each).journal.owned.items())) for each in runtimes]


async def wait_connected(runtime, before):
    """Wait until the membership of a node has a new connection."""
    while node_of(runtime).statistics().connections <= before:
        await trio.sleep(0.01)


async def test_lost_connection_loses_no_partition(postgres_url):
    """The node reconnects before other nodes count it as dead."""
    server = postgres_url.partition("?")[0]
    with trio.fail_after(120):
        async with open_owner(postgres_url, "a") as a, open_owner(postgres_url, "b") as b:
            await wait_serving(a, 2)
            await wait_serving(b, 2)
            before = epochs_of(a, b)
            for _ in range(3):
                pid = node_of(b).journal.nodes._connection.info.backend_pid
                count = node_of(b).statistics().connections
                with psycopg.connect(server, autocommit=True) as connection:
                    connection.execute("SELECT pg_terminate_backend(%s)", [pid])
                await wait_connected(b, count)
                await trio.sleep(0.5)
            assert epochs_of(a, b) == before


async def test_database_restart_loses_no_partition(database):
    """All connections break at once, and no node counts another one as dead."""
    with trio.fail_after(300):
        async with open_owner(database.url, "a") as a, open_owner(database.url, "b") as b:
            await wait_serving(a, 2)
            await wait_serving(b, 2)
            before, counts = epochs_of(a, b), [node_of(each).statistics().connections for each in (a, b)]
            database.kill()
            await trio.sleep(1)
            await database.start()
            for runtime, count in zip((a, b), counts, strict=True):
                await wait_connected(runtime, count)
            await trio.sleep(SETTLE_SECONDS + 2)
            assert epochs_of(a, b) == before
            assert len(node_of(a).serving) == len(node_of(b).serving) == DEFAULT_PARTITIONS // 2


async def test_nodes_that_cannot_write_their_heartbeats_are_not_dead(postgres_url):
    """If the table of nodes is locked for longer than the leases, no node writes a heartbeat."""
    server, _, schema = postgres_url.partition("?schema=")
    with trio.fail_after(120):
        async with open_owner(postgres_url, "a") as a, open_owner(postgres_url, "b") as b:
            await wait_serving(a, 2)
            await wait_serving(b, 2)
            before = epochs_of(a, b)
            with psycopg.connect(server) as connection:
                connection.execute(f"LOCK TABLE {schema}.nodes IN ACCESS EXCLUSIVE MODE")
                await trio.sleep(NODE_TIMEOUT_SECONDS + 2)
            await trio.sleep(SETTLE_SECONDS + 2)
            assert epochs_of(a, b) == before


async def test_only_the_killing_message_is_dead_lettered_in_a_cluster(postgres_url):
    """The message kills its nodes repeatedly. Messages of concurrent turns are answered."""
    with trio.fail_after(300):
        async with open_processes(postgres_url) as start:
            first = await start("x", 3.0)
            started = [first]
            for text in ("one", "two", "three"):
                first.say(text)
                await first.wait_line(f"CALL {text}")
            first.say("kill")
            while not await read_dead(postgres_url):
                if started[-1].popen.poll() is not None:
                    started.append(await start("x", 3.0))
                await trio.sleep(0.1)
            answered = set()
            while answered != {"one", "two", "three"}:
                answered = {text for each in started for text in each.count("DONE")}
                await trio.sleep(0.1)
            (dead,) = await read_dead(postgres_url)
            assert dead.reason == "5 processes died while it was worked on, 2 of them with it alone"
            assert sum("CALL kill" in each.lines for each in started) == 5


async def test_an_agent_is_added_and_removed_while_nodes_are_upgraded(postgres_url):
    """Partitions move to nodes that host all agents. Sessions of an agent without a host are reported."""
    clerks = [BareAgent("clerk", llm=Slow(0.05)) for _ in range(3)]
    digger = BareAgent("digger", llm=Slow(0.05))
    with trio.fail_after(120):
        async with open_owner(postgres_url, "old", clerks[0]) as old:
            await wait_serving(old)
            async with open_owner(postgres_url, "new", clerks[1], digger) as new:
                await wait_serving(new)
                session = await digger.create_session(owner="ada")
                await digger.run("hello", session=session)
                assert (await read_cluster_status(postgres_url, "test")).is_whole
                async with open_owner(postgres_url, "later", clerks[2]) as later:
                    await node_of(later).directory.refresh()
                    assert node_of(later).serving == ()
            await wait_serving(old)
            status = await read_cluster_status(postgres_url, "test")
            assert (status.unhosted, status.is_whole) == ({"digger": 1}, False)
