"""Models without the base class: functions, clients with `call`, objects with `complete`."""

import functools
import json
import math
import threading
import time

import pytest
import trio

from actgent import (
    LLM,
    BadRequest,
    BareAgent,
    ConfigurationError,
    FallbackModel,
    Limits,
    ModelError,
    ModelResponse,
    ModelTimeout,
    NotAuthorized,
    ProviderUnavailable,
    RateLimitedModel,
    RateLimiter,
    ScriptedLLM,
    SimpleAgent,
    StepsAgent,
    StreamInterrupted,
    SummarizingMemory,
    Text,
    Usage,
    open_runtime,
    tool,
)
from actgent.llm.model_resolution import resolve_model
from actgent.llm.retry_policy import Retry
from actgent.llm.wrapper_models import RetryingModel
from actgent.support.user_code_calls import MAX_THREADS


async def plain(messages):
    return f"{messages[-1].content}!"


class Client:
    """The custom client of acton's documentation, with a different body."""

    def __init__(self):
        self.seen, self.given, self.threads = [], [], set()

    def call(self, messages, **kwargs):
        self.seen.append([dict(each) for each in messages])
        self.given.append(kwargs)
        self.threads.add(threading.get_ident())
        return f"call {len(self.seen)}"


class Streams(Client):
    """The same client with a blocking stream."""

    def call_stream(self, messages, **kwargs):
        self.threads.add(threading.get_ident())
        yield from ("Good ", "mor", "ning")


class AsyncStreams(Client):
    """The same client with an async stream."""

    async def call_stream(self, messages):
        for piece in ("Good ", "day"):
            await trio.lowlevel.checkpoint()
            yield piece


class Completes:
    """A model without the base class."""

    name = "mine"
    context_window = 1000

    def __init__(self):
        self.chats = []

    async def complete(self, chat, *, on_text=None):
        self.chats.append(chat)
        if on_text is not None:
            await on_text("whole", 0)
        return ModelResponse(parts=(Text("whole"),), usage=Usage(input_tokens=3, output_tokens=1))


class Terse:
    """A model without streams that returns a text instead of a `ModelResponse`."""

    async def complete(self, chat):
        return chat.messages[-1].parts[0].text.upper()


async def said(model, text="Hello"):
    async with BareAgent("parrot", llm=model, system_prompt="Be short.") as agent:
        return await agent.run(text)


async def test_an_async_function_is_a_model():
    """The function gets the messages, system prompt first. Its returned text is the answer."""
    seen = []

    async def model(messages):
        seen.append(messages)
        return "yes"

    assert (await said(model)).text == "yes"
    assert [dict(each) for each in seen[0]] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hello"},
    ]
    assert (seen[0][1].role, seen[0][1].content) == ("user", "Hello")
    assert json.loads(json.dumps(seen[0]))[1]["role"] == "user"  # most servers accept this body


@pytest.mark.parametrize(
    "model",
    [
        plain,
        lambda messages: f"{messages[-1]['content']}!",
        functools.partial(lambda sign, messages: messages[-1].content + sign, "!"),
        lambda messages: plain(messages[-1:]),
    ],
    ids=["async", "sync", "partial", "sync that returns what is awaited"],
)
async def test_sync_and_async_functions_are_models(model):
    assert (await said(model)).text == "Hello!"


async def test_blocking_call_runs_in_a_thread_with_the_conversation():
    """A blocking `call` runs in a worker thread. Each call gets the conversation so far."""
    client = Client()
    async with BareAgent("a", llm=client, temperature=0.5) as agent:
        session = await agent.create_session("user")
        assert str(await agent.run("one", session=session)) == "call 1"
        assert str(await agent.run("two", session=session)) == "call 2"
    assert [each["role"] for each in client.seen[1][-3:]] == ["user", "assistant", "user"]
    assert client.given == [{"temperature": 0.5}] * 2
    assert threading.get_ident() not in client.threads


@pytest.mark.parametrize(("model", "pieces"), [(Streams(), 3), (AsyncStreams(), 2)], ids=["sync", "async"])
async def test_a_client_stream_is_read_incrementally(model, pieces):
    """`call_stream` is used if the session has a token handler, otherwise `call`."""
    received = []
    async with BareAgent("a", llm=model) as agent:
        session = await agent.create_session("user")
        session.on_token(lambda token: received.append(token.text))
        text = (await agent.run("Hello", session=session)).text
        assert text == "".join(received)
        assert len(received) == pieces
        assert not model.seen
    assert threading.get_ident() not in model.threads
    assert (await said(model)).text == "call 1"


async def test_an_object_with_complete_is_a_model():
    """The object gets the request. Its name, context window and usage are used."""
    model = Completes()
    reply = await said(model)
    assert (reply.text, reply.usage.input_tokens) == ("whole", 3)
    assert model.chats[0].system == "Be short."
    made = resolve_model(model)
    assert (made.name, made.context_window) == ("mine", 1000)
    assert (await said(Terse())).text == "HELLO"


async def test_model_without_streaming_delivers_one_token():
    """Token handlers receive the whole answer of a function at once."""
    for model in (plain, Terse(), Completes()):
        received = []
        async with BareAgent("a", llm=model) as agent:
            session = await agent.create_session("user")
            session.on_token(lambda token, received=received: received.append(token.text))
            text = (await agent.run("Hello", session=session)).text
        assert received == [text]


async def test_adapters_work_in_all_places_for_models():
    """Adapters work in chains, with rate limiters, by role, for summaries, in builders and in evaluations."""

    async def broken(messages):
        raise ProviderUnavailable("down")

    assert (await said(FallbackModel(broken, plain))).text == "Hello!"
    assert (await said(RateLimitedModel(plain, RateLimiter()))).text == "Hello!"

    async def summary(messages):
        return "They greeted each other."

    received = []

    async def listens(messages):
        received.append(messages)
        return "x" * 400

    memory = SummarizingMemory(llm=summary, keep=4, trigger=200)
    async with BareAgent("a", llm=listens, memory=memory) as agent:
        session = await agent.create_session("user")
        for _ in range(8):
            await agent.run("y" * 400, session=session)
            await trio.testing.wait_all_tasks_blocked()
    assert any("They greeted each other." in each.content for each in received[-1])


async def test_text_model_calls_tools_by_the_protocol():
    """A text-only model can use tools if the protocol has a format for calls."""
    seen = []

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def model(messages):
        seen.append(messages)
        if len(seen) == 1:
            call = {"id": "1", "tool_name": "add", "parameters": {"a": 2, "b": 3}}
            return json.dumps({"tool_calls": [call]})
        assert "5" in messages[-1].content or "5" in messages[-2].content
        return json.dumps({"final_answer": "It is 5."})

    async with StepsAgent("a", llm=model, tools=[add]) as agent:
        assert (await agent.run("2 + 3?")).text == "It is 5."
    assert "Add two numbers." in seen[0][0].content
    assert '"integer"' in seen[0][0].content


async def test_failing_function_fails_the_turn():
    """The turn fails with a ModelError whose cause is the function's exception. The next turn runs."""
    answers = iter([ValueError("no more paper"), "Now."])

    async def model(messages):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with SimpleAgent("a", llm=model, instructions=["greet"]) as agent:
        with pytest.raises(ModelError, match="model: ValueError: no more paper") as caught:
            await agent.run("Hello")
        assert isinstance(caught.value.__cause__, ValueError)
        assert (caught.value.client_error, caught.value.retryable) == ("ValueError", False)


class Response:
    status_code = 503


class Refused(Exception):
    """An error of an HTTP library; the status is on its response."""

    response = Response()


class Denied(Exception):
    status_code = 401


class Odd(Exception):
    @property
    def status_code(self):
        raise RuntimeError("none of your business")


RAISED = {
    ConnectionResetError("gone"): (ProviderUnavailable, True),
    TimeoutError("late"): (ModelTimeout, True),
    Refused("busy"): (ProviderUnavailable, True),
    Denied("who?"): (NotAuthorized, False),
    Odd("odd"): (ModelError, False),
    KeyError("choices"): (ModelError, False),
    ExceptionGroup("tasks", [ConnectionResetError("gone")]): (ProviderUnavailable, True),
}


class OwnLLM(LLM):
    name = "own"

    def __init__(self, error):
        self.error = error

    async def complete(self, chat, *, on_text=None):
        raise self.error


class OwnClient:
    def __init__(self, error):
        self.error = error

    def call(self, messages, **kwargs):
        raise self.error


@pytest.mark.parametrize("kind", [OwnLLM, OwnClient])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_exception_of_a_custom_client_is_a_model_error(kind, error, autojump_clock):
    """The exception is its cause. Only temporary kinds are retried."""
    expected, retryable = RAISED[error]
    for llm in (kind(error), RetryingModel(kind(error)), FallbackModel(kind(error), kind(error))):
        async with BareAgent("a", llm=llm) as agent:
            with pytest.raises(ModelError) as caught:
                await agent.run("Hello")
        leaf = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        assert (type(caught.value), caught.value.retryable) == (expected, retryable)
        assert (caught.value.__cause__, caught.value.client_error) == (leaf, type(leaf).__name__)


@pytest.mark.parametrize(
    ("error", "calls"), [(ConnectionResetError("gone"), 3), (KeyError("choices"), 1)], ids=["passes", "stays"]
)
async def test_temporary_errors_are_retried_by_default(error, calls, autojump_clock):
    """A client's connection error is retried.

    A programming error is not retried, and a fallback does not hide it.
    """
    requests = []

    def model(messages):
        requests.append(1)
        raise error

    with pytest.raises(ModelError):
        await said(RetryingModel(model))
    assert len(requests) == calls
    if calls > 1:
        assert (await said(FallbackModel(model, lambda _: "here"))).text == "here"
    else:
        with pytest.raises(ModelError, match="choices"):
            await said(FallbackModel(model, lambda _: "here"))


async def test_error_text_of_a_client_is_not_in_the_journal():
    """The recorded failure has only the exception class, because the message may contain secrets."""

    async def model(messages):
        raise ValueError("the key is sk-123")

    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("a", llm=model))
        with pytest.raises(ModelError, match="sk-123"):
            await agent.run("Hello")
        (failure,) = runtime.failures
    assert (failure.kind, failure.error) == ("model", "ModelError")
    assert failure.error_text == "model: its client raised ValueError"


async def test_invalid_return_value_of_a_model_is_reported():
    """The error names the model and the accepted types."""

    async def number(messages):
        return 5

    with pytest.raises(StreamInterrupted, match=r"number.*text or a ModelResponse, not int"):
        await said(number)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (object(), "not <object"),
        (5, "not 5"),
        (None, "not None"),
        (Client, r"write Client\(\.\.\.\)"),
        (lambda: "x", "must accept the messages as its only required argument"),
        (lambda one, two: one + two, "missing a required argument: 'two'"),
    ],
    ids=["object", "number", "none", "class", "no argument", "two arguments"],
)
def test_invalid_model_is_rejected_at_the_creation(wrong, expected):
    """The error lists the accepted values."""
    with pytest.raises(ConfigurationError, match=expected):
        BareAgent("a", llm=wrong)


async def test_a_cancelled_call_returns_immediately():
    """A cancelled call does not wait for its blocked thread."""
    release = threading.Event()

    def slow(messages):
        release.wait(30)
        return "late"

    started = time.monotonic()
    try:
        async with BareAgent("a", llm=slow) as agent:
            session = await agent.create_session("user")
            with trio.move_on_after(0.2) as scope:
                await agent.run("Hello", session=session)
            assert scope.cancelled_caught
            await session.interrupt()
        assert time.monotonic() - started < 20
    finally:
        release.set()


async def test_hanging_model_threads_do_not_block_other_models():
    """A model with all its threads blocked does not delay a second model."""
    release, started = threading.Event(), threading.Semaphore(0)

    def hangs(messages):
        started.release()
        release.wait(30)
        return "late"

    async with (
        BareAgent("a", llm=hangs, limits=Limits(model_timeout=math.inf)) as stuck,
        BareAgent("b", llm=lambda _: "fine") as other,
    ):
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(MAX_THREADS):
                    nursery.start_soon(stuck.run, "Hello")
                for _ in range(MAX_THREADS):
                    await trio.to_thread.run_sync(started.acquire, limiter=trio.CapacityLimiter(1))
                nursery.cancel_scope.cancel()
            with trio.fail_after(10):
                assert (await other.run("Hello")).text == "fine"
        finally:
            release.set()


# --- retries ---------------------------------------------------------------------------------


def test_retry_defaults_match_acton():
    """Acton's page: 3 attempts, multiplier 2, 1 to 60 s. Its source: multiplier 1, at most 10 s."""
    error = ProviderUnavailable("later")
    page = Retry.exponential(attempts=9)
    assert [page.delay(attempt, error) for attempt in range(9)] == [2, 4, 8, 16, 32, 60, 60, 60, None]
    assert [Retry.exponential().delay(attempt, error) for attempt in range(3)] == [2, 4, None]
    source = Retry.exponential(7, multiplier=1, most=10)
    assert [source.delay(attempt, error) for attempt in range(6)] == [1, 2, 4, 8, 10, 10]
    assert Retry.exponential(2, multiplier=0.1).delay(0, error) == 1


@pytest.mark.parametrize(
    ("fails", "calls"), [(0, 1), (1, 2), (2, 3), (5, 3)], ids=["none", "once", "twice", "always"]
)
async def test_custom_model_is_retried(autojump_clock, fails, calls):
    """A custom model is retried after the configured pauses.

    The last error has the original exception as its cause.
    """
    times = []

    async def model(messages):
        times.append(trio.current_time())
        if len(times) <= fails:
            raise ConnectionError("gone")
        return "here"

    retried = RetryingModel(model, Retry.exponential(), retry_on=(ConnectionError,))
    if fails < 3:
        assert (await said(retried)).text == "here"
    else:
        with pytest.raises(ProviderUnavailable, match="ConnectionError: gone") as raised:
            await said(retried)
        assert isinstance(raised.value.__cause__, ConnectionError)
    assert [round(each - times[0], 3) for each in times] == [0, 2, 6][:calls]


async def test_errors_outside_of_retry_on_are_not_retried(autojump_clock):
    """Errors outside `retry_on` and errors of the request are raised at once."""
    for error in (BadRequest("wrong"), ModelError("refused")):
        requests = []

        async def model(messages, error=error, requests=requests):
            requests.append(1)
            raise error

        with pytest.raises(type(error)):
            await said(RetryingModel(model, retry_on=(ConnectionError,)))
        assert len(requests) == 1


async def test_retryable_scripted_error_is_retried(autojump_clock):
    """An error that is marked as retryable is retried without `retry_on`."""
    llm = ScriptedLLM([ProviderUnavailable("503"), "here"])
    received = []
    async with BareAgent("a", llm=RetryingModel(llm)) as agent:
        session = await agent.create_session("user")
        session.on_token(lambda token: received.append(token.text))
        assert (await agent.run("Hello", session=session)).text == "here"
    assert received == ["here"]
