"""Nodes that are killed, hang and leave in the middle of many conversations: each message is answered once, in order."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from actgent import Approve, Suspended
from actgent.journal.postgres.cluster_tables import read_dead

LIFE = Path(__file__).with_name("life.py")
PATIENCE = 120
"""Seconds for which clients try again; each cut that loses an answer may cost 15 s of it, on a fast machine too."""


@attrs.define(eq=False)
class Nodes:
    """Nodes in processes of their own."""

    lives: object
    cluster: object
    nursery: trio.Nursery
    calls: Counter = attrs.field(factory=Counter)
    """What models were asked, and how often."""
    running: dict = attrs.field(factory=dict)
    said: dict = attrs.field(factory=dict)

    async def start(self, name, *, broker=None):
        """Start a node, and wait until its agent runs."""
        command = [
            sys.executable,
            LIFE,
            self.cluster.journal,
            broker or self.cluster.broker,
            self.cluster.pool,
        ]
        life = self.running[name] = self.lives.popen([*command, name], stdout=subprocess.PIPE)
        self.said[name] = []
        await self.nursery.start(self._listen, name, life)

    async def _listen(self, name, life, *, task_status):
        rest = b""
        async with trio.lowlevel.FdStream(os.dup(life.stdout.fileno())) as stream:
            async for data in stream:
                *lines, rest = (rest + data).split(b"\n")
                for line in map(bytes.decode, lines):
                    word, _, what = line.partition(" ")
                    if word == "CALL":
                        self.calls[what] += 1
                    elif word == "READY":
                        task_status.started()
                    else:
                        self.said[name].append(word)

    def kill(self, name, number=signal.SIGKILL):
        self.running[name].send_signal(number)

    def end(self):
        for life in self.running.values():
            life.send_signal(signal.SIGCONT)
            life.kill()
            life.wait()
            life.stdout.close()


@pytest.fixture
async def nodes(lives, open_cluster):
    """What starts nodes of a cluster of the test's own, and kills them."""
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        started = Nodes(lives, cluster, nursery)
        try:
            yield started
        finally:
            started.end()
            nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Talks:
    """Many conversations of one client, and what it heard in each."""

    heard: dict = attrs.field(factory=dict)
    said: dict = attrs.field(factory=dict)
    done: int = 0

    async def reach(self, number):
        """Wait until so many messages were accepted."""
        while self.done < number:  # noqa: ASYNC110 - each conversation counts
            await trio.sleep(0.01)

    async def hold(self, client, count, messages, pause):
        agent = client.agent("clerk")
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(self._talk, agent, f"s{number}", messages, pause)

    async def _talk(self, agent, session_id, messages, pause):
        session = await agent.create_session("ada", session_id=session_id)
        heard, said = self.heard.setdefault(session_id, []), self.said.setdefault(session_id, [])
        session.on_conversation(lambda reply: heard.append(reply.text))
        for number in range(messages):
            said.append(f"{session_id}-{number}")
            await session.chat(said[-1], message_id=said[-1])
            self.done += 1
            await trio.sleep(pause)
        await session.wait_idle()

    async def check(self, client):
        """Everything was answered once, in order, for the client and in the journal."""
        for session_id, said in self.said.items():
            answers = [f"you said: {each}" for each in said]
            assert self.heard[session_id] == answers, session_id
            session = await client.agent("clerk").open_session(session_id)
            history = await session.history()
            assert [each.text for each in history if each.sender.kind == "user"] == said
            assert [each.text for each in history if each.sender.kind == "assistant"] == answers


@asynccontextmanager
async def talking(nodes, *, count=30, messages=10, pause=0.1):
    """A client in the middle of conversations for the block; then they are to end well, and all is as it was said."""
    talks = Talks()
    async with nodes.cluster.connect(patience=PATIENCE) as client:
        with trio.fail_after(2 * PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(talks.hold, client, count, messages, pause)
                yield talks
        await talks.check(client)
    assert talks.done == count * messages


async def test_a_node_is_killed_in_the_middle_of_conversations(nodes):
    """Another one goes on with its sessions, also while partitions move: nothing is lost or answered twice, and order stays."""
    await nodes.start("a")
    await nodes.start("b")
    async with talking(nodes) as talks:
        await talks.reach(100)
        nodes.kill("a")
    assert sum(nodes.calls.values()) < 300 + 60


async def test_a_node_hangs_and_comes_back(nodes):
    """What it was about to write is not written: its sessions live elsewhere by then."""
    await nodes.start("a")
    await nodes.start("b")
    async with talking(nodes, messages=20, pause=0.4) as talks:
        await talks.reach(100)
        nodes.kill("a", signal.SIGSTOP)
        await talks.reach(400)
        nodes.kill("a", signal.SIGCONT)
        await talks.reach(500)
        nodes.kill("b")


async def test_a_node_leaves_while_it_works(nodes):
    """It hands over what it has: the process ends, and few models are asked twice."""
    await nodes.start("a")
    await nodes.start("b")
    async with talking(nodes) as talks:
        await talks.reach(100)
        nodes.kill("a", signal.SIGTERM)
        while "LEFT" not in nodes.said["a"]:  # noqa: ASYNC110 - a process tells it
            await trio.sleep(0.05)
    assert sum(nodes.calls.values()) <= 300 + 30


async def test_connections_to_the_broker_are_cut(nodes, relay):
    """A node that has lost the broker goes on where it was, and its turns, too: no model is asked twice."""
    await nodes.start("a", broker=f"amqp://guest:guest@127.0.0.1:{relay.port}/")
    async with talking(nodes, messages=20) as talks:
        for number in (100, 200, 300):
            await talks.reach(number)
            relay.cut()
    assert sum(nodes.calls.values()) == 600


async def test_what_waits_is_carried_over_a_kill(nodes):
    """An approval, a schedule, and an answer that grows: each goes on at another node, once."""
    await nodes.start("a")
    async with nodes.cluster.connect(patience=PATIENCE) as client:
        agent = client.agent("clerk")
        asked, scheduled, growing = [await agent.create_session("ada") for _ in range(3)]
        heard, fired, tokens = [], [], []
        growing.on_conversation(heard.append)
        scheduled.on_conversation(lambda reply: fired.append(reply.text))
        growing.on_token(tokens.append)
        with pytest.raises(Suspended):
            await agent.run("deploy mars", session=asked)
        await scheduled.schedule("look", after=3)
        await growing.chat("slowly one two three four")
        with trio.fail_after(2 * PATIENCE):
            while len(tokens) < 3:  # noqa: ASYNC110 - handlers tell it
                await trio.sleep(0.01)
            nodes.kill("a")
            await nodes.start("b")
            (approval,) = await asked.approvals()
            reply = await agent.resume({approval.id: Approve()})
            assert reply.text == "done: deployed to mars"
            while not (heard and fired):  # noqa: ASYNC110 - as above
                await trio.sleep(0.01)
        (whole,) = heard
        assert whole.text == "you said: slowly one two three four"
        assert len(fired) == 1
        assert "look" in fired[0]
        assert "".join(each.text for each in tokens if each.reply_id == whole.id) == whole.text
        assert (await scheduled.messages()).total == 2
    assert nodes.calls["deploy mars"] == 1


async def test_what_kills_each_node_is_buried(nodes):
    """Three nodes die of a message, two more with its session alone; then it has failed, and its session goes on."""
    async with nodes.cluster.connect(patience=PATIENCE) as client, trio.open_nursery() as nursery:
        number = 0

        async def keep_alive():
            nonlocal number
            while True:
                number += 1
                await nodes.start(f"n{number}")
                while nodes.running[f"n{number}"].poll() is None:  # noqa: ASYNC110 - as below
                    await trio.sleep(0.05)

        nursery.start_soon(keep_alive)
        with trio.fail_after(2 * PATIENCE):
            agent = client.agent("clerk")
            other, session = await agent.create_session("ada"), await agent.create_session("ada")
            failures = []
            session.on_exception(failures.append)
            await session.chat("kill", message_id="m1")
            while not failures:  # noqa: ASYNC110 - a handler tells it
                await trio.sleep(0.05)
            assert [(each.kind, each.message_id) for each in failures] == [("poison", "m1")]
            assert (await agent.run("hello", session=session)).text == "you said: hello"
            assert (await agent.run("hello", session=other)).text == "you said: hello"
        (dead,) = await read_dead(nodes.cluster.journal)
        assert (dead.session_id, dead.message_id) == (session.id, "m1")
        nursery.cancel_scope.cancel()
    assert nodes.calls["kill"] == 5
