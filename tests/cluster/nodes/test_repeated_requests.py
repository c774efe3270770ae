"""Requests that a node relays again after a broken connection, and the chunks of a relayed turn."""

import pytest
import trio

from actgent import LLM, BareAgent, ModelResponse, SessionClosed, SessionExists, Text
from actgent.cluster.relay_client import NodeTransport, _Exchange
from actgent.cluster.relay_server import RelayServer
from actgent.web.streaming import event_broadcast
from actgent.web.streaming.sse import FrameQueue

from .pairs import PATIENCE, wait_balanced

TURNS = 3


def gateway_of_one(pair):
    """Return the address of the gateway of the pair's first node."""
    return f"http://127.0.0.1:{pair.cluster.balancer.ports[0]}"


@pytest.fixture
def break_creation(monkeypatch):
    """Return `break_creation()`, which breaks the connection of the next session creation after its effect.

    It returns the list of session ids whose connection broke.
    """
    answer, expected, broken = RelayServer._answer, [], []

    async def tell_nothing(status, data, is_last, headers):
        await trio.lowlevel.checkpoint()

    async def answer_or_break(self, request, telling, gone):
        if request.http_request.verb != "PUT" or len(broken) >= len(expected):
            await answer(self, request, telling, gone)
            return
        broken.append(request.session_id)
        tell_nothing.is_open = False
        await answer(self, request, tell_nothing, gone)
        raise trio.BrokenResourceError

    def break_next():
        expected.append(True)
        return broken

    monkeypatch.setattr(RelayServer, "_answer", answer_or_break)
    return break_next


async def test_repeated_creation_keeps_the_handlers_of_its_creator(pair, break_creation):
    """The handlers of the created session receive each delivery.

    Another creation of the same id is rejected, also if it is relayed again.
    """
    url, session_id = gateway_of_one(pair), pair.id_at(pair.two)
    with trio.fail_after(PATIENCE):
        async with (
            pair.cluster.connect(url=url, retry_timeout=PATIENCE) as client,
            pair.cluster.connect(url=url, retry_timeout=PATIENCE) as other,
        ):
            broken, received = break_creation(), []
            session = await client.agent("clerk").create_session("ada", "hello", session_id=session_id)
            assert broken == [session_id]
            session.on_conversation(lambda reply: received.append(reply.text))
            await session.wait_idle()
            assert received == ["you said: hello"]

            break_creation()
            with pytest.raises(SessionExists):
                await other.agent("clerk").create_session("ada", session_id=session_id)
            assert len(broken) == 2
            with pytest.raises(SessionExists):
                await client.agent("clerk").create_session("ada", session_id=session_id)
            break_creation()
            found = await other.agent("clerk").ensure_session("ada", session_id)
            assert (found.id, len(broken)) == (session_id, 3)
            assert (await session.messages()).total == 2


async def test_interrupt_without_a_running_turn_is_not_sent(pair, monkeypatch):
    """A repeated interrupt would stop a later turn. The owner of a closed session raises `SessionClosed`."""
    relay, requests = NodeTransport.relay, []

    def note(self, request, **given):
        requests.append((request.http_request.verb, request.http_request.path.rpartition("/")[2]))
        return relay(self, request, **given)

    with trio.fail_after(PATIENCE):
        async with pair.cluster.connect(url=gateway_of_one(pair), retry_timeout=PATIENCE) as client:
            session_id = pair.id_at(pair.two)
            session = await client.agent("clerk").create_session("ada", session_id=session_id)
            await session.chat("hello")
            await session.wait_idle()
            monkeypatch.setattr(NodeTransport, "relay", note)
            await session.interrupt()
            assert requests == [("GET", session_id)]
            await session.interrupt(drop_queued=True)
            await session.interrupt(message_id="m9")
            assert requests[1:] == [("POST", "interrupt")] * 2
            await session.aclose()
            with pytest.raises(SessionClosed):
                await session.interrupt()


class Talking(LLM):
    """A model that answers word by word after `may_go` is set."""

    name = "talking"

    def __init__(self):
        self.may_go = trio.Event()

    async def complete(self, chat, on_text=None):
        await self.may_go.wait()
        self.may_go = trio.Event()
        for word in ("one", " two", " three"):
            await on_text(word, 0)
            await trio.lowlevel.checkpoint()
        return ModelResponse(parts=(Text("one two three"),))


@pytest.fixture
def pieces(monkeypatch):
    """Return the chunks that one node receives from the other.

    Without a batch window, later events come in separate chunks.
    """
    found, read = [], _Exchange.pieces

    async def note(self):
        async for piece in read(self):
            found.append(piece)
            yield piece

    monkeypatch.setattr(_Exchange, "pieces", note)
    monkeypatch.setattr(event_broadcast, "BATCH_WINDOW_SECONDS", 0)
    return found


@pytest.fixture
def live(monkeypatch):
    """Return an event that is set when a stream starts live events.

    Earlier events may come in any number of chunks.
    """
    started, write_all = trio.Event(), FrameQueue.write_all

    async def begin(self):
        started.set()
        await write_all(self)

    monkeypatch.setattr(FrameQueue, "write_all", begin)
    return started


async def test_client_with_a_reply_handler_receives_two_chunks_per_turn(open_cluster, pieces, live):
    """The chunks are the response to its request, and the reply together with its events."""
    received, model = [], Talking()

    async def talk(number):
        pieces.clear()
        await session.chat(f"message {number}")
        model.may_go.set()
        await replies.receive()
        return [each for each in pieces if b"event: answer" in each and b"event: reply" in each]

    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(BareAgent("clerk", llm=model), node="one") as one,
            cluster.node(BareAgent("clerk", llm=model), node="two") as two,
            cluster.connect(url=f"http://127.0.0.1:{cluster.balancer.ports[0]}") as client,
        ):
            await wait_balanced(one, two)
            session_id = two.journal.new_session_id()
            session = await client.agent("clerk").create_session("ada", session_id=session_id)
            send, replies = trio.open_memory_channel(1)
            session.on_conversation(received.append)
            session.on_conversation(send.send)
            await live.wait()
            for number in range(TURNS):
                assert len(await talk(number)) == 1
                assert len(pieces) == 2
                assert not [each for each in pieces if b"event: message" in each or b"event: ended" in each]
            await session.wait_idle()
            assert [each.text for each in received] == ["one two three"] * TURNS
