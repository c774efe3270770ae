"""The rate limiter, mostly over HTTP with the real SDKs, at a provider with limits and on a virtual clock."""

import random
from contextlib import suppress
from functools import partial

import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from actgent import (
    Anthropic,
    ConfigurationError,
    ModelRequest,
    OpenAI,
    OpenAIResponses,
    Priority,
    RateLimited,
    ScriptedLLM,
)
from actgent.llm.fallback_model import FallbackModel
from actgent.llm.model_interface import ChatMessage, ModelResponse
from actgent.llm.rate_limiting import RateLimiter
from actgent.llm.retry_policy import Retry
from actgent.llm.wrapper_models import RateLimitedModel
from actgent.messages import Text, Usage
from actgent.testing import ErrorStatus, RateLimits, Slow, assert_no_leaks, open_provider

CLIENTS = {"openai": OpenAI, "openai-responses": OpenAIResponses, "anthropic": Anthropic}
PATIENT = 100_000.0


def chat(session="", text="x" * 400, **options):
    return ModelRequest(messages=(ChatMessage("user", (Text(text),)),), session=session, **options)


def client(provider, dialect="openai", **options):
    url = provider.anthropic_url if dialect == "anthropic" else provider.base_url
    options = {"api_key": "k", "timeout": None, "retry": Retry(attempts=8), **options}
    return CLIENTS[dialect]("model-1", base_url=url, **options)


def answers(seconds=(1, 3), tokens=(100, 300), seed=1):
    """Return a script of answers with various lengths, delays and correct usage."""
    dice = random.Random(seed)

    def script(request):
        usage = Usage(input_tokens=1 + len(request.body) // 4, output_tokens=dice.randint(*tokens))
        return Slow(ModelResponse(parts=(Text("ok"),), usage=usage), delay=dice.uniform(*seconds))

    return script


async def crowd(model, *, sessions, calls):
    """Run `sessions` sessions with sequential calls. Return the completion times in ascending order."""
    ends = []

    async def talk(name):
        for _ in range(calls):
            await model.complete(chat(name))
            ends.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for number in range(sessions):
            nursery.start_soon(talk, f"s{number}")
    return ends


def per_minute(ends, *, skip):
    """Return the rate of answers per minute, without the first ones that a full bucket grants."""
    ends = ends[int(len(ends) * skip) : int(len(ends) * 0.97)]
    return 60 * (len(ends) - 1) / (ends[-1] - ends[0])


# --- measured limits ----------------------------------------------------------------------------------


async def test_500_sessions_use_the_granted_rate(autojump_clock):
    """At most 1 % of calls are rejected and at least 95 % of the limit is used.

    An urgent call waits for at most two others.
    """
    waits, request_body, script = [], {}, answers()

    def watching(request):
        if request.text in request_body:
            waits.append(request.number - request_body[request.text] - 1)
        return script(request)

    async def be_urgent(model, provider):
        for number in range(10):
            await trio.sleep(8)
            request_body[f"urgent {number}"] = provider.statistics().requests
            await model.complete(chat("s0", f"urgent {number}", priority=Priority.URGENT))

    limits = RateLimits(requests=400, tokens=200_000)
    rate_limiter = RateLimiter(requests_per_minute=400, tokens_per_minute=200_000)
    async with assert_no_leaks(), open_provider(watching, limits=limits) as provider:
        model = client(provider, rate_limiter=rate_limiter)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(be_urgent, model, provider)
            ends = await crowd(model, sessions=500, calls=2)
        await model.aclose()
        statistics = provider.statistics()
    assert len(ends) == 1000
    assert statistics.refused <= 0.01 * statistics.requests
    assert per_minute(ends, skip=0.1) >= 0.95 * 400
    assert len(waits) == 10
    assert max(waits) <= 2
    assert (rate_limiter.statistics().waiting, rate_limiter.statistics().running) == (0, 0)


@pytest.mark.parametrize("dialect", CLIENTS)
async def test_token_limit_is_used_and_respected(dialect, autojump_clock):
    """The limiter uses at least 95 % of a token limit, with any estimate."""
    limits = RateLimits(requests=10_000, tokens=30_000, has_rate_limit_headers=False)
    used = []
    script = answers()

    def counting(request):
        said = script(request)
        used.append((trio.current_time(), said.answer.usage.input_tokens + said.answer.usage.output_tokens))
        return said

    async with open_provider(counting, limits=limits) as provider:
        model = client(provider, dialect, rate_limiter=RateLimiter(tokens_per_minute=30_000))
        await crowd(model, sessions=50, calls=4)
        await model.aclose()
        statistics = provider.statistics()
    assert statistics.refused <= 0.01 * statistics.requests
    later = used[40:]
    tokens = sum(tokens for _, tokens in later[1:])
    assert 60 * tokens / (later[-1][0] - later[0][0]) >= 0.95 * 30_000


@pytest.mark.parametrize("dialect", CLIENTS)
async def test_limits_are_read_from_headers(dialect, autojump_clock):
    """Without configured limits, the limiter learns them from the headers of the first responses."""
    async with open_provider(answers(), limits=RateLimits(requests=60, tokens=30_000)) as provider:
        model = client(provider, dialect)
        ends = await crowd(model, sessions=40, calls=5)
        await model.aclose()
        statistics = provider.statistics()
    assert statistics.refused <= 0.01 * statistics.requests
    assert per_minute(ends, skip=0.5) >= 0.95 * 60


@pytest.mark.parametrize("seconds", [(0.05, 0.2), (1, 3), (5, 20)])
async def test_limits_are_learnt_from_rejections(seconds, autojump_clock):
    """Without rate-limit headers and Retry-After, the limiter probes until a rejection and stays near it."""
    refused, script = [], answers(seconds)

    def counting(request):
        refused.append(provider.statistics().refused)
        return script(request)

    limits = RateLimits(requests=60, has_rate_limit_headers=False, has_retry_after=False)
    async with open_provider(counting, limits=limits) as provider:
        model = client(provider)
        ends = await crowd(model, sessions=40, calls=8)
        await model.aclose()
    assert len(ends) == 320
    assert refused[-1] <= 40, "what it cost to find the limit"
    assert refused[-1] - refused[160] <= 0.05 * 160, "what it costs to stay there"
    assert per_minute(ends, skip=0.5) >= 0.8 * 60


async def test_a_limit_of_concurrent_calls_is_detected(autojump_clock):
    """The provider rejects all but five of the first hundred calls, and few calls after that."""
    async with open_provider(answers(), limits=RateLimits(concurrency=5)) as provider:
        model = client(provider)
        ends = await crowd(model, sessions=100, calls=2)
        await model.aclose()
        refused = provider.statistics().refused
    assert len(ends) == 200
    assert refused <= 95 + 0.05 * 200
    assert per_minute(ends, skip=0.2) >= 0.7 * 5 * 60 / 2


async def test_retry_after_delays_all_calls(autojump_clock):
    """A Retry-After of 20 s on one call delays all other calls as well."""
    times = []

    def script(request):
        times.append(trio.current_time())
        return ErrorStatus(429, retry_after=20) if len(times) == 1 else "ok"

    async with open_provider(script) as provider:
        model = client(provider)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.complete, chat("a"))
            await trio.sleep(1)
            for name in "bcdefg":
                nursery.start_soon(model.complete, chat(name))
        await model.aclose()
    assert len(times) == 8
    assert min(times[1:]) - times[0] >= 20


async def test_a_very_long_retry_after_fails_its_call_alone(autojump_clock):
    """A Retry-After of 49 days fails its own call and delays no other call."""
    texts = [ErrorStatus(429, retry_after=49 * 86_400), "ok"]
    async with open_provider(texts) as provider:
        model = client(provider)
        with pytest.raises(RateLimited):
            await model.complete(chat())
        assert (await model.complete(chat())).text == "ok"
        await model.aclose()


# --- waiting calls -------------------------------------------------------------------------------


async def test_waiting_call_holds_no_resources(autojump_clock):
    """A waiting call has no connection and no task. A retry waits without a slot as well."""
    rate_limiter = RateLimiter(concurrency=3)
    async with assert_no_leaks(), open_provider(answers((10, 10))) as provider:
        model = client(provider, rate_limiter=rate_limiter)
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(model.complete, chat(f"s{number}"))
            await trio.sleep(5)
            tasks = len(nursery.child_tasks)
            assert provider.statistics().connections == 3
            assert rate_limiter.statistics().waiting == 47
            assert rate_limiter.statistics().running == 3
            assert tasks == 50
            nursery.cancel_scope.cancel()
        assert (rate_limiter.statistics().waiting, rate_limiter.statistics().running) == (0, 0)
        await model.aclose()


@given(seed=st.integers(0, 10**6), count=st.integers(1, 40))
@settings(max_examples=60)
def test_cancelled_call_releases_the_limiter(seed, count):
    """Calls are cancelled while they wait, are admitted, run or sleep. The next call finds a free limiter."""

    async def main():
        dice = random.Random(seed)
        rate_limiter = RateLimiter(
            requests_per_minute=60, tokens_per_minute=60_000, concurrency=dice.randint(1, 4)
        )
        failures = [RateLimited("no", retry_after=dice.choice([None, 2.0])), "ok", "ok"]

        async def said(_):
            await trio.sleep(dice.choice([0, 0.5, 3]))
            what = dice.choice(failures)
            if isinstance(what, RateLimited):
                raise RateLimited("no", retry_after=what.retry_after)
            return what

        model = RateLimitedModel(ScriptedLLM(said), rate_limiter)

        async def call(number):
            await trio.sleep(dice.choice([0, 0, 1, 5]))
            with trio.move_on_after(dice.choice([0, 0.5, 1, 2, 7, PATIENT])):
                with suppress(RateLimited):
                    await model.complete(chat(f"s{number % 5}", priority=dice.choice(list(Priority))))

        with trio.fail_after(5000):
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(call, number)
            assert (rate_limiter.statistics().waiting, rate_limiter.statistics().running) == (0, 0)
            failures[:] = ["ok"]
            assert (await model.complete(chat())).text == "ok"
        lane = rate_limiter._admissions.state_of(model.name)
        assert lane.queue.entries == 0
        await trio.sleep(80_000)
        now = trio.current_time()
        buckets = rate_limiter._admissions.buckets
        assert [bucket.fill(now) == bucket.capacity for bucket in buckets] == [True, True]

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_reservations_of_cancelled_waiters_are_given_back(autojump_clock):
    """After a hundred waiting calls are cancelled, the next call has the full rate."""
    rate_limiter = RateLimiter(requests_per_minute=60, burst=1 / 60)
    model = RateLimitedModel(ScriptedLLM(lambda _: "ok"), rate_limiter)
    await model.complete(chat())
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(model.complete, chat(f"s{number}"))
        await trio.sleep(0.5)
        nursery.cancel_scope.cancel()
    started = trio.current_time()
    await model.complete(chat())
    assert trio.current_time() - started == pytest.approx(0.5, abs=0.01)


async def test_a_session_with_many_calls_does_not_delay_another(autojump_clock):
    """While a hundred calls of one session wait, a call of another session is at most second."""
    order = []
    model = RateLimitedModel(
        ScriptedLLM(lambda asked: order.append(asked.session) or "ok"),
        RateLimiter(requests_per_minute=60, burst=0.01),
    )
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(model.complete, chat("many"))
        await trio.sleep(10.5)
        before = len(order)
        nursery.start_soon(model.complete, chat("one"))
    assert "one" in order[before : before + 2]


# --- timeouts ------------------------------------------------------------------------------


async def test_wait_for_a_limit_is_bounded(autojump_clock):
    """A call fails at once if its wait would be too long or the queue is full, otherwise after `max_wait`."""
    rate_limiter = RateLimiter(requests_per_minute=1, burst=1.0, max_wait=100, capacity=2)
    model = RateLimitedModel(ScriptedLLM(lambda _: "ok"), rate_limiter)
    await model.complete(chat())
    started = trio.current_time()
    with trio.move_on_after(30), pytest.raises(RateLimited, match=r"no room for another 60\.0 s") as caught:
        await model.complete(chat())
    assert trio.current_time() == started
    assert caught.value.retry_after == pytest.approx(60)
    assert not caught.value.retryable

    async def give_up():
        with pytest.raises(RateLimited, match="waited 100 s"):
            await model.complete(chat(priority=Priority.LOW))
        assert trio.current_time() == started + 100

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
        nursery.start_soon(partial(model.complete, chat(priority=Priority.HIGH)))
        await trio.sleep(1)
        with pytest.raises(RateLimited, match="2 calls already wait"):
            await model.complete(chat())


async def test_a_fallback_uses_the_next_model_if_the_wait_is_too_long(autojump_clock):
    """The first model has a short timeout, so the second model answers."""
    first = RateLimitedModel(
        ScriptedLLM(lambda _: "first"), RateLimiter(requests_per_minute=1, burst=1.0, max_wait=5)
    )
    model = FallbackModel(first, ScriptedLLM(lambda _: "second"))
    assert [(await model.complete(chat())).text for _ in range(3)] == ["first", "second", "second"]


# --- shared rate limiters -----------------------------------------------------------------------------


async def test_clients_with_one_key_share_a_rate_limiter():
    """Clients with the same address and key share a limiter for all wire formats.

    A different key or address has its own.
    """
    first = OpenAI("a", base_url="http://127.0.0.1:1/v1", api_key="secret-key-1")
    second = OpenAIResponses("b", base_url="http://127.0.0.1:1/v1/", api_key="secret-key-1")
    others = [
        OpenAI("a", base_url="http://127.0.0.1:1/v1", api_key="secret-key-2"),
        OpenAI("a", base_url="http://127.0.0.1:2/v1", api_key="secret-key-1"),
    ]
    assert first.rate_limiter is second.rate_limiter is first.rate_limiter
    assert len({id(model.rate_limiter) for model in (first, *others)}) == 3
    for model in (first, second, *others):
        assert "secret" not in repr(model) + repr(model.rate_limiter) + repr(model.rate_limiter.statistics())
        assert "secret" not in repr(vars(model.rate_limiter))
        await model.aclose()


async def test_models_of_one_key_have_separate_queues(autojump_clock):
    """If one model of a key is rate-limited, a second model of that key answers at once."""

    def script(request):
        return ErrorStatus(429, retry_after=50) if request.model == "model-1" else "ok"

    async with open_provider(script) as provider:
        large, rate_limiter = client(provider, retry=Retry(attempts=1)), RateLimiter()
        small = OpenAI("small", base_url=provider.base_url, api_key="k")
        with pytest.raises(RateLimited):
            await large.complete(chat())
        started = trio.current_time()
        await small.complete(chat())
        assert trio.current_time() - started < 1
        assert small.rate_limiter is large.rate_limiter is not rate_limiter
        await large.aclose()
        await small.aclose()


def test_a_rate_limiter_has_fresh_state_in_each_run():
    """The state of an earlier trio run, with a different clock, is discarded."""
    rate_limiter = RateLimiter(requests_per_minute=1, burst=1.0)
    model = RateLimitedModel(ScriptedLLM(lambda _: "ok"), rate_limiter)

    async def main():
        await model.complete(chat())
        return rate_limiter.statistics().admitted

    assert [trio.run(main) for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests_per_minute": 0},
        {"tokens_per_minute": -1},
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"burst": 0},
        {"burst": 2},
        {"period": float("inf")},
        {"max_pause": -1},
    ],
)
def test_invalid_limiter_numbers_are_rejected(wrong):
    """The error names the argument."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RateLimiter(**wrong)


# --- owners ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sessions", [[20] + [1] * 19, [20, 1, 1], [20, 1, 1, 1, 1], [30, 10, 5]])
@pytest.mark.parametrize("bound", [{"requests_per_minute": 60, "burst": 0.02}, {"concurrency": 2}])
async def test_owners_share_the_rate_of_a_provider(sessions, bound, autojump_clock):
    """An owner with 20 sessions gets as many calls as an owner with one: Jain's index is at least 0.9."""
    rate_limiter, calls = RateLimiter(**bound), [0] * len(sessions)
    dice = random.Random(1)

    async def talk(owner, number):
        while True:
            asked = ModelRequest(session=f"{owner}/{number}", owner=str(owner))
            async with rate_limiter.admit(asked, model="m"):
                await trio.sleep(dice.uniform(0.3, 0.6))
            calls[owner] += 1

    async with trio.open_nursery() as nursery:
        for owner, count in enumerate(sessions):
            for number in range(count):
                nursery.start_soon(talk, owner, number)
        await trio.sleep(600)
        nursery.cancel_scope.cancel()
    assert sum(calls) ** 2 / (len(calls) * sum(each**2 for each in calls)) >= 0.9
