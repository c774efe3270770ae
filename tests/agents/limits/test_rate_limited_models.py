"""Agents whose models share a provider's limits."""

import pytest
import trio
import trio.testing

from actgent import (
    BareAgent,
    Limits,
    ModelTimeout,
    OpenAI,
    Priority,
    RateLimited,
    RateLimitedModel,
    RateLimiter,
    ScriptedLLM,
)
from actgent.testing import RateLimits, open_provider


async def test_rate_limiter_receives_the_session_and_priority():
    requests = []
    llm = RateLimitedModel(
        ScriptedLLM(lambda chat: requests.append((chat.session, chat.priority)) or "ok"), RateLimiter()
    )
    async with BareAgent("clerk", llm=llm) as agent:
        session = await agent.create_session("ada")
        await session.chat("one")
        await session.wait_idle()
        await session.chat("two", priority=Priority.HIGH)
        await session.wait_idle()
    assert requests == [(session.id, Priority.NORMAL), (session.id, Priority.HIGH)]


async def test_a_timeout_reports_the_rate_limit_wait(autojump_clock):
    """Waiting for the provider's limits counts into the model's timeout, and the error states the wait."""
    slow = RateLimitedModel(ScriptedLLM(["ok"], repeat=True), RateLimiter(requests_per_minute=4, burst=0.25))
    async with (
        BareAgent("clerk", llm=slow, limits=Limits(model_timeout=20)) as agent,
        trio.open_nursery() as nursery,
    ):
        await agent.run("one")
        nursery.start_soon(agent.run, "two")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(
            ModelTimeout, match=r"within 20 s: it still waited for the provider's rate limit, after 20\.0 s"
        ):
            await agent.run("three")
    assert slow.rate_limiter.statistics().waiting == 0


async def test_a_wait_beyond_the_deadline_fails_immediately(autojump_clock):
    """If the limits certainly leave no call before the model's timeout, the call fails at once."""
    slow = RateLimitedModel(ScriptedLLM(["ok"], repeat=True), RateLimiter(requests_per_minute=1, burst=1.0))
    async with BareAgent("clerk", llm=slow, limits=Limits(model_timeout=20)) as agent:
        await agent.run("one")
        started = trio.current_time()
        with pytest.raises(RateLimited, match="leaves no room for another 60"):
            await agent.run("two")
        assert trio.current_time() == started


async def test_agents_with_one_key_share_its_limits(no_keys, autojump_clock):
    """Two agents whose models have the same key share one rate limiter, and no call is refused."""
    async with open_provider(lambda _: "ok", limits=RateLimits(requests=30)) as provider:
        models = [OpenAI("m", base_url=provider.base_url, api_key="k") for _ in range(2)]
        agents = [BareAgent(f"a{number}", llm=model) for number, model in enumerate(models)]
        async with agents[0], agents[1]:
            assert models[0].rate_limiter is models[1].rate_limiter
            async with trio.open_nursery() as nursery:
                for number in range(60):
                    nursery.start_soon(agents[number % 2].run, "Hello.")
                    await trio.sleep(0.5)
            assert models[0].rate_limiter.statistics().admitted == provider.statistics().requests
        assert provider.statistics().refused <= 1
        for model in models:
            await model.aclose()
