"""Twenty concurrent sessions with a server process that dies or hangs.

No message is lost, and no effect is repeated.
"""

import os
import signal
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from actgent import Failure, Reply, connect
from actgent.client.http import http_transport

from .servers import make_token, start  # noqa: F401 - a fixture

SESSIONS, MESSAGES = 20, 6
WAYS = ("run", "chat", "stream")


@attrs.define
class Told:
    """The deliveries of one session to its handlers, and the answers to its callers."""

    name: str
    replies: list = attrs.field(factory=list)
    failures: list = attrs.field(factory=list)
    tokens: list = attrs.field(factory=list)
    asked: list = attrs.field(factory=list)
    came: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    """Tasks that wait for more replies."""

    def hear(self, reply):
        self.replies.append(reply)
        self.came.unpark_all()


async def talk(agent, told, over):
    """Send messages in one session by `run`, `chat` and `stream`, and wait until the handlers have received all replies."""
    session = await agent.ensure_session(None, told.name)
    session.on_conversation(told.hear)
    session.on_exception(told.failures.append)
    session.on_token(told.tokens.append)
    for number in range(MESSAGES):
        way, text, said = WAYS[number % 3], f"{told.name} {number}", {"message_id": f"{told.name}-{number}"}
        if way == "run":
            told.asked.append((await agent.run(text, session=session, **said)).text)
        elif way == "chat":
            await session.chat(text, **said)
        else:
            async with agent.stream(text, session=session, **said) as deliveries:
                received = [each async for each in deliveries]
            assert not [each for each in received if isinstance(each, Failure)]
            told.asked += [each.text for each in received if isinstance(each, Reply)]
    await session.wait_idle()
    over.append(session)


async def check(agent, told):
    """Assert that the journal, the callers and the handlers have each message and each answer once, in order."""
    session = await agent.open_session(told.name)
    history = await session.history()
    answers = [each for each in history if each.sender.kind == "assistant"]
    texts = [f"you said: {told.name} {number}" for number in range(MESSAGES)]
    assert [each.id for each in history if each.sender.kind == "user"] == [
        f"{told.name}-{number}" for number in range(MESSAGES)
    ]
    assert [each.text for each in answers] == texts
    assert [each.id for each in told.replies] == [each.id for each in answers]
    assert told.asked == [texts[number] for number in range(MESSAGES) if WAYS[number % 3] != "chat"]
    assert told.failures == []
    for reply in told.replies:
        last = max(each.attempt for each in told.tokens if each.reply_id == reply.id)
        grown = [each.text for each in told.tokens if (each.reply_id, each.attempt) == (reply.id, last)]
        assert "".join(grown) == reply.text


@asynccontextmanager
async def talking(url, token):
    """Yield twenty sessions that send messages, and the list of finished sessions.

    After the block, wait until all sessions have finished, and check them.
    """
    came, over = trio.lowlevel.ParkingLot(), []
    everything = [Told(f"s{number:02}", came=came) for number in range(SESSIONS)]
    async with connect(url, token=token, retry_timeout=120) as client:
        agent = client.agent("clerk")
        with trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                for told in everything:
                    nursery.start_soon(talk, agent, told, over)
                yield everything, over
            assert len(over) == SESSIONS
        for told in everything:
            await check(agent, told)


async def heard(everything, number):
    """Wait until the handlers of all sessions have received the given number of replies."""
    while sum(len(told.replies) for told in everything) < number:
        await everything[0].came.park()


async def test_server_is_killed_three_times(start, commands, tmp_path):  # noqa: F811
    """The server is killed during runs, chats and streams, and restarted at its address."""
    token = make_token(commands, tmp_path)
    process, url = await trio.to_thread.run_sync(start)
    port = int(url.rpartition(":")[2])
    async with talking(url, token) as (everything, over):
        for number in (10, 45, 80):
            await heard(everything, number)
            if number == 10:
                at_first_kill = [len(told.replies) for told in everything]
            # a request whose connection breaks three times is not retried, so no request may last from the first to the third kill
            while number == 80 and any(
                len(told.replies) == before for told, before in zip(everything, at_first_kill, strict=True)
            ):
                await everything[0].came.park()
            assert len(over) < SESSIONS
            process.kill()
            await trio.to_thread.run_sync(process.wait)
            process, _ = await trio.to_thread.run_sync(start, port)


@pytest.mark.parametrize("end", ["goes on", "is killed"])
async def test_hanging_server(start, commands, tmp_path, monkeypatch, end):  # noqa: F811
    """The server does not answer for longer than the timeouts. Then it continues or is killed."""
    for name in ("ANSWER_SECONDS", "STREAM_SILENCE_SECONDS"):
        monkeypatch.setattr(http_transport, name, 2.0)
    token = make_token(commands, tmp_path)
    process, url = await trio.to_thread.run_sync(start)
    port = int(url.rpartition(":")[2])
    async with talking(url, token) as (everything, over):
        await heard(everything, 20)
        assert len(over) < SESSIONS
        os.kill(process.pid, signal.SIGSTOP)
        await trio.sleep(5)
        if end == "goes on":
            os.kill(process.pid, signal.SIGCONT)
        else:
            process.kill()
            await trio.to_thread.run_sync(process.wait)
            await trio.to_thread.run_sync(start, port)


async def test_client_resumes_after_a_server_restart(start, commands, tmp_path):  # noqa: F811
    """A program that ended with a cursor receives the events since then once, although the server was killed."""
    token = make_token(commands, tmp_path)
    process, url = await trio.to_thread.run_sync(start)
    port, first = int(url.rpartition(":")[2]), []
    async with connect(url, token=token) as client:
        agent = client.agent("clerk")
        session = await agent.create_session(session_id="s1")
        session.on_conversation(first.append)
        await agent.run("one", session=session)
        await session.wait_idle()
        cursor = session.cursor
        await (await agent.open_session("s1")).chat("two", message_id="m2")
        process.kill()
        await trio.to_thread.run_sync(process.wait)
    _, url = await trio.to_thread.run_sync(start, port)
    async with connect(url, token=token) as client:
        later, agent = [], client.agent("clerk")
        session = await agent.open_session("s1", after=cursor)
        session.on_conversation(later.append)
        await session.chat("two", message_id="m2")
        await session.wait_idle()
    texts = [each.text for each in first] + [each.text for each in later]
    assert [text for text in texts if text == "you said: two"] == ["you said: two"]
    assert texts[0] == "you said: one"
