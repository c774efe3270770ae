"""Tokens: the pieces of a growing answer, as far as its protocol shows it."""

import json

import pytest
import trio

from actgent import BareAgent, FallbackModel, ReActAgent, RouterAgent, ScriptedLLM, SimpleAgent, Token
from actgent.errors import StreamInterrupted
from actgent.llm.model_interface import LLM, ModelResponse
from actgent.messages import Text


class Stumbling(LLM):
    """Breaks off in its first attempts, as a client that tries again does."""

    name = "stumbling"

    async def complete(self, chat, *, on_text=None):
        for attempt, text in enumerate(("Hel", "Hello th", "Hello.")):
            if on_text is not None:
                await on_text(text[:2], attempt)
                await on_text(text[2:], attempt)
        await trio.lowlevel.checkpoint()
        return ModelResponse(parts=(Text("Hello."),))


def shown(tokens):
    return "".join(token.text for token in tokens)


async def test_tokens_join_to_the_text_of_the_reply(listen):
    """The tokens have the id of the reply."""
    async with BareAgent("a", llm=ScriptedLLM(["Hello Ada, how are you?"], chunk=4)) as agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session, tokens=True)
        await session.wait_idle()
    *tokens, reply = received
    assert len(tokens) == 6
    assert shown(tokens) == reply.text
    assert {(token.reply_id, token.attempt) for token in tokens} == {(reply.id, 0)}


REACT = {
    "primary_action": {
        "response_purpose": "DIRECT_RESPONSE",
        "response_description": "Hello!",
        "response_content": {},
    }
}


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (SimpleAgent, {"messageType": "DIRECT_RESPONSE", "content": "Hello!"}),
        (ReActAgent, {"question_nature": "SIMPLE", "context": "secret thoughts", **REACT}),
        (RouterAgent, {"top_level_intent": "CONVERSATION", "response": "Hello!"}),
    ],
)
async def test_tokens_contain_only_text_for_the_user(listen, kind, answer):
    """Tokens have no braces, no thoughts, and nothing of the envelope."""
    async with kind("a", llm=ScriptedLLM([json.dumps(answer)], chunk=3)) as agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session, tokens=True)
        await session.wait_idle()
    assert str(received[-1]) == "Hello!"
    assert shown(item for item in received if isinstance(item, Token)) == "Hello!"


async def test_new_attempt_replaces_the_earlier_text(listen):
    """Each attempt begins with empty text, and the last attempt's text is the reply's."""
    async with BareAgent("a", llm=Stumbling()) as agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session, tokens=True)
        await session.wait_idle()
    texts = {}
    for token in received[:-1]:
        texts[token.attempt] = texts.get(token.attempt, "") + token.text
    assert texts == {0: "Hel", 1: "Hello th", 2: "Hello."}


async def test_a_fallback_is_a_new_attempt(listen):
    """The text of the first model is void."""

    class Half(ScriptedLLM):
        async def complete(self, chat, *, on_text=None):
            await on_text("I am", 0)
            raise StreamInterrupted("half")

    async with BareAgent("a", llm=FallbackModel(Half(["x"]), ScriptedLLM(["Hello."]))) as agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session, tokens=True)
        await session.wait_idle()
    assert [(t.text, t.attempt > 0) for t in received[:-1]] == [("I am", False), ("Hello.", True)]
    assert str(received[-1]) == "Hello."


async def test_model_does_not_stream_without_token_handlers():
    """Without a handler for tokens the model call does not stream."""
    texts = []

    class Watched(ScriptedLLM):
        async def complete(self, chat, *, on_text=None):
            texts.append(on_text is not None)
            return await super().complete(chat, on_text=on_text)

    async with BareAgent("a", llm=Watched(["one", "two"])) as agent:
        session = await agent.create_session("ada", "hi")
        await session.wait_idle()
        session.on_token(lambda _: None)
        await session.chat("more")
        await session.wait_idle()
    assert texts == [False, True]


async def test_the_text_of_an_interrupted_answer_is_kept_as_cut(autojump_clock, listen):
    """The record has the received text, and the model reads it as its own earlier text."""
    llm = ScriptedLLM(["Once upon a time", "fine"], chunk=5, chunk_delay=1)
    async with BareAgent("a", llm=llm) as agent:
        session = await agent.create_session("ada", "a story")
        received = listen(session, tokens=True)
        await trio.sleep(1.5)
        await session.interrupt("enough")
        assert (session.history[-1].text, session.history[-1].cut) == ("Once upon ", True)
        assert received[-1].kind == "interrupted"
        assert received[0].reply_id == session.history[-1].id
        await session.chat("go on")
        await session.wait_idle()
    assert [m.role for m in llm.chats[-1].messages] == ["user", "assistant", "user"]


async def test_failing_token_handler_is_reported_once_per_answer(listen):
    """A long answer does not flood the failure handlers."""
    agent = BareAgent("a", llm=ScriptedLLM(["one two three", "four five six"], chunk=1))
    async with agent:
        session = await agent.create_session("ada", "count")
        session.on_token(lambda _: 1 / 0)
        received = listen(session)
        await session.wait_idle()
        await session.chat("go on")
        await session.wait_idle()
    assert [getattr(item, "kind", "reply") for item in received if not isinstance(item, Token)] == [
        "handler",
        "reply",
    ] * 2
