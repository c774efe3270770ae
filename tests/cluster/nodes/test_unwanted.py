"""A message that was stopped before it came, whose session is another node's by then."""

import pytest
import trio

from actgent import Interrupted, SessionClosed
from actgent.cluster.transport import BrokerTransport

from .pairs import PATIENCE, Echo, drain, make_clerk, open_pair


@pytest.fixture
async def pair(open_cluster):
    async with open_pair(open_cluster) as opened:
        yield opened


async def test_a_stop_holds_when_its_node_is_killed(nodes):
    """What was answered is in the journal: the message ends as it comes to the next node, which asks no model for it."""
    with trio.fail_after(2 * PATIENCE):
        for name in ("one", "two"):
            await nodes.start(name)
        await nodes.settle(("one", "two"))
        async with nodes.cluster.connect(patience=PATIENCE) as client:
            clerk = client.agent("clerk")
            sessions = [await clerk.create_session("ada", session_id=f"s{number}") for number in range(8)]
            for session in sessions:
                await session.interrupt("too late", message_id="m1")
            nodes.kill("one")
            for session in sessions:
                with pytest.raises(Interrupted, match="too late"):
                    await clerk.run("transfer", session=session, message_id="m1")
                await clerk.run("later", session=session)
        assert nodes.calls["transfer"] == 0
        assert nodes.calls["later"] == len(sessions)


async def test_a_stop_holds_when_its_session_moves(pair):
    """Said by whoever holds the session, at a node or at a client."""
    one, two = pair.agents
    with trio.fail_after(PATIENCE):
        async with pair.cluster.connect(patience=PATIENCE) as client:
            session = await one.create_session("ada")
            there = await client.agent("clerk").open_session(session.id)
            await session.interrupt(message_id="m1")
            await there.interrupt(message_id="m2")
            await drain(pair.cluster, pair.one)
            await session.interrupt(message_id="m3")
            for said in (session, there, await two.open_session(session.id)):
                for message_id in ("m1", "m2", "m3"):
                    await said.chat(f"transfer {message_id}", message_id=message_id)
            await session.wait_idle()
            await there.chat("later")
            await there.wait_idle()
        assert pair.models[0].asked == []
        assert pair.models[1].asked == ["later"]


async def test_a_stop_where_nothing_runs_is_not_sent(open_cluster, monkeypatch):
    """It would stop what runs by the time at which the broker delivers it again; of a closed session its owner says that it is."""
    call, operations = BrokerTransport._call, []

    async def note(transport, request):
        operations.append(request.operation)
        return await call(transport, request)

    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(make_clerk(Echo())),
            cluster.connect(patience=PATIENCE) as client,
        ):
            session = await client.agent("clerk").create_session("ada")
            await session.chat("hello")
            await session.wait_idle()
            monkeypatch.setattr(BrokerTransport, "_call", note)
            await session.interrupt()
            assert operations == ["get_session"]
            await session.interrupt(drop_queued=True)
            await session.interrupt(message_id="m9")
            assert operations[1:] == ["interrupt"] * 2
            await session.aclose()
            with pytest.raises(SessionClosed):
                await session.interrupt()
