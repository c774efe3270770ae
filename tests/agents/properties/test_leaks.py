"""Real provider streams that are stopped in each way leave no resources."""

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
async def test_stopped_stream_leaves_no_resources(cls, text, how):
    """A stopped stream leaves no task, descriptor or thread. The received text is in the history, and the next request is valid."""
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
    """Return a clock whose rate can be reduced, so that a busy machine does not fail the time limit."""
    return trio.testing.MockClock(rate=1)


@pytest.mark.parametrize("cls", [OpenAI, Anthropic])
async def test_a_hundred_streams_end_within_a_second(cls, slow_clock):
    """A hundred cancelled streams and their connections close within one second."""
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
                started = trio.current_time()
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert trio.current_time() - started < 1
        slow_clock.rate = 1
        await llm.aclose()
