"""How many messages of the broker a turn takes."""

import pytest
import trio

from actgent import LLM, Answer, BareAgent, Text
from actgent.cluster.transport import BrokerTransport
from actgent.cluster.wire import AnswerPiece
from actgent.web.streaming import tails
from actgent.web.streaming.streams import Frames

from .pairs import PATIENCE

TURNS = 3


class Talking(LLM):
    """Answers word by word, once it is let go."""

    name = "talking"

    def __init__(self):
        self.may_go = trio.Event()

    async def complete(self, chat, on_text=None):
        await self.may_go.wait()
        self.may_go = trio.Event()
        for word in ("one", " two", " three"):
            await on_text(word, 0)
            await trio.lowlevel.checkpoint()
        return Answer(parts=(Text("one two three"),))


@pytest.fixture
def pieces(monkeypatch):
    """The pieces of answers that clients get, one for each message of the broker; events that come later come in others."""
    found, take = [], BrokerTransport._take

    def count(self, message):
        if isinstance(message, AnswerPiece):
            found.append(message)
        take(self, message)

    monkeypatch.setattr(BrokerTransport, "_take", count)
    monkeypatch.setattr(tails, "TOGETHER", 0)
    return found


@pytest.fixture
def live(monkeypatch):
    """Set when a stream tells what comes, and no more of what was before: that may come in any number of pieces."""
    begun, write_all = trio.Event(), Frames.write_all

    async def begin(self):
        begun.set()
        await write_all(self)

    monkeypatch.setattr(Frames, "write_all", begin)
    return begun


async def test_a_turn_is_two_messages_to_a_client_that_hears_replies(open_cluster, pieces, live):
    """The answer to its request, and the reply, with which that comes which it is made of, and nothing else."""
    heard, model = [], Talking()

    async def talk(number):
        pieces.clear()
        await session.chat(f"message {number}")
        model.may_go.set()
        await replies.receive()
        return [each for each in pieces if b"event: answer" in each.data and b"event: reply" in each.data]

    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(BareAgent("clerk", llm=model)),
            cluster.connect() as client,
        ):
            session = await client.agent("clerk").create_session("ada")
            send, replies = trio.open_memory_channel(1)
            session.on_conversation(heard.append)
            session.on_conversation(send.send)
            await live.wait()
            for number in range(TURNS):
                assert len(await talk(number)) == 1
                assert len(pieces) == 2
                assert not [
                    each for each in pieces if b"event: message" in each.data or b"event: ended" in each.data
                ]
            await session.wait_idle()
            assert [each.text for each in heard] == ["one two three"] * TURNS
