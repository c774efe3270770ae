"""Clients over real sockets, for faults that an in-memory transport cannot show."""

from functools import partial

import pytest
import trio

from actgent.errors import ModelTimeout, ProviderUnavailable, RateLimited, StreamInterrupted
from actgent.llm.clients.anthropic import Anthropic
from actgent.llm.clients.openai import OpenAI
from actgent.llm.clients.openai_responses import OpenAIResponses
from actgent.llm.model_interface import ChatMessage, ModelRequest
from actgent.llm.retry_policy import Retry
from actgent.messages import Text, ToolCall, ToolSpec
from actgent.testing import (
    CutStream,
    EarlyEnd,
    ErrorEvent,
    ErrorStatus,
    Hangup,
    Silence,
    assert_no_leaks,
    open_provider,
    refused_url,
)

CLASSES = {"openai": OpenAI, "openai-responses": OpenAIResponses, "anthropic": Anthropic}
HELLO = ModelRequest(messages=(ChatMessage("user", (Text("Hello."),)),))
WITH_TOOL = ModelRequest(messages=HELLO.messages, tools=(ToolSpec("math.add", "Add.", {"type": "object"}),))
ONCE = Retry(attempts=1)


def client(dialect, provider, **options):
    url = provider.anthropic_url if dialect == "anthropic" else provider.base_url
    return CLASSES[dialect]("model-1", base_url=url, api_key="k", **{"retry": ONCE, **options})


def connections(model):
    """Return the connections in the client's pool."""
    return model._sdk.client._client._transport._pool.connections


async def ignore(text, attempt):
    await trio.lowlevel.checkpoint()


async def test_streamed_and_complete_answers_are_equal(dialect):
    """Text and parallel calls are the same with and without streaming."""
    answers = [["Two sums.", ToolCall("math.add", {"a": 1}), ToolCall("math.add", {"a": 2})]] * 2
    async with assert_no_leaks(), open_provider(answers) as provider:
        model = client(dialect, provider)
        plain = await model.complete(WITH_TOOL)
        streamed = await model.complete(WITH_TOOL, on_text=ignore)
        await model.aclose()
    assert plain.text == streamed.text == "Two sums."
    assert [(call.name, call.arguments) for call in plain.tool_calls] == [
        ("math.add", {"a": 1}),
        ("math.add", {"a": 2}),
    ]
    assert [call.arguments for call in streamed.tool_calls] == [{"a": 1}, {"a": 2}]


async def test_connections_are_reused(dialect):
    """A completely read stream returns its connection to the pool."""
    async with open_provider(lambda _request: "Hello.") as provider:
        model = client(dialect, provider)
        for _ in range(3):
            await model.complete(HELLO, on_text=ignore)
        assert len(connections(model)) == 1
        await model.aclose()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (CutStream("A longer answer of several events."), StreamInterrupted),
        (CutStream("A longer answer of several events.", events=2, is_reset=True), StreamInterrupted),
        (EarlyEnd("A longer answer of several events."), StreamInterrupted),
        (Hangup(), ProviderUnavailable),
        (ErrorStatus(429, retry_after=3), RateLimited),
        (ErrorStatus(500), ProviderUnavailable),
    ],
)
async def test_connection_faults_are_retryable_errors(dialect, fault, kind):
    """Each fault is a typed, retryable error and leaves no connection open."""
    async with assert_no_leaks(), open_provider(lambda _request: fault) as provider:
        model = client(dialect, provider)
        with pytest.raises(kind) as caught:
            await model.complete(HELLO, on_text=ignore)
        assert caught.value.retryable
        await model.aclose()


async def test_broken_stream_is_retried(dialect):
    """A broken stream is retried. Attempt numbers distinguish the texts."""
    seen = {}

    async def show(text, attempt):
        seen[attempt] = seen.get(attempt, "") + text
        await trio.lowlevel.checkpoint()

    answers = [CutStream("Hello there, at length."), ErrorStatus(503), "Hello there, at length."]
    async with open_provider(answers, chunk=4) as provider:
        model = client(dialect, provider, retry=Retry(attempts=3, first_delay=0.001))
        answer = await model.complete(HELLO, on_text=show)
        await model.aclose()
    assert seen[2] == answer.text == "Hello there, at length."
    assert answer.text.startswith(seen[0])
    assert 1 not in seen


async def test_cancelling_leaves_no_connection(dialect):
    """A stream that is cancelled midway has closed its connection when the call returns."""
    async with assert_no_leaks(), open_provider(lambda _request: "x" * 2000, chunk=5, gap=0.01) as provider:
        model = client(dialect, provider)
        scope = trio.CancelScope()

        async def stop(text, attempt):
            scope.cancel()
            await trio.lowlevel.checkpoint()

        with scope:
            await model.complete(HELLO, on_text=stop)
        assert scope.cancelled_caught
        assert connections(model) == []
        await model.aclose()


async def test_cancelling_many_calls_leaves_no_connection(dialect):
    """A hundred concurrent calls in different states are cancelled together and leave no connection."""
    async with assert_no_leaks(), open_provider(lambda _request: "x" * 2000, chunk=5, gap=0.01) as provider:
        model = client(dialect, provider)
        with trio.move_on_after(0.15) as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(partial(model.complete, HELLO, on_text=ignore))
        assert scope.cancelled_caught
        assert connections(model) == []
        await model.aclose()


async def test_a_silent_provider_times_out(dialect):
    """The attempt ends at its timeout and closes its connection."""
    async with assert_no_leaks(), open_provider(lambda _request: Silence()) as provider:
        model = client(dialect, provider, timeout=0.05)
        with pytest.raises(ModelTimeout):
            await model.complete(HELLO)
        assert connections(model) == []
        await model.aclose()


async def test_unreachable_provider_is_named_in_the_error(dialect):
    """The error names the host that refuses the connection."""
    with refused_url() as url:
        model = CLASSES[dialect]("model-1", base_url=url, api_key="k", retry=ONCE)
        with pytest.raises(ProviderUnavailable, match=r"no connection to 127\.0\.0\.1"):
            await model.complete(HELLO)
        await model.aclose()


async def test_an_error_event_inside_a_stream(dialect):
    """An error event after the start of the answer raises a retryable error."""
    async with open_provider(lambda _request: ErrorEvent("So far so good.")) as provider:
        model = client(dialect, provider)
        with pytest.raises((StreamInterrupted, ProviderUnavailable)) as caught:
            await model.complete(HELLO, on_text=ignore)
        assert caught.value.retryable
        await model.aclose()
