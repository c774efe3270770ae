"""Requests that kill each node which begins with them: of any node, and of the owner of a session."""

import pytest
import trio

from actgent import Message, RemoteError, Sender
from actgent.cluster.amqp import parse_broker
from actgent.cluster.operations.dead import drop_message, retry_dead
from actgent.cluster.pools import PoolLinks
from actgent.journal.postgres import read_dead
from actgent.runtime.delegation.pools import PoolTask

from .pairs import PATIENCE


async def test_a_list_that_kills_its_node_kills_two(nodes):
    """Who asked hears why, and does not ask again; what others ask meanwhile is answered."""
    names = ("one", "two", "three", "four")
    with trio.fail_after(2 * PATIENCE):
        for name in names:
            await nodes.start(name)
        async with nodes.cluster.connect(patience=PATIENCE) as client:
            session = await client.agent("clerk").create_session("ada", session_id="s1")
            with pytest.raises(RemoteError) as refused:
                await client.sessions(prefix="kill")
            assert (refused.value.kind, refused.value.status) == ("poison", 500)
            assert "2 nodes have gone" in str(refused.value)
            assert [each.session_id for each in await client.sessions(prefix="s")] == [session.id]
            assert (await client.agent("clerk").run("hello", session=session)).text == "you said: hello"
        assert sum(nodes.running[name].poll() is None for name in names) == 2


async def test_a_message_that_kills_its_node_before_it_is_accepted_kills_three(nodes, monkeypatch):
    """Then it is refused to its sender and given up; what was asked beside it is answered, and a person sends it again or drops it."""
    names, clerk_of = ("one", "two", "three", "four"), None
    journal, broker, pool = nodes.cluster.journal, nodes.cluster.broker, nodes.cluster.pool
    with trio.fail_after(3 * PATIENCE):
        for name in names:
            await nodes.start(name)
        async with nodes.cluster.connect(patience=PATIENCE) as client:
            clerk_of = client.agent("clerk")
            session, others = (
                await clerk_of.create_session("ada"),
                [await clerk_of.create_session("bob") for _ in range(8)],
            )
            answers = {}

            async def talk(other):
                answers[other.id] = [(await clerk_of.run("hello", session=other)).text for _ in range(10)]

            async with trio.open_nursery() as nursery:
                for other in others:
                    nursery.start_soon(talk, other)
                with pytest.raises(RemoteError) as refused:
                    await session.chat("hello", message_id="kill-1")
            assert (refused.value.kind, refused.value.status) == ("poison", 500)
            assert "3 nodes have gone" in str(refused.value)
            assert answers == {other.id: ["you said: hello"] * 10 for other in others}
            assert sum(nodes.running[name].poll() is None for name in names) == 1
            (dead,) = await read_dead(journal)
            assert (dead.session_id, dead.message_id, dead.agent, dead.is_request) == (
                session.id,
                "kill-1",
                "clerk",
                True,
            )

            monkeypatch.setenv("ACTGENT_MENDED", "1")
            await nodes.start("mended")
            for name in names:
                nodes.kill(name)
            for _ in range(2):
                assert await retry_dead(journal, broker, pool, "kill-1") == "kill-1"
            await session.wait_idle()
            history = await session.history()
            assert [(each.id, each.text) for each in history if each.sender.kind == "user"] == [
                ("kill-1", "hello")
            ]
            assert [each.text for each in history if each.sender.kind == "assistant"] == ["you said: hello"]
            assert [each.retried_as for each in await read_dead(journal)] == ["kill-1"]
            await drop_message(journal, "kill-1")
            assert not await read_dead(journal)


async def test_a_task_of_another_pool_that_kills_its_node_kills_three(nodes):
    """Its asker asks again and again, and is told then that it is refused; so is a person."""
    names = ("one", "two", "three", "four", "five")
    said = Message(session_id="kill-1", sender=Sender("ada"), parts="hello")
    task = PoolTask(session_id="kill-1", agent="clerk", asker="p/a/s", owner="ada@p", message=said)
    with trio.fail_after(PATIENCE):
        for name in names:
            await nodes.start(name)
        async with trio.open_nursery() as nursery:
            links = PoolLinks(parse_broker(nodes.cluster.broker), pool="p", node="n", nursery=lambda: nursery)
            report = await links.ask(nodes.cluster.pool, task, patience=PATIENCE)
            assert "3 nodes have gone" in report.refused
            nursery.cancel_scope.cancel()
    assert sum(nodes.running[name].poll() is None for name in names) == 2
    assert [each.is_request for each in await read_dead(nodes.cluster.journal)] == [True]


async def history(clerk, session):
    return await session.history()


async def stream(clerk, session):
    async with clerk.stream("hello", session=session) as stream:
        return [each async for each in stream]


@pytest.mark.parametrize("read", [history, stream])
async def test_a_read_that_kills_its_node_kills_three(nodes, read):
    """It is refused to who asks again and again; other sessions are answered, and read, where the fourth node is left."""
    names = ("one", "two", "three", "four")
    with trio.fail_after(3 * PATIENCE):
        for name in names:
            await nodes.start(name)
        async with nodes.cluster.connect(patience=60) as client:
            clerk = client.agent("clerk")
            session = await clerk.create_session("ada", session_id="kill-1")
            other = await clerk.create_session("ada", session_id="s1")
            with pytest.raises(RemoteError) as refused:
                await read(clerk, session)
            assert (refused.value.kind, refused.value.status) == ("poison", 500)
            assert "3 nodes have gone" in str(refused.value)
            assert (await clerk.run("hello", session=other)).text == "you said: hello"
            assert len(await other.history()) == 2
        assert sum(nodes.running[name].poll() is None for name in names) == 1
        assert not await read_dead(nodes.cluster.journal)
