"""Requests that kill each node that serves them: reads, lists, and messages that are not accepted yet."""

import pytest
import trio

from actgent import ServerUnreachable

from .pairs import PATIENCE

NAMES = ("one", "two", "three", "four")


def running(nodes):
    """Return the number of running node processes."""
    return sum(nodes.running[name].poll() is None for name in NAMES)


async def start_all(nodes):
    for name in NAMES:
        await nodes.start(name)


async def test_list_request_kills_at_most_three_nodes(nodes):
    """The client gets an error and does not retry. The fourth node answers other requests."""
    with trio.fail_after(2 * PATIENCE):
        await start_all(nodes)
        async with nodes.cluster.connect(retry_timeout=PATIENCE) as client:
            clerk = client.agent("clerk")
            session = await clerk.create_session("ada", session_id="s1")
            with pytest.raises(
                ServerUnreachable, match="3 connections broke during the request 'list_sessions'"
            ) as error:
                await client.sessions(prefix="kill")
            assert error.value.was_sent
            assert running(nodes) in {1, 2}
            assert [each.session_id for each in await client.sessions(prefix="s")] == [session.id]
            assert (await clerk.run("hello", session=session)).text == "you said: hello"


async def read_history(clerk, session):
    await session.history()


async def stream_answer(clerk, session):
    async with clerk.stream("hello", session=session) as deliveries:
        async for _ in deliveries:
            pass


@pytest.mark.parametrize("read", [read_history, stream_answer])
async def test_read_request_kills_at_most_three_nodes(nodes, read):
    """The fourth node answers for other sessions and reads them."""
    with trio.fail_after(3 * PATIENCE):
        await start_all(nodes)
        async with nodes.cluster.connect(retry_timeout=PATIENCE) as client:
            clerk = client.agent("clerk")
            session = await clerk.create_session("ada", session_id="kill-1")
            other = await clerk.create_session("ada", session_id="s1")
            with pytest.raises(ServerUnreachable, match="3 connections broke") as error:
                await read(clerk, session)
            assert error.value.was_sent
            assert running(nodes) in {1, 2}
            assert (await clerk.run("hello", session=other)).text == "you said: hello"
            assert len(await other.history()) == 2


async def test_unaccepted_message_kills_at_most_three_nodes(nodes, monkeypatch):
    """The message is not stored for the next owner.

    A corrected node answers it once if it is sent again under its id.
    """
    with trio.fail_after(3 * PATIENCE):
        await start_all(nodes)
        async with nodes.cluster.connect(retry_timeout=PATIENCE) as client:
            clerk = client.agent("clerk")
            session, other = await clerk.create_session("ada"), await clerk.create_session("bob")
            with pytest.raises(
                ServerUnreachable, match="3 connections broke during the request 'say'"
            ) as error:
                await session.chat("hello", message_id="kill-1")
            assert error.value.was_sent
            assert running(nodes) in {1, 2}
            assert await nodes.count("pending_messages") == 0
            assert (await clerk.run("hello", session=other)).text == "you said: hello"

            monkeypatch.setenv("ACTGENT_MENDED", "1")
            await nodes.start("corrected")
            for name in NAMES:
                nodes.kill(name)
            assert (await clerk.run("hello", session=session, message_id="kill-1")).text == "you said: hello"
            history = await session.history()
            assert [each.id for each in history if each.sender.kind == "user"] == ["kill-1"]
