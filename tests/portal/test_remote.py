"""A client of agents in another process, for synchronous code and for asyncio, with the same methods."""

import asyncio
from functools import partial

import pytest

from actgent import (
    Approve,
    AsyncPortalClient,
    BareAgent,
    Client,
    LongTermMemory,
    PortalClient,
    Reply,
    ScriptedLLM,
    SessionClosed,
    Suspended,
    ToolCall,
    open_gateway,
    open_portal,
    tool,
)
from actgent.portal.trio_context_managers import HeldBlock, entered_on_trio


@tool(approval=True, effect="once")
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def clerk():
    script = ["one", "two", "three", ToolCall("pay", {"amount": 9}), "It is paid.", "alone"]
    return BareAgent("clerk", llm=ScriptedLLM(script), tools=[pay])


def held_gateway(portal):
    """Yield a gateway of the portal's runtime as a context manager."""
    return HeldBlock(
        portal.thread, entered_on_trio(partial(open_gateway, portal.runtime, bind="127.0.0.1:0"))
    )


def test_synchronous_client_uses_a_server():
    """Sessions, handlers, runs, streams, decisions and errors, with blocking calls."""
    received, with_session = [], []
    with open_portal(journal="memory:") as portal:
        portal.start(clerk())
        block = held_gateway(portal)
        gateway = portal.call(block.enter)
        with PortalClient(portal, gateway.url, token=gateway.key) as client:
            agent = client.agent("clerk")
            session = agent.create_session(session_id="s1")
            session.on_conversation(received.append)
            session.on_conversation(lambda reply, mine: with_session.append((reply.text, mine)))
            session.chat("first", message_id="m1")
            session.wait_idle()
            assert agent.run("second", session=session).text == "two"
            with agent.stream("third", session=session) as deliveries:
                assert [each.text for each in deliveries if isinstance(each, Reply)] == ["three"]
            with pytest.raises(Suspended) as waiting:
                agent.run("pay", session=session)
            assert [each.id for each in session.approvals()] == list(waiting.value.ids)
            assert agent.resume({each: Approve() for each in waiting.value.ids}).text == "It is paid."
            session.wait_idle()
            with session.observe(types=["TOOL_EXECUTION"], after=0) as observations:
                assert next(observations).content == "paid 9"
                assert observations.cursor == session.observations(types=["TOOL_EXECUTION"])[0].number
            assert (session.status(), session.messages().total) == ("idle", 10)
            assert [each.session_id for each in client.sessions()] == ["s1"]
            past = client.rebuild("s1")
            assert [each.id for each in past.history] == [each.id for each in session.history()]
            assert client.fork("s1", new_id="s2").session_id == "s2"
            session.close()
            with pytest.raises(SessionClosed):
                agent.open_session("s1")
        portal.call(block.exit, None)
    assert [reply.text for reply in received] == ["one", "two", "three", "It is paid."]
    assert with_session == [(reply.text, session) for reply in received]


async def talk():
    received = []

    async def hear(reply):
        await asyncio.sleep(0)
        received.append(reply.text)

    async with open_portal(journal="memory:") as portal:
        await portal.start(clerk())
        block = held_gateway(portal)
        gateway = await portal.call(block.enter)
        async with AsyncPortalClient(portal, gateway.url, token=gateway.key) as client:
            agent = client.agent("clerk")
            session = await agent.ensure_session(None, "s1")
            async with session.listening(on_conversation=hear):
                await session.chat("first")
                await session.wait_idle()
            cursor = await session.cursor()
            assert cursor > 0
            assert (await agent.run("second", session=session)).text == "two"
            async with agent.stream("third", session=session) as deliveries:
                assert [each.text async for each in deliveries if isinstance(each, Reply)] == ["three"]
            with pytest.raises(Suspended) as waiting:
                await agent.run("pay", session=session)
            async with agent.follow(session) as deliveries:
                await session.answer(waiting.value.ids[0], Approve())
                texts = [each.text async for each in deliveries if isinstance(each, Reply)]
            assert texts == ["It is paid."]
            assert (await session.status(), await session.cursor()) == ("idle", cursor)
            first = next(iter(await session.messages()))
            await client.rate("s1", first.id, score=1, comment="good")
            assert [each.comment for each in await client.ratings("s1", first.id)] == ["good"]
            assert await client.schedules() == ()
            await session.aclose()
        await portal.call(block.exit, None)
    return received


def test_asyncio_client_uses_a_server():
    """The asyncio client has the same methods as coroutines.

    Handlers run on the event loop for the duration of their block.
    """
    assert asyncio.run(talk()) == ["one"]


def test_memories_of_a_remote_agent_are_called_on_trio():
    """The portal needs no proxy for `RemoteLongTermMemory`, because `call` passes keyword arguments."""
    with open_portal(journal="memory:") as portal:
        memories = HeldBlock(portal.thread, LongTermMemory())
        opened = portal.call(memories.enter)
        portal.start(BareAgent("clerk", llm=ScriptedLLM([]), long_term_memory=opened))
        block = held_gateway(portal)
        gateway = portal.call(block.enter)
        with PortalClient(portal, gateway.url, token=gateway.key) as client:
            made = portal.call(opened.remember, "Ada lives in Paris", owner="ada")
            remote = client.agent("clerk").inner.long_term_memory
            found = portal.call(remote.browse, owner="ada").memories
            assert [each.id for each in found] == [made.id]
            assert portal.call(remote.forget, made.id, owner="ada") == 1
            assert portal.call(opened.page, owner="ada") == []
        portal.call(block.exit, None)
        portal.call(memories.exit, None)


@pytest.mark.parametrize("theirs", [PortalClient, AsyncPortalClient])
def test_portal_clients_have_all_client_methods(theirs):
    """Each public method of the trio client exists in both portal clients."""
    words = {name for name in dir(Client) if not name.startswith("_")}
    assert words - set(dir(theirs)) == set()
