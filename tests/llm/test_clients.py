"""The contract of all remote clients, for every wire format."""

import email.utils
import json
import logging
import statistics
import time

import httpx2
import pytest
import trio
from trio.testing import MockClock

from actgent.errors import (
    BadRequest,
    ConfigurationError,
    MissingKey,
    ModelTimeout,
    NotAuthorized,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    StreamInterrupted,
    UnsupportedPart,
)
from actgent.llm.clients.anthropic import Anthropic
from actgent.llm.clients.openai import OpenAI
from actgent.llm.clients.openai_responses import OpenAIResponses
from actgent.llm.model_interface import ChatMessage, ModelRequest
from actgent.llm.retry_policy import Retry
from actgent.messages import File, Image, Opaque, Text, Thinking, ToolCall, ToolResult, ToolSpec

KEY = "sk-secret-0123456789"
HELLO = ModelRequest(messages=(ChatMessage("user", (Text("Hello."),)),))
ADD = ToolSpec("math.add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
TOOLS = ModelRequest(messages=HELLO.messages, tools=(ADD,))
CLASSES = {"openai": OpenAI, "openai-responses": OpenAIResponses, "anthropic": Anthropic}
QUICK = Retry(attempts=3, first_delay=0.001)


def failure(status, *, headers=(), **error):
    return {"status_code": status, "json": {"error": {"message": "No.", **error}}, "headers": dict(headers)}


# --- answers ----------------------------------------------------------------------------------


async def test_answer_has_text_id_and_usage(connect, said, dialect):
    """A plain answer has its text, its id, and input tokens that include the cached ones."""
    model, _ = connect(dialect, said(dialect, "Hello."))
    answer = await model.complete(HELLO)
    assert (answer.text, answer.stop, answer.id, answer.model) == ("Hello.", "end", "answer-1", "model-1")
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens) == (
        30,
        7,
        20,
        3,
    )
    assert usage.cost is None


async def test_known_model_has_a_cost(connect, said, dialect):
    """A model in the price tables has its price in dollars."""
    name = "claude-sonnet-4-5" if dialect == "anthropic" else "gpt-4o"
    reply = said(dialect)
    reply["json"]["model"] = name
    model, _ = connect(dialect, reply, model=name)
    cost = (await model.complete(HELLO)).usage.cost
    assert cost is not None
    assert 0 < cost < 0.01


async def test_streaming_gives_the_same_answer(connect, said, dialect):
    """The text arrives in pieces. The answer equals the answer without streaming."""
    calls = [("call_1", "math_add", '{"a": 1}')]
    plain, _ = connect(dialect, said(dialect, "Grüße.", calls=calls))
    streaming, wire = connect(dialect, said(dialect, "Grüße.", calls=calls, stream=True))
    pieces = []

    async def show(text, attempt):
        pieces.append((text, attempt))

    answer = await streaming.complete(HELLO, on_text=show)
    assert answer == await plain.complete(HELLO)
    assert pieces == [(letter, 0) for letter in "Grüße."]
    assert wire.bodies[0]["stream"] is True


async def test_streaming_can_be_forced_and_forbidden(connect, said, dialect):
    """`stream=` overrides the choice by token handler.

    With stream=False the handler gets the complete text.
    """
    shown = []

    async def show(text, attempt):
        shown.append(text)

    forced, wire = connect(dialect, said(dialect, stream=True), stream=True)
    assert (await forced.complete(HELLO)).text == "Hello."
    assert wire.bodies[0]["stream"] is True
    forbidden, wire = connect(dialect, said(dialect), stream=False)
    await forbidden.complete(HELLO, on_text=show)
    assert "stream" not in wire.bodies[0]
    assert shown == ["Hello."]


async def test_server_that_ignores_stream_is_supported(connect, said, dialect):
    """The response is parsed by its content type, not by the requested mode."""
    model, _ = connect(dialect, said(dialect), stream=True)
    assert (await model.complete(HELLO)).text == "Hello."
    model, _ = connect(dialect, said(dialect, stream=True), stream=False)
    assert (await model.complete(HELLO)).text == "Hello."


async def test_names_of_parallel_calls_are_decoded(connect, said, dialect):
    """Names with dots are encoded for the provider and decoded in the answer."""
    model, wire = connect(dialect, said(dialect, ""))
    await model.complete(TOOLS)
    tool = wire.bodies[0]["tools"][0]
    name = tool.get("function", tool)["name"]
    assert "." not in name
    calls = [("call_1", name, '{"a": 1}'), ("call_2", name, '{"a": 2}'), ("call_1", "unknown", "{}")]
    model, _ = connect(dialect, said(dialect, "", calls=calls))
    answer = await model.complete(TOOLS)
    assert answer.stop == "tool_calls"
    assert answer.tool_calls == (
        ToolCall("math.add", {"a": 1}, provider_id="call_1"),
        ToolCall("math.add", {"a": 2}, provider_id="call_2"),
        ToolCall("unknown", {}, provider_id="call_1"),
    )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("", {}),
        (" ", {}),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ('"{}"', '"{}"'),
        ("{'a': 1}", "{'a': 1}"),
        ("[" * 100_000, None),
    ],
)
async def test_arguments_are_never_repaired(connect, said, dialect, written, read):
    """Empty arguments mean none. Text that is not a JSON object stays text."""
    stream = dialect == "anthropic"
    model, _ = connect(dialect, said(dialect, "", calls=[("call_1", "f", written or "")], stream=stream))
    (call,) = (await model.complete(HELLO)).tool_calls
    if not (stream and written in ("[1]", '"{}"', " ", "")):  # The server decodes other JSON values here.
        assert call.arguments == (written if read is None else read)


async def test_a_cut_answer_has_no_incomplete_call(connect, said, dialect):
    """An answer truncated at the token limit keeps complete calls and drops the truncated call."""
    calls = [("call_1", "f", '{"a": 1}'), ("call_2", "f", '{"a": "unfin')]
    model, _ = connect(dialect, said(dialect, "So", calls=calls, stop="length", stream=True), stream=True)
    answer = await model.complete(HELLO)
    assert (answer.text, answer.stop) == ("So", "length")
    assert [call.provider_id for call in answer.tool_calls] == ["call_1"]


# --- requests ---------------------------------------------------------------------------------


async def test_request_values_override_client_defaults(connect, said, dialect):
    """A temperature of 0 is sent. The request's value overrides the client's."""
    model, wire = connect(dialect, said(dialect), temperature=0.0, max_tokens=5)
    await model.complete(HELLO)
    await model.complete(ModelRequest(messages=HELLO.messages, temperature=0.5, max_tokens=9))
    limits = [next(body[key] for key in body if "max" in key) for body in wire.bodies]
    assert [body["temperature"] for body in wire.bodies] == [0.0, 0.5]
    assert limits == [5, 9]


async def test_extra_fields_override_request_fields(connect, said, dialect):
    """Extra fields override ours. None removes a field."""
    extra = {"model": "other", "temperature": None, "seed": 1}
    model, wire = connect(
        dialect, said(dialect), temperature=1, extra_body=extra, extra_headers={"X-Team": "blue"}
    )
    await model.complete(HELLO)
    body = wire.bodies[0]
    assert (body["model"], body["seed"], "temperature" in body) == ("other", 1, False)
    assert wire.requests[0].headers["x-team"] == "blue"


async def test_thinking_is_not_sent_to_another_provider(connect, said, dialect):
    """Content that one provider signed or encrypted is never sent to a different provider."""
    foreign = [
        Thinking("secret thoughts", other, {"type": "x", "data": "secret"})
        for other in CLASSES
        if other != dialect
    ]
    foreign += [Opaque(other, {"type": "x", "data": "secret"}) for other in CLASSES if other != dialect]
    model, wire = connect(dialect, said(dialect))
    messages = (*HELLO.messages, ChatMessage("assistant", (*foreign, Text("Yes?"))), *HELLO.messages)
    await model.complete(ModelRequest(messages=messages))
    text = wire.requests[0].content.decode()
    assert "secret" not in text
    assert "Yes?" in text


async def test_provider_blocks_can_be_sent_by_users(connect, said, dialect):
    """A provider-specific block can be sent as an opaque part of a user message."""
    block = {"type": "container_upload", "file_id": "file_1"}
    model, wire = connect(dialect, said(dialect), **({"cache": False} if dialect == "anthropic" else {}))
    await model.complete(ModelRequest(messages=(ChatMessage("user", (Text("See"), Opaque(dialect, block))),)))
    assert block in [value for _, value in walk(wire.bodies[0])]


async def test_calls_and_results_share_valid_ids(connect, said, dialect):
    """A call and its result have the same id on the wire, in characters that every provider accepts."""
    calls = tuple(
        ToolCall("math.add", {"a": n}, call_id) for n, call_id in enumerate(("ok-1", "ö.1", "ö:1", "x" * 90))
    )
    results = tuple(ToolResult(call_id=call.id, tool_name="math.add", content="1") for call in calls)
    model, wire = connect(dialect, said(dialect))
    await model.complete(
        ModelRequest(
            messages=(*HELLO.messages, ChatMessage("assistant", calls), ChatMessage("tool", results))
        )
    )
    found = [
        value
        for key, value in walk(wire.bodies[0])
        if key in ("id", "call_id", "tool_call_id", "tool_use_id")
    ]
    assert sorted(found) == sorted(2 * found[:4])
    assert len(set(found)) == 4
    assert all(len(value) <= 40 and value.isascii() and "." not in value for value in found)
    assert "ok-1" in found


async def test_calls_of_text_protocols_are_sent_as_text(connect, said, dialect):
    """A call inside the text is not sent twice. Its result is sent as user text."""
    call = ToolCall("f", {}, "id-1", native=False)
    result = ToolResult(call_id="id-1", tool_name="f", content="42", native=False)
    messages = (
        *HELLO.messages,
        ChatMessage("assistant", (Text("{f}"), call)),
        ChatMessage("user", (result,)),
    )
    model, wire = connect(dialect, said(dialect))
    await model.complete(ModelRequest(messages=messages))
    text = wire.requests[0].content.decode()
    assert "id-1" not in text
    assert "42" in text


async def test_equal_requests_have_equal_bytes(connect, said, dialect):
    """Prompt caches need identical prefixes."""
    model, wire = connect(dialect, said(dialect))
    await model.complete(TOOLS)
    await model.complete(TOOLS)
    assert wire.requests[0].content == wire.requests[1].content


class IdleWaits(trio.abc.Instrument):
    """Counts how often the event loop waited because no task could run."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += timeout > 0


async def test_the_first_request_waits_for_no_thread(connect, said, dialect):
    """A wait for a thread would let a mock clock jump to the next deadline, such as the timeout of the call."""
    model, _ = connect(dialect, said(dialect))
    waits = IdleWaits()
    trio.lowlevel.add_instrument(waits)
    await model.complete(HELLO)
    trio.lowlevel.remove_instrument(waits)
    assert waits.count == 0


async def test_long_histories_are_encoded_quickly(connect, said, dialect):
    """Encoding 1000 messages takes less than ten times their JSON parsing.

    The SDK's own transform takes 0.2 ms for each message.
    """
    calls = [ToolCall("math.add", {"a": number}, f"id-{number}") for number in range(333)]
    history = [
        message
        for call in calls
        for message in (
            ChatMessage("user", (Text(f"{call.id} " + "x" * 400),)),
            ChatMessage("assistant", (Text("Let me see."), call)),
            ChatMessage("tool", (ToolResult(call_id=call.id, tool_name=call.name, content="5"),)),
        )
    ]
    model, wire = connect(dialect, said(dialect))
    await model.complete(HELLO)
    costs, floors = [], []
    for _ in range(7):
        begin = time.process_time()
        await model.complete(ModelRequest(messages=history, tools=(ADD,)))
        sent = time.process_time()
        json.loads(wire.requests[-1].content)
        costs.append(sent - begin)
        floors.append(time.process_time() - sent)
    assert statistics.median(costs) < 10 * statistics.median(floors)
    assert len(wire.requests[-1].content) > 333 * 400


async def test_lone_surrogates_do_not_stop_a_request(connect, said, dialect):
    """Characters that UTF-8 cannot encode are sent as question marks."""
    model, wire = connect(dialect, said(dialect))
    await model.complete(ModelRequest(messages=(ChatMessage("user", (Text("a\ud800b"),)),)))
    assert "a?b" in wire.requests[0].content.decode()


async def test_unsupported_parts_are_typed_errors(connect, said, dialect):
    """A part that the wire format cannot express is rejected before a request is sent."""
    part = {
        "openai": File(media_type="application/pdf", url="https://example.com/a.pdf"),
        "openai-responses": File(media_type="audio/wav", data=b"1"),
        "anthropic": File(media_type="audio/wav", data=b"1"),
    }[dialect]
    model, wire = connect(dialect, said(dialect))
    with pytest.raises(UnsupportedPart):
        await model.complete(ModelRequest(messages=(ChatMessage("user", (part,)),)))
    with pytest.raises(UnsupportedPart):
        await model.complete(
            ModelRequest(
                messages=(ChatMessage("assistant", (Text("a"), Image(media_type="image/png", data=b"1"))),)
            )
        )
    assert not wire.requests


def walk(body):
    for key, value in (
        body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    ):
        yield key, value
        yield from walk(value)


# --- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (failure(400, type="invalid_request_error"), BadRequest),
        (failure(401, type="invalid_request_error"), NotAuthorized),
        (failure(403), NotAuthorized),
        (failure(404, type="not_found_error"), BadRequest),
        (failure(413), BadRequest),
        (failure(422), BadRequest),
        (failure(402), QuotaExhausted),
        (failure(429, type="insufficient_quota", code="insufficient_quota"), QuotaExhausted),
        (failure(429, type="billing_error"), QuotaExhausted),
    ],
)
async def test_permanent_provider_errors_are_not_retried(connect, dialect, reply, kind):
    """Request, key and quota errors are raised after one attempt."""
    model, wire = connect(dialect, reply, retry=QUICK)
    with pytest.raises(kind, match=r"No\.") as caught:
        await model.complete(HELLO)
    assert not caught.value.retryable
    assert caught.value.status == reply["status_code"]
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (failure(408), ModelTimeout),
        (failure(409), ProviderUnavailable),
        (failure(429, type="rate_limit_error"), RateLimited),
        (failure(500, type="api_error"), ProviderUnavailable),
        (failure(529, type="overloaded_error"), ProviderUnavailable),
        ({"status_code": 502, "text": "<html>Bad gateway</html>"}, ProviderUnavailable),
        (httpx2.ConnectError("refused"), ProviderUnavailable),
        (httpx2.ReadTimeout("slow"), ModelTimeout),
        (httpx2.RemoteProtocolError("cut"), ProviderUnavailable),
        ({"status_code": 200, "text": "<html>Welcome</html>"}, StreamInterrupted),
        (
            {"status_code": 200, "text": "<html>", "headers": {"content-type": "application/json"}},
            StreamInterrupted,
        ),
        ({"status_code": 200, "json": []}, StreamInterrupted),
        ({"status_code": 200, "json": {"choices": None, "output": None, "content": None}}, StreamInterrupted),
        (
            {
                "status_code": 200,
                "json": {"choices": [], "status": "queued", "content": [], "stop_reason": None},
            },
            StreamInterrupted,
        ),
        ({"status_code": 200, "json": {"choices": [7], "output": [7], "content": [7]}}, StreamInterrupted),
        (
            {"status_code": 200, "json": {"error": {"type": "server_error", "message": "x"}}},
            ProviderUnavailable,
        ),
        ({"status_code": 200, "json": {"error": {"code": 429, "message": "x"}}}, RateLimited),
        ({"status_code": 200, "json": {"error": {"code": "429", "message": "x"}}}, RateLimited),
        ({"status_code": 200, "json": {"error": {"code": "9" * 5000, "message": "x"}}}, ProviderUnavailable),
        ({"status_code": 200, "json": {"error": "x"}}, ProviderUnavailable),
    ],
)
async def test_retryable_errors_are_retried(connect, said, dialect, reply, kind):
    """Overload, broken connections and invalid answers are retried, and raised after the last attempt."""
    model, wire = connect(dialect, reply, retry=QUICK)
    with pytest.raises(kind) as caught:
        await model.complete(HELLO)
    assert caught.value.retryable
    assert len(wire.requests) == 3
    model, wire = connect(dialect, reply, reply, said(dialect), retry=QUICK)
    assert (await model.complete(HELLO)).text == "Hello."


async def test_a_provider_that_forbids_retries_is_not_retried(connect, dialect):
    """`x-should-retry: false` prevents a retry."""
    model, wire = connect(dialect, failure(503, headers={"x-should-retry": "false"}), retry=QUICK)
    with pytest.raises(ProviderUnavailable):
        await model.complete(HELLO)
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "nonsense"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
async def test_retry_after_is_read(connect, dialect, headers, seconds):
    """Seconds and milliseconds are read. Invalid values are ignored."""
    model, _ = connect(dialect, failure(429, headers=headers))
    with pytest.raises(RateLimited) as caught:
        await model.complete(HELLO)
    assert caught.value.retry_after == seconds


async def test_retry_after_may_be_a_date(connect, dialect):
    """An HTTP date is converted to the time until that date."""
    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    model, _ = connect(dialect, failure(503, headers={"retry-after": date}))
    with pytest.raises(ProviderUnavailable) as caught:
        await model.complete(HELLO)
    assert caught.value.retry_after == pytest.approx(60, abs=3)


async def test_a_retry_after_beyond_the_deadline_raises_at_once(connect, dialect, autojump_clock: MockClock):
    """The error is raised without a wait if Retry-After exceeds the deadline."""
    model, wire = connect(dialect, failure(429, headers={"retry-after": "30"}), retry=QUICK)
    with trio.fail_after(20), pytest.raises(RateLimited):
        await model.complete(HELLO)
    assert trio.current_time() < 1
    assert len(wire.requests) == 1


async def test_interrupted_stream_is_retried_with_a_higher_attempt(connect, said, dialect):
    """The retry has a higher attempt number, which invalidates the text of the broken attempt."""
    whole = said(dialect, "Hello.", stream=True)
    cut = {**whole, "content": b"\n\n".join(whole["content"].split(b"\n\n")[:4]) + b"\n\n"}
    model, _ = connect(dialect, cut, whole, retry=QUICK)
    pieces = []

    async def show(text, attempt):
        pieces.append((attempt, text))

    assert (await model.complete(HELLO, on_text=show)).text == "Hello."
    assert "".join(text for attempt, text in pieces if attempt == 1) == "Hello."
    assert 0 < len([text for attempt, text in pieces if attempt == 0]) < 6


@pytest.mark.parametrize(
    "error", [httpx2.ReadError("cut"), httpx2.RemoteProtocolError("cut"), httpx2.ReadTimeout("slow")]
)
async def test_transport_errors_of_a_stream_are_wrapped(connect, said, dialect, error):
    """Transport errors of the stream are raised as actgent errors."""
    head = said(dialect, stream=True)["content"][:60]

    async def content():
        yield head
        raise error

    model, _ = connect(
        dialect, lambda _request: httpx2.Response(200, headers=STREAM, content=content()), stream=True
    )
    with pytest.raises(
        ModelTimeout if isinstance(error, httpx2.ReadTimeout) else StreamInterrupted
    ) as caught:
        await model.complete(HELLO)
    assert caught.value.retryable


STREAM = {"content-type": "text/event-stream"}


async def test_an_error_event_without_a_name_is_not_lost(connect, said, dialect):
    """An error inside a 200 stream is classified by its data, with or without an `event:` line."""
    event = b'data: {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}\n\n'
    reply = {"status_code": 200, "headers": STREAM, "content": event}
    model, _ = connect(dialect, reply, stream=True)
    with pytest.raises(RateLimited, match="slow down"):
        await model.complete(HELLO)
    started = {
        **reply,
        "content": said(dialect, stream=True)["content"].partition(b"\n\n")[0]
        + b"\n\n"
        + event.replace(b"rate_limit", b"overloaded"),
    }
    model, _ = connect(dialect, started, stream=True)
    with pytest.raises(StreamInterrupted, match="slow down") as caught:
        await model.complete(HELLO)
    assert caught.value.code == "overloaded_error"


async def test_unknown_events_and_fields_are_ignored(connect, said, dialect):
    """Events and fields that a provider adds later do not break the answer."""
    reply = said(dialect, stream=True)
    noise = b': comment\n\nevent: new\ndata: {"type": "new.event", "novel": [1]}\n\nid: 7\nretry: 3\n\n'
    model, _ = connect(dialect, {**reply, "content": noise + reply["content"] + noise}, stream=True)
    assert (await model.complete(HELLO)).text == "Hello."


# --- time and cancellation --------------------------------------------------------------------


def slow(head: bytes, closed: list[bool]):
    """Return a reply that sends its headers and then stalls for an hour."""

    async def content():
        try:
            yield head
            await trio.sleep(3600)
        finally:
            closed.append(True)

    return lambda _request: httpx2.Response(200, headers=STREAM, content=content())


async def test_an_attempt_ends_at_its_timeout(connect, said, dialect, autojump_clock: MockClock):
    """A stalled stream is also closed at the attempt's timeout."""
    closed: list[bool] = []
    model, _ = connect(
        dialect, slow(said(dialect, stream=True)["content"][:90], closed), timeout=5, stream=True
    )
    with pytest.raises(ModelTimeout, match="5 s"):
        await model.complete(HELLO)
    assert trio.current_time() == pytest.approx(5, abs=0.1)
    assert closed == [True]


async def test_cancelling_closes_the_stream(connect, said, dialect, autojump_clock: MockClock):
    """A cancelled call has closed its connection when it returns."""
    closed: list[bool] = []
    model, _ = connect(dialect, slow(said(dialect, stream=True)["content"][:90], closed), stream=True)
    with trio.move_on_after(1) as scope:
        await model.complete(HELLO)
    assert scope.cancelled_caught
    assert closed == [True]


async def test_a_listener_that_raises_closes_the_stream(connect, said, dialect, autojump_clock: MockClock):
    """The listener's exception is raised unchanged and the stream is closed."""
    closed: list[bool] = []
    head = said(dialect, stream=True)["content"].rpartition(b"\n\n")[0][:-150] + b"\n\n"
    model, _ = connect(dialect, slow(said(dialect, "Hello.", stream=True)["content"], closed), stream=True)

    async def show(text, attempt):
        raise KeyError(text)

    with pytest.raises(KeyError):
        await model.complete(HELLO, on_text=show)
    assert closed == [True]
    assert head


# --- keys and addresses -----------------------------------------------------------------------


def test_a_missing_key_names_argument_and_variables(dialect):
    """The constructor's error names the argument and the variables to set."""
    with pytest.raises(MissingKey, match=r"api_key=.*_API_KEY or LLM_API_KEY"):
        CLASSES[dialect]("model-1")


def test_argument_precedes_provider_and_general_variables(dialect, monkeypatch):
    """The order is the argument, the provider's own variable, then the general variable."""
    own = "ANTHROPIC" if dialect == "anthropic" else "OPENAI"
    monkeypatch.setenv("LLM_API_KEY", "general")
    monkeypatch.setenv("LLM_PROVIDER_URL", "https://general.example/api")
    model = CLASSES[dialect]("model-1")
    assert (model._key, model.base_url) == ("general", "https://general.example/api")
    monkeypatch.setenv(f"{own}_API_KEY", " own\n")
    monkeypatch.setenv(f"{own}_BASE_URL", "https://own.example/api")
    model = CLASSES[dialect]("model-1")
    assert (model._key, model.base_url) == ("own", "https://own.example/api")
    model = CLASSES[dialect]("model-1", api_key="argument", base_url="https://argument.example/api/")
    assert (model._key, model.base_url) == ("argument", "https://argument.example/api")


async def test_local_server_needs_no_key(connect, said):
    """Plain http means a local server. The SDK gets a placeholder key."""
    model, wire = connect("openai", said("openai"), api_key=None, base_url="http://localhost:8000/v1")
    await model.complete(HELLO)
    assert str(wire.requests[0].url) == "http://localhost:8000/v1/chat/completions"
    with pytest.raises(MissingKey):
        connect("openai", api_key=None, base_url="https://example.com/v1")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://example.com", "https://", "not a url"])
def test_invalid_address_is_rejected(dialect, url):
    """The error for an invalid http address names the argument and the variables."""
    with pytest.raises(ConfigurationError, match="base_url="):
        CLASSES[dialect]("model-1", api_key=KEY, base_url=url)


@pytest.mark.parametrize(
    "arguments", [{"model": " "}, {"model": "m", "api_key": "schlüssel"}, {"model": "m", "api_key": "a\nb"}]
)
def test_invalid_names_and_keys_are_rejected(dialect, arguments):
    """An empty model name and a key that no header can contain fail at construction, without the value."""
    with pytest.raises(ConfigurationError) as caught:
        CLASSES[dialect](**{"api_key": KEY, **arguments})
    assert "schl" not in str(caught.value)


def test_unknown_option_is_rejected(dialect):
    """The error names the mistyped option and lists the valid options."""
    with pytest.raises(ConfigurationError, match=r"no option 'api_kee'.*api_key, base_url"):
        CLASSES[dialect]("model-1", api_key=KEY, api_kee=KEY)


async def test_key_is_never_shown(connect, dialect, caplog):
    """repr, logs of all levels and errors that quote the key omit it."""
    caplog.set_level(logging.DEBUG)
    model, wire = connect(dialect, failure(401, message=f"Incorrect API key provided: {KEY}"))
    with pytest.raises(NotAuthorized) as caught:
        await model.complete(HELLO)
    error = caught.value
    sent = json.dumps(dict(wire.requests[0].headers))
    assert KEY in sent
    log_lines = [
        repr(model),
        str(error),
        repr(error),
        str(error.__cause__),
        str(error.__context__),
        repr(vars(error)),
        caplog.text,
    ]
    assert not any(KEY in text for text in log_lines)
    assert "[api key]" in str(error)


async def test_passed_http_client_is_not_closed(connect, said, dialect):
    """The client does not close an HTTP client that the caller passed in."""
    model, _ = connect(dialect, said(dialect))
    await model.aclose()
    assert (await model.complete(HELLO)).text == "Hello."


async def test_errors_have_the_request_id_of_the_provider(connect, dialect):
    """Errors keep the provider's request id of a failed exchange."""
    model, _ = connect(dialect, failure(500, headers={"request-id": "req_1", "x-request-id": "req_1"}))
    with pytest.raises(ProviderUnavailable) as caught:
        await model.complete(HELLO)
    assert caught.value.request_id == "req_1"
