"""Node processes, and clients in the middle of many conversations with them."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import psycopg
import trio

from actgent.cluster.cluster_member import DEFAULT_PARTITIONS
from actgent.journal.postgres.cluster_tables_reader import read_cluster_tables
from tests.clusters import parse_address

LIFE = Path(__file__).with_name("node_process.py")
PATIENCE = 120
"""Seconds for which clients retry. Each cut that loses an answer may cost 15 s, also on a fast machine."""


async def read_process(life, hear, *, task_status):
    """Call `hear` with the first word and the rest of each output line of a process.

    Report as started after the line READY.
    """
    rest = b""
    async with trio.lowlevel.FdStream(os.dup(life.stdout.fileno())) as stream:
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in map(bytes.decode, lines):
                word, _, what = line.partition(" ")
                if word == "READY":
                    task_status.started()
                else:
                    hear(word, what)


@attrs.define(eq=False)
class Nodes:
    """The node processes of one cluster."""

    process_server: object
    cluster: object
    nursery: trio.Nursery
    options: tuple = ()
    """More command-line options for each node."""
    calls: Counter = attrs.field(factory=Counter)
    """Number of model calls by text."""
    effects: Counter = attrs.field(factory=Counter)
    """Number of tool effects by text."""
    ports: dict = attrs.field(factory=dict)
    """Host and port of each node's gateway, by node name."""
    running: dict = attrs.field(factory=dict)
    said: dict = attrs.field(factory=dict)
    deaths: str = attrs.field(factory=partial(tempfile.mkdtemp, prefix="actgent-deaths-"))
    """The folder in which nodes record the sessions that killed them."""

    async def start(self, name, *options, journal=None):
        """Start a node, and wait until its agent runs.

        `journal` overrides the journal address of the cluster.
        """
        command = [sys.executable, LIFE, journal or self.cluster.journal, self.cluster.pool, name]
        command_words = [*command, *self.options, f"deaths={self.deaths}", *options]
        life = self.running[name] = self.process_server.popen(command_words, stdout=subprocess.PIPE)
        self.said[name] = []
        await self.nursery.start(read_process, life, partial(self._hear, name))

    def _hear(self, name, word, what):
        if word == "CALL":
            self.calls[what] += 1
        elif word == "DID":
            self.effects[what] += 1
        elif word == "PORT":
            self.ports[name] = parse_address(what)
            self.cluster.balancer.ports.append(parse_address(what))
        else:
            self.said[name].append(word)

    def kill(self, name, number=signal.SIGKILL):
        self.running[name].send_signal(number)

    async def count(self, what):
        """Count rows in the database, for example `count("partitions WHERE NOT clean")`."""
        return await trio.to_thread.run_sync(self._count, what)

    def _count(self, what):
        address, _, schema = self.cluster.journal.partition("?schema=")
        with psycopg.connect(address) as database:
            table, _, condition = what.partition(" ")
            return database.execute(f"SELECT count(*) FROM {schema}.{table} {condition}").fetchone()[0]

    async def settle(self, names):
        """Wait until all nodes have equal numbers of partitions and no partition moves."""
        with trio.fail_after(PATIENCE):
            for name in names:
                owned = f"partitions WHERE owner LIKE '{name}-%' AND NOT clean"
                while await self.count(owned) != DEFAULT_PARTITIONS // len(names):  # noqa: ASYNC110 - no event signals this state
                    await trio.sleep(0.1)

    def end(self):
        for life in self.running.values():
            life.send_signal(signal.SIGCONT)
            life.kill()
            life.wait()
            life.stdout.close()
        shutil.rmtree(self.deaths, ignore_errors=True)


@asynccontextmanager
async def open_nodes(process_server, cluster):
    """Yield the `Nodes` of a cluster. They are killed when the block ends."""
    async with trio.open_nursery() as nursery:
        nodes = Nodes(process_server, cluster, nursery)
        try:
            yield nodes
        finally:
            nodes.end()
            nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Talks:
    """Many conversations of one client, with the answers received in each."""

    heard: dict = attrs.field(factory=dict)
    said: dict = attrs.field(factory=dict)
    done: int = 0

    async def reach(self, number):
        """Wait until the given number of messages was accepted."""
        while self.done < number:  # noqa: ASYNC110 - only a counter changes
            await trio.sleep(0.01)

    async def hold(self, client, count, messages, pause):
        agent = client.agent("clerk")
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(self._talk, agent, f"s{number}", messages, pause)

    async def _talk(self, agent, session_id, messages, pause):
        session = await agent.create_session("ada", session_id=session_id)
        received, said = self.heard.setdefault(session_id, []), self.said.setdefault(session_id, [])
        session.on_conversation(lambda reply: received.append(reply.text))
        for number in range(messages):
            said.append(f"{session_id}-{number}")
            await session.chat(said[-1], message_id=said[-1])
            self.done += 1
            await trio.sleep(pause)
        await session.wait_idle()

    async def check(self, client):
        """Assert that each message was answered once, in order, for the client and in the journal."""
        for session_id, said in self.said.items():
            answers = [f"you said: {each}" for each in said]
            assert self.heard[session_id] == answers, session_id
            session = await client.agent("clerk").open_session(session_id)
            history = await session.history()
            assert [each.text for each in history if each.sender.kind == "user"] == said
            assert [each.text for each in history if each.sender.kind == "assistant"] == answers


@asynccontextmanager
async def talking(nodes, *, count=30, messages=10, pause=0.1):
    """Yield the `Talks` of a client.

    After the block, assert that all conversations are answered and that no session is a suspect.
    """
    talks = Talks()
    async with nodes.cluster.connect(retry_timeout=PATIENCE) as client:
        with trio.fail_after(2 * PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(talks.hold, client, count, messages, pause)
                yield talks
        await talks.check(client)
        with trio.fail_after(PATIENCE):
            while (await read_cluster_tables(nodes.cluster.journal, nodes.cluster.pool)).suspects:  # noqa: ASYNC110 - suspects are removed later
                await trio.sleep(0.2)
    assert talks.done == count * messages
