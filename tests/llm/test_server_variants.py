"""Variants of answers and errors that compatible servers and proxies send, for the three wire formats."""

import json

import httpx2
import pytest

from actgent.errors import (
    BadRequest,
    ModelError,
    NotAuthorized,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    StreamInterrupted,
)
from actgent.llm.context_overflow_errors import is_too_long
from actgent.llm.model_interface import ChatMessage, ModelRequest
from actgent.messages import Text, Thinking

from .conftest import CLIENTS, KEY, stream_reply

HELLO = ModelRequest(messages=(ChatMessage("user", (Text("Hello."),)),))
URL = "http://localhost:1/v1"
ARGUMENTS = '{"a": 1}'
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


def chunk(delta=None, finish=None, **more):
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


def call(arguments=ARGUMENTS, **fields):
    return chunk({"tool_calls": [{**fields, "function": {"name": "f", "arguments": arguments}}]})


def raw(data, kind="text/event-stream", status=200, **headers):
    return {"status_code": status, "headers": {"content-type": kind, **headers}, "content": data}


def whole(body, **headers):
    return raw(json.dumps(body).encode(), "application/json", **headers)


HI = chunk({"content": "Hi"})
END = chunk({}, "stop")


async def answer_to(connect, dialect, reply, *, stream=True):
    """Return the answer, and the text that was passed to `on_text`."""
    model, _ = connect(dialect, reply, base_url=URL, stream=stream)
    shown = []

    async def show(text, _attempt):
        shown.append(text)

    return await model.complete(HELLO, on_text=show), "".join(shown)


async def failure_of(connect, dialect, reply, *, stream=False):
    with pytest.raises(ModelError) as caught:
        await answer_to(connect, dialect, reply, stream=stream)
    return caught.value


# --- texts ------------------------------------------------------------------------------------------

BODY = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
TEXTS = {
    "the whole message in place of a delta": stream_reply(
        {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    ),
    "the whole message after the deltas": stream_reply(
        HI, {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    ),
    "pieces as messages": stream_reply(
        {"choices": [{"index": 0, "message": {"content": "H"}}]},
        {"choices": [{"index": 0, "message": {"content": "i"}, "finish_reason": "stop"}]},
    ),
    "JSON as text": raw(json.dumps(BODY).encode(), "text/plain"),
    "JSON without a type": {"status_code": 200, "content": json.dumps(BODY).encode()},
    "events with the type of JSON": {
        **stream_reply(HI, END),
        "headers": {"content-type": "application/json"},
    },
    "no blank lines between events": raw(stream_reply(HI, END)["content"].replace(b"\n\n", b"\n")),
    "an unknown finish_reason that is no text": stream_reply(HI, chunk({}, 1)),
}


@pytest.mark.parametrize("reply", TEXTS.values(), ids=TEXTS)
async def test_text_of_a_chat_completion(connect, reply):
    """The text of the answer is complete and not repeated, and it is passed to `on_text`."""
    answer, shown = await answer_to(connect, "openai", reply)
    assert (answer.text, answer.stop, shown) == ("Hi", "end", "Hi")


async def test_thinking_field(connect):
    """The field `thinking` is reasoning."""
    answer, _ = await answer_to(connect, "openai", stream_reply(chunk({"thinking": "Hm."}), HI, END))
    assert [part.text for part in answer.parts if isinstance(part, Thinking)] == ["Hm."]


CALLS = {
    "one id for two calls": (
        stream_reply(call(id="f"), call('{"a": 2}', id="f"), END),
        [{"a": 1}, {"a": 2}],
    ),
    "a repeated call": (stream_reply(call(id="f"), call(id="f"), END), [{"a": 1}]),
    "calls in a message after the text": (
        stream_reply(
            HI,
            {
                "choices": [
                    {
                        "message": {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ARGUMENTS}}]},
                        "finish_reason": "tool_calls",
                    }
                ]
            },
        ),
        [{"a": 1}],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "arguments"), CALLS.values(), ids=CALLS)
async def test_calls_of_a_chat_completion(connect, reply, arguments):
    """No call is lost, joined to another, or repeated."""
    answer, _ = await answer_to(connect, "openai", reply)
    assert [each.arguments for each in answer.tool_calls] == arguments
    assert answer.stop == "tool_calls"


# --- stop reasons -----------------------------------------------------------------------------------

STOPS = {
    "model_length": "length",
    "FinishReason.MAX_TOKENS": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "sensitive": "filter",
    "content_filter: PROHIBITED_CONTENT": "filter",
    "content_filtered": "filter",
    "guardrail_intervened": "filter",
    "IMAGE_SAFETY": "filter",
    "BLOCKLIST": "filter",
    "SPII": "filter",
    "LANGUAGE": "filter",
    "ERROR_TOXIC": "filter",
    "refusal": "refusal",
    "eos": "end",
    "stop_sequence": "end",
    "OTHER": "end",
}
ABORTED = (
    "network_error",
    "function_call_filter: MALFORMED_FUNCTION_CALL",
    "UNEXPECTED_TOOL_CALL",
    "cancelled",
    "timeout",
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize(("reason", "stop"), STOPS.items())
async def test_stop_reasons(connect, dialect, stream, reason, stop):
    """Words of many providers give one of our stop reasons."""
    answer, _ = await answer_to(connect, dialect, ended_by(dialect, reason, stream), stream=stream)
    assert answer.stop == stop


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("reason", ABORTED)
async def test_aborted_answers(connect, dialect, reason):
    """A stop reason for an aborted answer is an error, which is retried."""
    error = await failure_of(connect, dialect, ended_by(dialect, reason, stream=True), stream=True)
    assert isinstance(error, StreamInterrupted)
    assert reason in str(error)


def ended_by(dialect, reason, stream):
    if dialect == "openai":
        body = {"choices": [{"message": {"content": "Hi"}, "finish_reason": reason}]}
        return stream_reply(HI, chunk({}, reason)) if stream else whole(body)
    if stream:
        return messages(*block(0, "Hi"), stopped(reason))
    return whole({"content": [{"type": "text", "text": "Hi"}], "stop_reason": reason})


# --- Anthropic messages -----------------------------------------------------------------------------

START = {
    "type": "message_start",
    "message": {"content": [], "usage": {"input_tokens": 30, "output_tokens": 1}},
}
STOP = {"type": "message_stop"}


def messages(*events):
    return stream_reply(START, *events, STOP)


def stopped(reason, **usage):
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5, **usage}}


def block(index, text):
    delta = {"type": "text_delta", "text": text}
    return [
        {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": index, "delta": delta},
        {"type": "content_block_stop", "index": index},
    ]


def use(index, arguments=ARGUMENTS, name="f"):
    started = {"type": "tool_use", "id": f"t-{name}", "name": name, "input": {}}
    delta = {"type": "input_json_delta", "partial_json": arguments}
    return [
        {"type": "content_block_start", "index": index, "content_block": started},
        {"type": "content_block_delta", "index": index, "delta": delta},
        {"type": "content_block_stop", "index": index},
    ]


MESSAGES = {
    "no stop_reason": (messages(*block(0, "Hi"), stopped(None)), "Hi", []),
    "no message_delta": (messages(*block(0, "Hi")), "Hi", []),
    "a call that ends with end_turn": (
        messages(*block(0, "Hi"), *use(1), stopped("end_turn")),
        "Hi",
        [{"a": 1}],
    ),
    "one index for all blocks": (
        messages(*block(0, "Hi"), *use(0), *use(0, '{"a": 2}', "g"), stopped("tool_use")),
        "Hi",
        [{"a": 1}, {"a": 2}],
    ),
    "no start of the block": (messages(*block(0, "Hi")[1:], stopped("end_turn")), "Hi", []),
    "arguments as an object": (messages(*use(0, {"a": 1}), stopped("tool_use")), "", [{"a": 1}]),
    "a message_delta with usage only": (
        messages(
            *block(0, "Hi"), stopped("end_turn"), {"type": "message_delta", "usage": {"output_tokens": 5}}
        ),
        "Hi",
        [],
    ),
    "counts of zero at the end": (messages(*block(0, "Hi"), stopped("end_turn", input_tokens=0)), "Hi", []),
    "whole, no stop_reason": (whole({"content": [{"type": "text", "text": "Hi"}]}), "Hi", []),
    "whole, content as text": (whole({"content": "Hi", "stop_reason": "end_turn"}), "Hi", []),
    "whole, a call that ends with stop": (
        whole(
            {"content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}], "stop_reason": "stop"}
        ),
        "",
        [{"a": 1}],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "text", "arguments"), MESSAGES.values(), ids=MESSAGES)
async def test_messages_of_compatible_servers(connect, reply, text, arguments):
    """No text and no call is lost, and a call sets the stop reason."""
    answer, shown = await answer_to(connect, "anthropic", reply)
    assert answer.text == shown == text
    assert [each.arguments for each in answer.tool_calls] == arguments
    assert answer.stop == ("tool_calls" if arguments else "end")
    if b"message_start" in reply["content"] and b'"output_tokens": 5' in reply["content"]:
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (30, 5)


async def test_message_without_stop_reason_and_with_an_incomplete_call_is_no_answer(connect):
    """A call whose arguments are incomplete shows that the answer is incomplete."""
    with pytest.raises(StreamInterrupted):
        await answer_to(connect, "anthropic", messages(*use(0, '{"a": ')))


# --- Responses --------------------------------------------------------------------------------------

ITEM = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
DELTA = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi"}
RESPONSES = {
    "text in deltas only": stream_reply(
        DELTA, {"type": "response.completed", "response": {"status": "completed", "output": []}}
    ),
    "no output in the response": stream_reply(
        DELTA, {"type": "response.completed", "response": {"status": "completed"}}
    ),
    "no status": whole({"output": [ITEM]}),
    "content as text": whole({"status": "completed", "output": [{"type": "message", "content": "Hi"}]}),
    "summary as text": whole(
        {"status": "completed", "output": [{"type": "reasoning", "summary": "Hm."}, ITEM]}
    ),
}


@pytest.mark.parametrize("reply", RESPONSES.values(), ids=RESPONSES)
async def test_responses_of_compatible_servers(connect, reply):
    """The text is complete if fields or events of the API are absent."""
    answer, shown = await answer_to(connect, "openai-responses", reply)
    assert answer.text == shown == "Hi"
    assert answer.stop == "end"


async def test_call_without_call_id_has_the_id_of_its_item(connect):
    """The id links the result to the call."""
    item = {"type": "function_call", "id": "fc_1", "name": "f", "arguments": "{}"}
    answer, _ = await answer_to(connect, "openai-responses", whole({"status": "completed", "output": [item]}))
    assert answer.tool_calls[0].provider_id == "fc_1"


# --- usage ------------------------------------------------------------------------------------------

USAGES = {
    "in the last choice": (
        stream_reply(HI, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]}),
        (10, 5, 0, 0),
    ),
    "zeros at the end": (
        stream_reply({**HI, "usage": USAGE}, {**END, "usage": {"prompt_tokens": 0, "completion_tokens": 0}}),
        (10, 5, 0, 0),
    ),
    "Moonshot's cache": (stream_reply(HI, {**END, "usage": {**USAGE, "cached_tokens": 4}}), (10, 5, 4, 0)),
    "LiteLLM's cache": (
        stream_reply(
            HI, {**END, "usage": {**USAGE, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2}}
        ),
        (10, 5, 4, 2),
    ),
    "numbers as texts": (
        stream_reply(HI, {**END, "usage": {"prompt_tokens": "10", "completion_tokens": "5"}}),
        (10, 5, 0, 0),
    ),
    "floats": (
        stream_reply(HI, {**END, "usage": {"prompt_tokens": 10.0, "completion_tokens": 5.0}}),
        (10, 5, 0, 0),
    ),
    "names of Responses": (
        stream_reply(HI, {**END, "usage": {"input_tokens": 10, "output_tokens": 5}}),
        (10, 5, 0, 0),
    ),
    "negative": (
        stream_reply(HI, {**END, "usage": {"prompt_tokens": -1, "completion_tokens": 5}}),
        (0, 5, 0, 0),
    ),
}


@pytest.mark.parametrize(("reply", "counts"), USAGES.values(), ids=USAGES)
async def test_usage_of_compatible_servers(connect, reply, counts):
    """Usage is found in all its places and forms."""
    usage = (await answer_to(connect, "openai", reply))[0].usage
    found = usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens
    assert found == counts


@pytest.mark.parametrize("number", [b"1e400", b"Infinity", b"NaN", b"-Infinity"])
@pytest.mark.parametrize("stream", [False, True])
async def test_infinite_counts_are_unknown(connect, said, dialect, stream, number):
    """A count that is no number does not raise another exception than ours."""
    reply = said(dialect, "Hi", stream=stream)
    data = reply["content"] if stream else json.dumps(reply["json"]).encode()
    data = data.replace(b": 30", b": " + number)
    kind = "text/event-stream" if stream else "application/json"
    answer, _ = await answer_to(connect, dialect, raw(data, kind), stream=stream)
    assert answer.text == "Hi"


# --- errors -----------------------------------------------------------------------------------------

NAMED = b"event: error\ndata: "
ERRORS = {
    "an error event without the field error": (
        raw(NAMED + b'{"message": "bad key", "code": 401}\n\n'),
        NotAuthorized,
        "bad key",
    ),
    "vLLM's object": (
        stream_reply({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}),
        BadRequest,
        "no",
    ),
    "a detail": (stream_reply({"detail": "down"}), ProviderUnavailable, "down"),
    "msg with a code": (whole({"code": 401, "msg": "token invalid"}), NotAuthorized, "token invalid"),
    "MiniMax's base_resp": (
        whole({"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
        QuotaExhausted,
        "insufficient balance",
    ),
    "a list of errors": (
        whole({"success": False, "errors": [{"message": "down", "code": 7003}]}),
        ProviderUnavailable,
        "down",
    ),
    "no choices": (whole({"model": "m", "usage": USAGE}), StreamInterrupted, "at least one choice"),
    "an empty body": (raw(b"", "application/json"), StreamInterrupted, "empty"),
    "a web page": (
        raw(b"<html><head><title>Sign in</title></head></html>", "text/html"),
        StreamInterrupted,
        "web page 'Sign in'",
    ),
}


@pytest.mark.parametrize(("reply", "kind", "text"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_with_status_200(connect, stream, reply, kind, text):
    """The error class and text are those of the server."""
    error = await failure_of(connect, "openai", reply, stream=stream)
    assert type(error) is kind
    assert text in str(error) or not reply["content"]


async def test_error_event_after_text_interrupts_the_answer(connect):
    """An overload error after the first event is an interrupted answer, with the server's text."""
    data = stream_reply(HI, done=False)["content"] + NAMED + b'{"message": "overloaded", "code": 503}\n\n'
    error = await failure_of(connect, "openai", raw(data), stream=True)
    assert isinstance(error, StreamInterrupted)
    assert "overloaded" in str(error)


PAGE = b"<html><head><title>502 Bad\n Gateway</title></head><style>" + b"x" * 2_000 + b"</style></html>"
STATUSES = {
    "Moonshot's quota": (429, {"error": {"type": "exceeded_current_quota_error"}}, QuotaExhausted, ""),
    "Anthropic's credit": (
        400,
        {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access it."}},
        QuotaExhausted,
        "",
    ),
    "Zhipu's credit": (429, {"error": {"code": "1113", "message": "您的账户已欠费"}}, QuotaExhausted, ""),
    "one-api's quota": (403, {"error": {"code": "insufficient_user_quota"}}, QuotaExhausted, ""),
    "Gemini's key": (
        400,
        [{"error": {"code": 400, "message": "No.", "details": [{"reason": "API_KEY_INVALID"}]}}],
        NotAuthorized,
        "",
    ),
    "AWS throttling": (
        400,
        {"__type": "com.amazon.coral#ThrottlingException", "message": "Rate exceeded"},
        RateLimited,
        "",
    ),
    "Bedrock's model error": (424, {"message": "The model failed."}, ProviderUnavailable, ""),
    "Groq without capacity": (498, {"error": {"message": "Flex tier."}}, ProviderUnavailable, ""),
    "closed by a proxy": (499, {"error": {"message": "closed"}}, ProviderUnavailable, ""),
    "a wrong field": (
        422,
        {"detail": [{"loc": ["body", "messages"], "msg": "field required"}]},
        BadRequest,
        "body.messages: field required",
    ),
    "a list of errors": (400, {"errors": [{"message": "boom"}]}, BadRequest, "boom"),
    "msg": (400, {"msg": "boom"}, BadRequest, "boom"),
    "errorMessage": (400, {"errorMessage": "boom"}, BadRequest, "boom"),
    "a list of messages": (400, {"error": {"message": ["a", "b"]}}, BadRequest, "a; b"),
    "a web page": (502, PAGE, ProviderUnavailable, "web page '502 Bad Gateway'"),
}  # fmt: skip


@pytest.mark.parametrize(("status", "body", "kind", "text"), STATUSES.values(), ids=STATUSES)
async def test_error_statuses_of_providers(connect, status, body, kind, text):
    """Code, type, reason and wording decide the class. The text is readable."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    content_type = "text/html" if isinstance(body, bytes) else "application/json"
    error = await failure_of(connect, "openai", raw(data, content_type, status))
    assert type(error) is kind
    assert str(error).endswith(text)


async def test_upstream_error_of_a_gateway_is_shown(connect):
    """OpenRouter hides the provider's error in the metadata. A too long request is recognized there."""
    inner = {"error": {"message": "prompt is too long: 203456 tokens > 200000 maximum"}}
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": json.dumps(inner)}}
    found = await failure_of(connect, "openai", raw(json.dumps({"error": error}).encode(), status=400))
    assert is_too_long(found)


RESET = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "4102444800000"}


@pytest.mark.parametrize(
    ("headers", "error", "least"),
    [
        ({"retry-after": "2s"}, {}, 2),
        ({"retry-after": "1m30s"}, {}, 90),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "4102444800"}, {}, 1e9),
        ({}, {"metadata": {"headers": RESET}}, 1e9),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "4102444800"}, {}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "30"}, {}, None),
    ],
)
async def test_wait_of_a_rate_limit(connect, headers, error, least):
    """Waits with units and the end of a daily limit are read. A long wait is not retried."""
    body = json.dumps({"error": {"message": "No.", **error}}).encode()
    found = await failure_of(connect, "openai", raw(body, status=429, **headers))
    assert isinstance(found, RateLimited)
    assert found.retry_after is None if least is None else found.retry_after >= least


async def test_redirect_that_drops_the_body_names_the_url(connect, dialect):
    """A redirect with status 301 turns POST into GET. The error names the new URL, and is not retried."""

    def redirect(request):
        if request.method == "GET":
            return httpx2.Response(200, json={"page": "documentation"})
        return httpx2.Response(301, headers={"location": str(request.url.copy_with(host="other.test"))})

    for follows in (False, True):
        async with httpx2.AsyncClient(
            transport=httpx2.MockTransport(redirect), follow_redirects=follows
        ) as client:
            model = CLIENTS[dialect]("m", base_url=URL, api_key=KEY, http_client=client)
            with pytest.raises(BadRequest, match=r"redirects to http://other\.test") as caught:
                await model.complete(HELLO)
            assert not caught.value.retryable


async def test_damaged_compression_is_an_interrupted_answer(connect, dialect):
    """The text does not say that the server cannot be reached."""
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    reply = lambda _request: httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(b"no gzip"))  # noqa: E731
    model, _ = connect(dialect, reply, base_url=URL, stream=False)
    with pytest.raises(StreamInterrupted, match="decompress"):
        await model.complete(HELLO)
