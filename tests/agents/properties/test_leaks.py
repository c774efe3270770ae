"""Real provider streams, stopped in every way: nothing is left of them."""

import pytest
import trio
import trio.testing

from actgent import Anthropic, BareAgent, OpenAI, OpenAIResponses, Priority
from actgent.testing import Silence, Slow, assert_no_leaks, assert_valid_transcript, open_provider

LONG = "word " * 200


def client(cls, provider):
    url = provider.anthropic_url if cls is Anthropic else provider.openai_url
    return cls("any-model", base_url=url, api_key="any")


def answer(request):
    text = request.chat.messages[-1].parts[-1].text
    if "stream" in text:
        return Slow(LONG, gap=0.02)
    return Silence() if "silence" in text else f"re: {text}"


@pytest.mark.parametrize("cls", [OpenAI, OpenAIResponses, Anthropic])
@pytest.mark.parametrize("text", ["stream", "silence"])
@pytest.mark.parametrize("how", ["interrupt", "urgent", "aclose", "leave", "cancel", "raise"])
async def test_a_stopped_stream_leaves_nothing(cls, text, how):
    """No task, descriptor or thread; what was said before is in the record, and the next request is valid."""
    async with assert_no_leaks(), open_provider(answer) as provider:
        llm, log, tokens = client(cls, provider), [], trio.Event()
        with trio.CancelScope() as scope:
            try:
                async with BareAgent(name="a", llm=llm, grace=0) as agent:
                    session = await agent.create_session("ada", text)
                    session.on_token(lambda _: tokens.set())
                    session.on_conversation(lambda reply: log.append(reply.text))
                    session.on_exception(lambda failure: log.append(failure.kind))
                    if text == "stream":
                        await tokens.wait()
                    else:
                        while not provider.requests:  # noqa: ASYNC110 - the provider has no event for it
                            await trio.sleep(0.01)
                    await stop(how, session, scope)
            except ValueError:
                assert how == "raise"
        await llm.aclose()
    ended = {"interrupt": ["interrupted"], "urgent": ["interrupted", "re: now"], "aclose": ["interrupted"]}
    assert log == ended.get(how, ["stopped"])
    assert [bool(m.text) for m in session.history if m.cut] == ([True] if text == "stream" else [])
    for request in provider.requests:
        assert request.problems == []
        assert_valid_transcript(request.chat)


async def stop(how, session, scope):
    match how:
        case "interrupt":
            await session.interrupt()
        case "urgent":
            await session.chat("now", priority=Priority.URGENT)
            await session.wait_idle()
        case "aclose":
            await session.aclose()
        case "cancel":
            scope.cancel()
            await trio.lowlevel.checkpoint()
        case "raise":
            raise ValueError


@pytest.fixture
def slow_clock():
    """A clock that can be slowed down: a busy machine takes its time for what waits for nothing."""
    return trio.testing.MockClock(rate=1)


@pytest.mark.parametrize("cls", [OpenAI, Anthropic])
async def test_a_hundred_streams_end_within_a_second(cls, slow_clock):
    """Cancelled together, with their connections; what waits for a time limit takes longer."""
    async with assert_no_leaks(), open_provider(answer) as provider:
        llm = client(cls, provider)
        with trio.CancelScope() as scope:
            async with BareAgent(name="a", llm=llm) as agent:
                for _ in range(100):
                    session = await agent.create_session("ada", "stream")
                    session.on_token(lambda _: None)
                while len(provider.requests) < 100:  # noqa: ASYNC110 - the provider has no event for it
                    await trio.sleep(0.01)
                slow_clock.rate = 0.02
                begun = trio.current_time()
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert trio.current_time() - begun < 1
        slow_clock.rate = 1
        await llm.aclose()
