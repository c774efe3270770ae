"""A message is interrupted before it arrives, and its session moves to another node."""

import pytest
import trio

from actgent import Interrupted

from .pairs import PATIENCE, drain


async def test_interrupt_survives_the_kill_of_its_node(nodes):
    """The interrupt is in the journal. The next node ends the message without a model call."""
    with trio.fail_after(2 * PATIENCE):
        for name in ("one", "two"):
            await nodes.start(name)
        await nodes.settle(("one", "two"))
        async with nodes.cluster.connect(retry_timeout=PATIENCE) as client:
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


async def test_interrupt_survives_a_move(pair):
    """An interrupt through any node or client stays effective after the move."""
    one, two = pair.agents
    with trio.fail_after(PATIENCE):
        async with pair.cluster.connect(retry_timeout=PATIENCE) as client:
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
