"""The events that a client requests from the server while handlers are attached and removed."""

import pytest
import trio

from actgent import LLM, BareAgent, ModelResponse, Text, Token
from actgent.client import event_subscription
from actgent.client.json_conversion import DeliveryDecoder
from actgent.client.transport_interface import StreamEvent
from actgent.errors import JournalFailed
from actgent.journal.group_commit.row_format import decompress
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import REFUSED, MessageEndRecord

PATIENCE = 60
"""Seconds for a whole test on a loaded machine."""


class Halting(LLM):
    """A model that streams two words. The second word waits for `may_go`."""

    name = "halting"

    def __init__(self):
        self.may_go = trio.Event()

    async def complete(self, chat, on_text=None):
        await on_text("one", 0)
        await self.may_go.wait()
        await on_text(" two", 0)
        return ModelResponse(parts=(Text("one two"),))


async def test_token_handler_attached_later_receives_tokens(serving):
    """Another handler attaches it.

    It receives the tokens of the next answer before that answer is complete.
    """
    model = Halting()
    model.may_go.set()
    tokens, replies = [], []

    async def hear(reply):
        if not replies:
            session.on_token(listen)
        await trio.lowlevel.checkpoint()
        replies.append(reply.text)

    def listen(token):
        tokens.append(token.text)
        model.may_go.set()

    with trio.fail_after(PATIENCE):
        async with serving(BareAgent("clerk", llm=model)) as served, served.connect() as client:
            session = await client.agent("clerk").create_session("ada")
            session.on_conversation(hear)
            await session.chat("count")
            await session.wait_idle()
            assert (tokens, replies) == ([], ["one two"])
            model.may_go = trio.Event()
            await session.chat("again")
            await session.wait_idle()
            assert (tokens, replies) == (["one", " two"], ["one two", "one two"])


async def test_wait_idle_ignores_events_without_handlers(clerk, monkeypatch):
    """`wait_idle` returns when handlers have received their events, however many other events exist."""
    monkeypatch.setattr(event_subscription, "PAGE_SIZE", 2)
    replies = []
    with trio.fail_after(PATIENCE):
        session = await clerk.create_session("ada")
        session.on_conversation(replies.append)
        await session.chat("hello")
        await session.wait_idle()
        for number in range(5):
            await session.schedule(f"later {number}", after=3600)
        await session.wait_idle()
        assert [each.text for each in replies] == ["you said: hello "]


@pytest.mark.parametrize("is_failing", [False, True])
async def test_failures_are_delivered_at_once(clerk, is_failing):
    """A session with only an exception handler receives the failure.

    A message that succeeds causes no delivery.
    """
    failures = []
    with trio.fail_after(PATIENCE):
        session = await clerk.create_session("ada")
        session.on_exception(failures.append)
        await session.chat("fail" if is_failing else "hello")
        await session.wait_idle()
        assert [each.kind for each in failures] == ["model"] * is_failing


def test_complete_answer_is_not_repeated_after_the_next_begins():
    """The final record of an answer may arrive after the first chunk of the next answer."""
    deliveries = DeliveryDecoder()

    def read(name, **data):
        return [
            each for each in deliveries.decode(StreamEvent(name=name, data=data)) if isinstance(each, Token)
        ]

    def grow(reply_id, text):
        return read("token", reply_id=reply_id, attempt=0, begin=0, text=text)

    def end(reply_id, text):
        return read("reply", id=reply_id, text=text)

    assert [each.text for each in grow("a", "first")] == ["first"]
    read("answer", message_id="a", usage={})
    assert [each.text for each in grow("b", "sec")] == ["sec"]
    assert end("a", "first") == []
    read("answer", message_id="b", usage={})
    assert [(each.text, each.attempt) for each in end("b", "second")] == [("ond", 0)]


class FailingOnce(MemoryJournal):
    """A journal that rejects the first turn step, like a database that is killed at that moment."""

    has_failed = False

    async def _write(self, rows, heads, epoch):
        if not self.has_failed and any(b"count" in decompress(row.body) for row in rows):
            self.has_failed = True
            raise JournalFailed("the database is away")
        await super()._write(rows, heads, epoch)


@pytest.mark.parametrize("way", ["run", "stream", "chat"])
async def test_rejected_try_of_an_answered_message_is_not_delivered(serving, way):
    """The journal records the first try as rejected. Handlers receive only the outcome of the second try."""
    failures, received = [], []
    with trio.fail_after(PATIENCE):
        async with FailingOnce().running() as journal, serving(journal=journal) as served:
            async with served.connect() as client:
                agent = client.agent("clerk")
                session = await agent.create_session("ada")
                session.on_exception(failures.append)
                if way == "run":
                    received = [await agent.run("count", session=session, message_id="m")]
                elif way == "stream":
                    async with agent.stream("count", session=session, message_id="m") as deliveries:
                        received = [each async for each in deliveries if not isinstance(each, Token)]
                else:
                    await session.chat("count", message_id="m")
                    received = [await agent.outcome(session, "m")]
                await session.wait_idle()
            records = await journal.load(session.id)
            assert [each.failed for each in records if isinstance(each, MessageEndRecord)] == [REFUSED, None]
    assert [each.text.strip() for each in received] == ["you said: count"]
    assert failures == []
