"""Requests near the end of a context window are counted by their provider before they are sent."""

from contextlib import asynccontextmanager

import httpx2
import pytest
import trio

from actgent import Anthropic, BareAgent, ContextOverflow, FallbackModel, Interrupted, OpenAI, OpenAIResponses
from actgent.llm.retry_policy import Retry
from actgent.testing import open_provider

CLASSES = {"anthropic": Anthropic, "openai-responses": OpenAIResponses}
WINDOW = 10_000
LONG = "one two three four five six seven eight nine ten " * 620
"""Text of 7,600 tokens by our estimate; the actual count may be 6,600 to 8,700."""


def client(name, provider, **options):
    return CLASSES[name]("m", base_url=provider.url_for(name), api_key="k", context_window=WINDOW, **options)


@asynccontextmanager
async def agent_of(llm):
    async with BareAgent("a", llm=llm, max_tokens=2_000) as agent:
        yield agent
    await llm.aclose()


@pytest.fixture(params=sorted(CLASSES))
def name(request):
    return request.param


async def test_a_plain_turn_is_not_counted(name):
    """A request that certainly fits needs no counting request."""
    async with open_provider(lambda _: "Yes.") as provider:
        async with agent_of(client(name, provider)) as agent:
            session = await agent.create_session("ada")
            for _ in range(5):
                await agent.run("Is that so?", session=session)
        statistics = provider.statistics()
    assert (statistics.requests, statistics.counted) == (5, 0)


async def test_a_request_that_the_provider_counts_as_fitting_is_sent_in_full(name):
    """If the estimate is uncertain, a token count decides, and later estimates use it."""
    async with open_provider(lambda _: "Yes.", count=lambda _: 7_000) as provider:
        async with agent_of(client(name, provider)) as agent:
            assert (await agent.run(LONG)).text == "Yes."
        (request,) = provider.requests
        assert provider.statistics().counted == 1
    assert request.text == LONG


async def test_a_request_that_the_provider_counts_as_too_long_is_cut(name):
    """The beginning of the conversation is cut, and one request is sent."""
    counts = iter([8_500])
    answers = iter(["Yes."] * 9)
    half = LONG[: len(LONG) // 2]
    async with open_provider(lambda _: next(answers), count=lambda _: next(counts)) as provider:
        async with agent_of(client(name, provider)) as agent:
            session = await agent.create_session("ada")
            await agent.run(half, session=session)
            await agent.run(half, session=session)
        first, second = provider.requests
        assert provider.statistics().counted == 1
    assert len(second.chat.messages) < 3
    assert len(second.body) < 1.2 * len(first.body)


async def test_count_requests_contain_only_supported_fields():
    """The counting APIs reject unknown fields, such as the maximum length of the answer."""
    seen = []

    def count(request):
        seen.append(set(request.json))
        return 7_000

    for name in CLASSES:
        async with (
            open_provider(["Yes."], count=count) as provider,
            agent_of(client(name, provider, temperature=0.5)) as agent,
        ):
            await agent.run(LONG)
    assert seen == [{"model", "system", "messages"}, {"model", "instructions", "input"}]


async def test_first_model_of_a_chain_counts():
    """A fallback chain counts with the model that will answer."""
    async with open_provider(["Yes."], count=lambda _: 7_000) as provider:
        first = client("anthropic", provider)
        async with agent_of(
            FallbackModel(first, OpenAI("m", base_url=provider.base_url, api_key="k"))
        ) as agent:
            assert (await agent.run(LONG)).text == "Yes."
        assert provider.statistics().counted == 1


class Wire:
    """An in-memory provider that answers and handles counting requests with a given function."""

    def __init__(self, counting):
        self._counting = counting
        self.paths = []

    async def __call__(self, request):
        self.paths.append(request.url.path)
        if request.url.path.endswith("count_tokens"):
            return await self._counting()
        content = [{"type": "text", "text": "Yes."}]
        body = {
            "type": "message",
            "role": "assistant",
            "content": content,
            "stop_reason": "end_turn",
            "model": "m",
        }
        return httpx2.Response(200, json=body | {"usage": {"input_tokens": 10, "output_tokens": 2}})

    @property
    def counted(self):
        return sum(path.endswith("count_tokens") for path in self.paths)

    @asynccontextmanager
    async def agent(self):
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self))
        llm = Anthropic("m", api_key="k", http_client=http, context_window=WINDOW, retry=Retry(attempts=1))
        async with http, agent_of(llm) as agent:
            yield agent


async def test_server_without_a_counting_api_is_asked_once():
    """A server without a counting API answers 404.

    After that the estimate decides, and uncertain requests are cut.
    """

    async def missing():
        await trio.lowlevel.checkpoint()
        return httpx2.Response(404, json={"type": "error", "error": {"type": "not_found_error"}})

    wire = Wire(missing)
    async with wire.agent() as agent:
        for _ in range(2):
            session = await agent.create_session("ada")
            for half in (LONG[: len(LONG) // 2], LONG[len(LONG) // 2 :]):
                assert (await agent.run(half, session=session)).text == "Yes."
            session = await agent.create_session("ada")
            await agent.run("Hello", session=session)
    assert wire.counted <= 1


async def test_slow_count_is_replaced_by_the_estimate(autojump_clock):
    """After five seconds the estimate is used."""
    wire = Wire(trio.sleep_forever)
    async with wire.agent() as agent:
        session = await agent.create_session("ada")
        started = trio.current_time()
        with pytest.raises(ContextOverflow):
            await agent.run(LONG, session=session)
        assert trio.current_time() - started == pytest.approx(5.0, abs=0.5)
    assert wire.counted == 1


async def test_a_count_ends_with_its_turn():
    """An interrupt does not wait for the count."""
    counting = trio.Event()

    async def hang():
        counting.set()
        await trio.sleep_forever()

    wire = Wire(hang)
    async with wire.agent() as agent, trio.open_nursery() as nursery:
        session = await agent.create_session("ada")

        async def ask():
            with pytest.raises(Interrupted):
                await agent.run(LONG, session=session)

        nursery.start_soon(ask)
        await counting.wait()
        await session.interrupt()
    assert wire.paths == ["/v1/messages/count_tokens"]
