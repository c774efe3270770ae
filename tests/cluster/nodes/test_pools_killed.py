"""Nodes of two pools are killed during requests between the pools.

Each task is answered once within its budget.
"""

import signal
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import psycopg
import pytest
import trio

from actgent import Limits
from actgent.cluster.cluster_member import DEFAULT_PARTITIONS
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import UsageRecord
from actgent.journal.session_list_queries import SessionFilter
from actgent.limits_and_schedules.budget import spent_in
from tests.clusters import Cluster, open_balancer, open_cluster, parse_address

from .conversations import read_process

LIFE = Path(__file__).with_name("pool_life.py")
PATIENCE = 120
"""Seconds for which clients retry."""
NAMES = tuple(f"s{number}" for number in range(8))


class Pools:
    """The node processes of two pools."""

    def __init__(self, process_server, editors, writers, nursery, gate):
        self.editors, self.writers = editors, writers
        self._process_server, self._nursery = process_server, nursery
        self._running, self._gate = {}, gate
        self.calls = Counter()
        """Number of model calls by agent and text."""

    async def start(self, cluster, name):
        """Start a node, and wait until its agent runs."""
        other = self.writers.pool if cluster is self.editors else ""
        command = [sys.executable, LIFE, cluster.journal, cluster.pool, other, name, self._gate]
        life = self._running[name] = self._process_server.popen(command, stdout=subprocess.PIPE)
        await self._nursery.start(read_process, life, partial(self._hear, cluster))

    def _hear(self, cluster, word, what):
        if word == "CALL":
            self.calls[what] += 1
        elif word == "PORT":
            cluster.balancer.ports.append(parse_address(what))

    def kill(self, name):
        self._running[name].send_signal(signal.SIGKILL)

    def end(self):
        for life in self._running.values():
            life.kill()
            life.wait()
            life.stdout.close()

    def open_gate(self):
        """Create the gate file, so that the writers answer."""
        self._gate.touch()

    def count(self, name):
        """Return the number of model calls for a session."""
        return sum(count for what, count in self.calls.items() if what.rpartition(" ")[2] == name)

    async def called_again(self):
        """Wait until a node has repeated a model call that was running when the previous node was killed."""
        while sum(self.calls.values()) <= 2 * len(NAMES):  # noqa: ASYNC110 - another process changes this state
            await trio.sleep(0.01)

    async def called(self, *whats):
        """Wait until each of these model calls has happened."""
        while not all(self.calls[what] for what in whats):  # noqa: ASYNC110 - another process changes this state
            await trio.sleep(0.01)


@pytest.fixture
async def pools(process_server, tmp_path):
    """Yield two running nodes of each of two pools."""
    async with open_cluster() as editors, open_balancer() as balancer, trio.open_nursery() as nursery:
        writers = Cluster(f"{editors.pool}-w", editors.journal, balancer)
        started = Pools(process_server, editors, writers, nursery, tmp_path / "gate")
        try:
            async with trio.open_nursery() as starting:
                for cluster, name in ((editors, "e1"), (editors, "e2"), (writers, "w1"), (writers, "w2")):
                    starting.start_soon(started.start, cluster, name)
            with trio.fail_after(PATIENCE):
                while not await trio.to_thread.run_sync(are_settled, editors, writers):  # noqa: ASYNC110 - the state is in the database
                    await trio.sleep(0.1)
            yield started
        finally:
            started.end()
            nursery.cancel_scope.cancel()


def are_settled(*clusters):
    """Return whether both nodes of each pool have half of its partitions."""
    address, _, schema = clusters[0].journal.partition("?schema=")
    with psycopg.connect(address) as database:
        rows = database.execute(
            f"SELECT pool, count(*) FROM {schema}.partitions WHERE NOT clean GROUP BY pool, owner"
        ).fetchall()
    return sorted(rows) == sorted((each.pool, DEFAULT_PARTITIONS // 2) for each in clusters for _ in range(2))


async def paid(cluster, session_id, agent="editor"):
    """Return the number of model calls that the budget of a session has paid, according to the journal."""
    async with open_journal(cluster.journal, read_only=True) as journal:
        records = await journal.load(session_id, agent=agent)
    return spent_in([each for each in records if isinstance(each, UsageRecord) and not each.turn]).model_calls


async def wait_closed(cluster):
    """Wait until no writer session is open."""
    is_open = True
    while is_open:
        await trio.sleep(0.05)
        async with open_journal(cluster.journal, read_only=True) as journal:
            found = await journal.page(SessionFilter(agent="writer"))
        is_open = any(not each.closed for each in found)


@attrs.define(eq=False)
class Talks:
    """Sessions that have each sent one message to an editor."""

    sessions: dict
    heard: dict
    over: dict

    async def wait_over(self):
        for each in self.over.values():
            await each.wait()


@asynccontextmanager
async def talking(pools):
    """A client with sessions whose editors have sent tasks to the other pool. Each session may make nine model calls.

    The client stays open until each `chat()` has returned, since one may be retried after its answer has
    arrived.
    """
    async with pools.editors.connect(retry_timeout=PATIENCE) as client, trio.open_nursery() as nursery:
        talks = Talks({}, {}, {})
        for name in NAMES:
            session = await client.agent("editor").create_session("ada", limits=Limits(model_calls=9))
            talks.sessions[name], received, over = session, [], trio.Event()
            talks.heard[name], talks.over[name] = received, over
            session.on_conversation(partial(_hear, received, over))
            session.on_exception(partial(_hear_failure, received, over))
            nursery.start_soon(session.chat, name)
        yield talks


def _hear(heard, over, reply):
    heard.append(reply.text)
    over.set()


def _hear_failure(heard, over, failure):
    heard.append(failure.kind)
    over.set()


async def test_killed_requesting_node_repeats_no_task(pools):
    """Another node repeats the request.

    The writer runs once, each session is answered once, and the unused budget returns.
    """
    async with talking(pools) as talks:
        with trio.fail_after(2 * PATIENCE):
            await pools.called(*(f"writer {name}" for name in NAMES))
            pools.kill("e1")
            pools.open_gate()
            await talks.wait_over()
        assert talks.heard == {name: [f"got written: {name}"] for name in NAMES}
        for name in NAMES:
            assert pools.calls[f"writer {name}"] == 1
            assert await paid(pools.editors, talks.sessions[name].id) == pools.count(name) == 3


async def test_killed_working_node_pays_each_model_call_once(pools):
    """Another node resumes the tasks. Each session is answered once, and each model call is paid once."""
    async with talking(pools) as talks:
        with trio.fail_after(2 * PATIENCE):
            await pools.called(*(f"writer {name}" for name in NAMES))
            pools.kill("w1")
            await pools.called_again()
            pools.open_gate()
            await talks.wait_over()
        assert talks.heard == {name: [f"got written: {name}"] for name in NAMES}
        for name in NAMES:
            assert await paid(pools.editors, talks.sessions[name].id) == pools.count(name) <= 4


async def test_interrupt_after_a_kill_cancels_the_task_in_the_other_pool(pools):
    """Some cancellations do not find a node of the other pool at first."""
    async with talking(pools) as talks:
        with trio.fail_after(2 * PATIENCE):
            await pools.called(*(f"writer {name}" for name in NAMES))
            pools.kill("e1")
            pools.kill("w1")
            for session in talks.sessions.values():
                await session.interrupt()
            await talks.wait_over()
            await wait_closed(pools.writers)
        assert talks.heard == {name: ["interrupted"] for name in NAMES}
        assert not any("editor written" in each for each in pools.calls)


async def test_repeated_kills_in_both_pools_lose_no_answer(pools):
    """At any moment of the kill, each session is answered once, the writer's answer stays the same, and no budget is exceeded."""
    pools.open_gate()
    async with talking(pools) as talks:
        with trio.fail_after(3 * PATIENCE):
            for number, (victim, cluster) in enumerate(
                (("e1", pools.editors), ("w1", pools.writers), ("e2", pools.editors), ("w2", pools.writers))
            ):
                while sum(pools.calls.values()) < 2 + 3 * number:  # noqa: ASYNC110 - another process changes this state
                    await trio.sleep(0.001)
                pools.kill(victim)
                await pools.start(cluster, f"{victim}-next")
            await talks.wait_over()
        assert talks.heard == {name: [f"got written: {name}"] for name in NAMES}
        for name in NAMES:
            assert pools.count(name) <= await paid(pools.editors, talks.sessions[name].id) <= 9
