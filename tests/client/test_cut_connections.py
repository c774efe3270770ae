"""Broken connections, killed servers and slow readers. No message is lost, and no delivery is repeated."""

import pytest
import trio

from actgent import (
    BareAgent,
    GatewayLimits,
    Reply,
    ScriptedLLM,
    ServerUnreachable,
    Token,
    UsageError,
    connect,
)

from .relays import open_relay
from .servers import make_token, start  # noqa: F401 - a fixture


async def talk(agent, session, name, number):
    """Send the given number of messages in turn by `run`, `chat` and `stream`, each with a separate id."""
    for each in range(number):
        message_id, text = f"{name}-{each}", f"{name} {each}"
        if each % 3 == 0:
            reply = await agent.run(text, session=session, message_id=message_id)
            assert reply.text == f"you said: {text} "
        elif each % 3 == 1:
            await session.chat(text, message_id=message_id)
        else:
            async with agent.stream(text, session=session, message_id=message_id) as deliveries:
                received = [delivery async for delivery in deliveries]
            assert [one.text for one in received if isinstance(one, Reply)] == [f"you said: {text} "]
            assert "".join(one.text for one in received if isinstance(one, Token)) == f"you said: {text} "


@pytest.mark.parametrize("seed", range(3))
async def test_cut_connections_lose_no_message(served, seed):
    """Forty connections are cut at any byte. Each message is answered once, and handlers receive each answer once, in order."""
    received, tokens = [], []
    async with open_relay(served.url, seed=seed, cuts=40) as relay, served.connect(url=relay.url) as client:
        agent = client.agent("clerk")
        session = await agent.create_session("ada", session_id="s1")
        session.on_conversation(received.append)
        session.on_token(tokens.append)
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for name in ("a", "b"):
                    nursery.start_soon(talk, agent, session, name, 12)
            while relay.left > 0:
                await agent.run("more", session=session)
            await session.wait_idle()
        history = await session.history()
    answers = [each for each in history if each.sender.kind == "assistant"]
    assert [reply.text for reply in received] == [each.text for each in answers]
    assert [reply.id for reply in received] == [each.id for each in answers]
    messages = [each.id for each in history if each.sender.kind == "user"]
    assert len(set(messages)) == len(messages) == len(answers) >= 24
    for reply in received:
        last = max((each.attempt for each in tokens if each.reply_id == reply.id), default=0)
        shown = [each.text for each in tokens if (each.reply_id, each.attempt) == (reply.id, last)]
        assert "".join(shown) == reply.text


async def test_observations_survive_cut_connections(served):
    """A subscriber whose connections are cut receives each observation once."""
    async with (
        open_relay(served.url, seed=9, cuts=15, longest=1500) as relay,
        served.connect(url=relay.url) as client,
    ):
        agent = client.agent("clerk")
        session = await agent.create_session("ada")
        with trio.fail_after(60):
            async with session.observe(after=0) as reader:
                for number in range(12):
                    await agent.run(f"recite {number + 1}", session=session)
                await session.aclose()
                received = [each async for each in reader]
        assert relay.left <= 0
    page = await served.runtime.observations(session.id, agent="clerk", limit=500)
    history = [each.id for each in page]
    assert [each.id for each in received if each.is_whole] == history
    assert len(history) == 12 * 3


class Counted:
    """Collects replies, and lets tasks wait for a number of them."""

    def __init__(self):
        self.replies, self._came = [], trio.lowlevel.ParkingLot()

    def take(self, reply):
        self.replies.append(reply)
        self._came.unpark_all()

    async def wait_for(self, number):
        while len(self.replies) < number:
            await self._came.park()


async def test_killed_server_loses_no_message(start, commands, tmp_path):  # noqa: F811
    """The server is killed and restarted. Each message is answered once, and handlers receive each answer once."""
    token, received = make_token(commands, tmp_path), Counted()
    process, url = await trio.to_thread.run_sync(start)
    port = int(url.rpartition(":")[2])
    async with connect(url, token=token, retry_timeout=60) as client:
        agent = client.agent("clerk")
        session = await agent.create_session("ada", session_id="s1")
        session.on_conversation(received.take)
        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(talk_briefly, agent, session, name)
            for number in (4, 9):
                await received.wait_for(number)
                process.kill()
                await trio.to_thread.run_sync(process.wait)
                process, _ = await trio.to_thread.run_sync(start, port)
        await session.wait_idle()
        answers = [each for each in await session.history() if each.sender.kind == "assistant"]
    assert [reply.id for reply in received.replies] == [each.id for each in answers]
    assert sorted(reply.text for reply in received.replies) == sorted(
        f"you said: {name} {each}" for name in ("a", "b") for each in range(8)
    )


async def talk_briefly(agent, session, name):
    for each in range(8):
        reply = await agent.run(f"{name} {each}", session=session, message_id=f"{name}-{each}")
        assert reply.text == f"you said: {name} {each}"


async def test_slow_handler_delays_no_other_and_loses_nothing(serving):
    """The server disconnects a blocked handler. After it continues, it receives each answer once."""
    gate, received = trio.Event(), []
    long = BareAgent("clerk", llm=ScriptedLLM(["x" * 100_000], repeat=True), max_concurrent_sessions=4)

    async def slow(reply):
        await gate.wait()
        received.append(reply)

    limits = GatewayLimits(rate=10_000, burst=10_000, grace=1, send_seconds=0.5)
    async with serving(long, limits=limits) as served, served.connect() as client:
        agent = client.agent("clerk")
        session = await agent.create_session("ada")
        session.on_conversation(slow)
        with trio.fail_after(120):
            for _ in range(60):
                await agent.run("again", session=session)
            gate.set()
            await session.wait_idle()
        history = await session.history()
    assert [each.id for each in received] == [each.id for each in history if each.sender.kind == "assistant"]
    assert len(received) == 60


async def test_unreachable_server_raises_within_retry_timeout():
    """The client retries within its retry timeout. Then the error states that the request was not sent."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    async with connect(f"http://127.0.0.1:{port}", token="act_x", retry_timeout=0.3) as client:
        with pytest.raises(ServerUnreachable) as error:
            await client.agents()
    assert not error.value.was_sent


async def test_closed_client_names_the_remedy():
    """The error of a call after the block of `connect` is a usage error, not an unreachable server."""
    async with connect("http://127.0.0.1:9", token="act_x", retry_timeout=60) as client:
        pass
    with pytest.raises(UsageError, match=r"inside its block `async with connect"):
        await client.agents()
