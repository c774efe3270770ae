"""The real SDKs with the loopback provider: scripted answers and faults arrive as objects and exceptions of the SDKs."""

import threading
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import trio

from actgent.errors import ConfigurationError
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Image, Opaque, Text, Thinking, ToolCall, Usage
from actgent.testing import (
    CutStream,
    EarlyEnd,
    ErrorEvent,
    ErrorStatus,
    Hangup,
    ProviderFailed,
    RawAnswer,
    Silence,
    Slow,
    assert_no_leaks,
    open_provider,
    refused_url,
)

USER = [{"role": "user", "content": "What is 2 + 3?"}]
CALLS = [Text("I shall look it up: ÄÖ🙂."), ToolCall("add", {"a": 2, "b": "drei 🙂"}), ToolCall("now", {})]
USAGE = Usage(input_tokens=100, output_tokens=20, cached_tokens=60, cache_write_tokens=10, reasoning_tokens=5)
STOPS = {
    "end": ("stop", "completed", "end_turn"),
    "length": ("length", "incomplete", "max_tokens"),
    "filter": ("content_filter", "incomplete", "refusal"),
    "refusal": ("stop", "completed", "refusal"),
}


@asynccontextmanager
async def clients(script, *, timeout_seconds=60, **options):
    """Yield a provider and the real client of each SDK connected to it."""
    import anthropic
    import openai

    async with open_provider(script, **options) as provider:
        common = {"max_retries": 0, "timeout": timeout_seconds}
        chat = openai.AsyncOpenAI(base_url=provider.base_url, api_key="sk-test", **common)
        messages = anthropic.AsyncAnthropic(base_url=provider.anthropic_url, api_key="sk-ant-test", **common)
        async with chat, messages:
            yield SimpleNamespace(provider=provider, openai=chat, anthropic=messages)


def chat_of(client, **options):
    return client.chat.completions.create(model="gpt-test", messages=USER, **options)


def response_of(client, **options):
    return client.responses.create(model="gpt-test", input="What is 2 + 3?", **options)


def message_of(client, **options):
    return client.messages.create(model="claude-test", messages=USER, max_tokens=100, **options)


async def until(is_so):
    """Let the other tasks run until a condition is true."""
    with trio.fail_after(60):
        while not is_so():
            await trio.lowlevel.checkpoint()


async def drained(stream):
    """Return all events of a stream."""
    return [event async for event in stream]


# --- answers without faults ---------------------------------------------------------------


async def test_chat_carries_text_calls_and_usage():
    """A chat completion has the text, both calls with JSON arguments and the cached tokens."""
    async with clients([ModelResponse(parts=tuple(CALLS), usage=USAGE)]) as peer:
        completion = await chat_of(peer.openai)
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == CALLS[0].text
    assert [call.function.arguments for call in choice.message.tool_calls] == ['{"a":2,"b":"drei 🙂"}', "{}"]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert completion.usage.total_tokens == 120
    assert completion.usage.prompt_tokens_details.cached_tokens == 60
    assert completion.usage.completion_tokens_details.reasoning_tokens == 5
    assert completion.model == "gpt-test"


@pytest.mark.parametrize("is_usage_asked", [True, False])
async def test_chat_stream_adds_up(is_usage_asked):
    """The joined deltas of a streamed chat equal the scripted answer. Usage is sent only if the request includes it."""
    options = {"stream_options": {"include_usage": True}} if is_usage_asked else {}
    async with clients([ModelResponse(parts=tuple(CALLS), usage=USAGE)], chunk=3) as peer:
        chunks = await drained(await chat_of(peer.openai, stream=True, **options))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == CALLS[0].text
    pieces = [call for delta in deltas for call in delta.tool_calls or ()]
    for index, name, arguments in ((0, "add", '{"a":2,"b":"drei 🙂"}'), (1, "now", "{}")):
        own = [piece for piece in pieces if piece.index == index]
        assert own[0].function.name == name
        assert "".join(piece.function.arguments for piece in own) == arguments
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert [chunk.usage.prompt_tokens for chunk in chunks if chunk.usage] == ([100] if is_usage_asked else [])


async def test_responses_carry_thinking_text_and_calls():
    """A response has a reasoning item, a message and a call, in the order of the script."""
    texts = [Thinking("Let me see.", "openai-responses"), *CALLS]
    async with clients([ModelResponse(parts=tuple(texts), usage=USAGE)]) as peer:
        response = await response_of(peer.openai, include=["reasoning.encrypted_content"])
    assert [item.type for item in response.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert response.output[0].summary[0].text == "Let me see."
    assert response.output[0].encrypted_content
    assert response.output_text == CALLS[0].text
    assert response.output[2].arguments == '{"a":2,"b":"drei 🙂"}'
    assert response.usage.input_tokens_details.cached_tokens == 60


async def test_responses_stream_is_taken_whole_by_the_sdk():
    """The accumulator of the SDK accepts every event and ends with the final response."""
    texts = [Thinking("Let me see.", "openai-responses"), *CALLS]
    async with (
        clients([texts], chunk=4) as peer,
        peer.openai.responses.stream(model="gpt-test", input="hi") as stream,
    ):
        events = await drained(stream)
        final = await stream.get_final_response()
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events)))
    assert final.output_text == CALLS[0].text
    assert final.output[2].name == "add"


async def test_messages_carry_thinking_text_and_calls():
    """An Anthropic message has signed thinking, text and calls; its input tokens leave out the cached ones."""
    said = (Thinking("Let me see.", "anthropic"), *CALLS)
    async with clients([ModelResponse(parts=said, usage=USAGE)]) as peer:
        message = await message_of(peer.anthropic)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[0].signature
    assert message.content[2].input == {"a": 2, "b": "drei 🙂"}
    assert message.stop_reason == "tool_use"
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (
        30,
        60,
        10,
    )


async def test_messages_stream_is_taken_whole_by_the_sdk():
    """The accumulator of the SDK returns the same message as a request without a stream, including the signature."""
    texts = [Thinking("Let me see.", "anthropic"), *CALLS]
    async with (
        clients([texts], chunk=2) as peer,
        peer.anthropic.messages.stream(model="c", messages=USER, max_tokens=9) as stream,
    ):
        message = await stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[0].thinking == "Let me see."
    assert message.content[0].signature
    assert message.content[1].text == CALLS[0].text
    assert [block.input for block in message.content[2:]] == [{"a": 2, "b": "drei 🙂"}, {}]


@pytest.mark.parametrize("stop", STOPS)
async def test_stop_reasons_have_the_format_of_each_provider(stop):
    """A truncated, filtered or refused answer has the stop reason of the provider, streamed or not."""
    async with clients(lambda _: ModelResponse(parts=(Text("No."),), stop=stop)) as peer:
        chat = await chat_of(peer.openai)
        chunks = await drained(await chat_of(peer.openai, stream=True))
        response = await response_of(peer.openai)
        message = await message_of(peer.anthropic)
    assert (chat.choices[0].finish_reason, response.status, message.stop_reason) == STOPS[stop]
    assert chunks[-1].choices[0].finish_reason == STOPS[stop][0]
    assert (chat.choices[0].message.refusal == "No.") == (stop == "refusal")
    assert response.output[0].content[0].type == ("refusal" if stop == "refusal" else "output_text")


async def test_provider_thinking_and_opaque_blocks_are_unchanged():
    """Redacted thinking and the call of a server tool are sent unchanged from the script."""
    redacted = {"type": "redacted_thinking", "data": "c2VhbGVk"}
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    texts = [Thinking("", "anthropic", redacted), Opaque("anthropic", search), Text("Found.")]
    async with clients(lambda _: ModelResponse(parts=tuple(texts), stop="pause")) as peer:
        message = await message_of(peer.anthropic)
        async with peer.anthropic.messages.stream(model="c", messages=USER, max_tokens=9) as stream:
            streamed = await stream.get_final_message()
    for one in (message, streamed):
        assert one.content[0].data == "c2VhbGVk"
        assert one.content[1].input == {"query": "x"}
        assert one.stop_reason == "pause_turn"


async def test_invalid_json_arguments_are_sent_unchanged():
    """A call with broken arguments reaches the client broken, as models do write them."""
    async with clients([ToolCall("add", '{"a": 1,')]) as peer:
        completion = await chat_of(peer.openai)
    assert completion.choices[0].message.tool_calls[0].function.arguments == '{"a": 1,'


# --- scripts -----------------------------------------------------------------------------


async def test_script_function_reads_requests_of_every_api():
    """A function of the script gets the same neutral conversation from all three wire formats."""
    seen = []

    async def script(request):
        await trio.lowlevel.checkpoint()
        seen.append((request.dialect.name, request.text, request.chat.system))
        return f"You said {request.text}"

    async with clients(script) as peer:
        system = {"role": "system", "content": "Be brief."}
        await peer.openai.chat.completions.create(model="m", messages=[system, *USER])
        await response_of(peer.openai, instructions="Be brief.")
        await message_of(peer.anthropic, system="Be brief.")
    wires = ["openai", "openai-responses", "anthropic"]
    assert seen == [(wire, "What is 2 + 3?", "Be brief.") for wire in wires]


async def test_script_list_may_contain_functions_and_faults():
    """Each entry of a list is an answer, a fault or a function. Each request uses one entry, in order."""
    import openai

    async with clients(["one", lambda request: f"{request.number}", ErrorStatus(500), "four"]) as peer:
        texts = [(await chat_of(peer.openai)).choices[0].message.content for _ in range(2)]
        with pytest.raises(openai.InternalServerError):
            await chat_of(peer.openai)
        texts.append((await chat_of(peer.openai)).choices[0].message.content)
    assert texts == ["one", "2", "four"]


async def test_tool_loop_over_http():
    """A function that gets results answers with them. `tool_results` names the tool."""

    def script(request):
        if request.tool_results:
            result = request.tool_results[0]
            return f"{result.tool_name} says {result.content}"
        return ToolCall("add", {"a": 2, "b": 3}, id="call_7")

    async with clients(script) as peer:
        first = (await chat_of(peer.openai)).choices[0].message
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "5"}
        history = [*USER, first.model_dump(exclude_none=True, exclude={"annotations"}), result]
        last = await peer.openai.chat.completions.create(model="m", messages=history)
    assert first.tool_calls[0].id == "call_7"
    assert last.choices[0].message.content == "add says 5"


async def test_stored_requests_are_bounded():
    """`requests` keeps the last requests with headers, bytes and JSON. Their repr does not contain the key."""
    async with clients(["a", "b", "c"], keep=2) as peer:
        for _ in range(3):
            await chat_of(peer.openai)
        kept = peer.provider.requests
        assert peer.provider.statistics().requests == 3
    assert [request.number for request in kept] == [2, 3]
    assert kept[-1].headers["authorization"] == "Bearer sk-test"
    assert kept[-1].json["messages"] == USER
    assert b'"gpt-test"' in kept[-1].body
    assert "sk-test" not in repr(kept[-1])


async def test_wrong_key_is_rejected():
    """With `api_key`, a request with any other key raises the 401 error of both SDKs."""
    import anthropic
    import openai

    async with clients(["never"], api_key="right") as peer:
        with pytest.raises(openai.AuthenticationError):
            await chat_of(peer.openai)
        with pytest.raises(anthropic.AuthenticationError):
            await message_of(peer.anthropic)


async def refused(script, requests=1):
    """Send requests until the provider rejects one, and exit its block without an exception."""
    import openai

    async with clients(script) as peer:
        for _ in range(requests - 1):
            await chat_of(peer.openai)
        with pytest.raises(openai.BadRequestError):
            await chat_of(peer.openai)


async def test_a_script_that_ends_too_early_fails_the_block():
    """A request after the end of the list is a 400 for the client. The block raises an error at its exit."""
    with pytest.raises(ProviderFailed, match="request 2"):
        await refused(["one"], requests=2)


async def test_a_function_that_raises_fails_the_block():
    """The exception of a script function is the cause of the block's error."""

    def script(request):
        raise LookupError("no idea")

    with pytest.raises(ProviderFailed) as raised:
        await refused(script)
    assert isinstance(raised.value.__cause__, LookupError)


async def test_block_exception_is_raised_unchanged():
    """An exception of the block is not wrapped in an exception group."""
    with pytest.raises(KeyError, match="mine"):
        async with open_provider([]):
            raise KeyError("mine")


@pytest.mark.parametrize("script", ["text", [Image(media_type="image/png", data=b"x")], [7]])
async def test_invalid_scripts_are_named(script):
    """A plain text as the script, or a part that a model cannot send, is an error of the developer."""
    with pytest.raises(ConfigurationError):
        await refused(script)


async def test_an_unknown_address_is_404():
    """Every path except those of the three wire formats is a 404."""
    import openai

    async with clients([]) as peer:
        with pytest.raises(openai.NotFoundError):
            await peer.openai.models.list()


async def test_an_invalid_request_is_400_and_no_answer_is_used_up():
    """A call without its result is rejected in each provider's error format. The next request gets the next answer."""
    import anthropic
    import openai

    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    asked = [*USER, {"role": "assistant", "tool_calls": [call]}, *USER]
    block = {"type": "tool_use", "id": "call_1", "name": "add", "input": {}}
    asked_there = [*USER, {"role": "assistant", "content": [block]}, *USER]
    item = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"}
    async with clients(["fine"]) as peer:
        with pytest.raises(openai.BadRequestError, match="call_1"):
            await peer.openai.chat.completions.create(model="m", messages=asked)
        with pytest.raises(openai.BadRequestError, match="call_1"):
            await peer.openai.responses.create(model="m", input=[item])
        with pytest.raises(anthropic.BadRequestError, match="call_1") as raised:
            await peer.anthropic.messages.create(model="m", messages=asked_there, max_tokens=9)
        assert (await chat_of(peer.openai)).choices[0].message.content == "fine"
    assert raised.value.body["error"]["type"] == "invalid_request_error"


async def test_unreadable_request_is_a_client_error():
    """A part that passes the checks but cannot be parsed is a 400, not a failure of the script."""
    import openai

    picture = {"type": "image_url", "image_url": {"url": 7}}
    async with clients(lambda request: request.text) as peer:
        with pytest.raises(openai.BadRequestError, match="cannot be read"):
            await peer.openai.chat.completions.create(
                model="m", messages=[{"role": "user", "content": [picture]}]
            )


# --- faults ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "openai_name", "anthropic_name"),
    [
        (400, "BadRequestError", "BadRequestError"),
        (401, "AuthenticationError", "AuthenticationError"),
        (403, "PermissionDeniedError", "PermissionDeniedError"),
        (404, "NotFoundError", "NotFoundError"),
        (408, "APIStatusError", "RequestTimeoutError"),
        (409, "ConflictError", "ConflictError"),
        (413, "APIStatusError", "ContentTooLargeError"),
        (422, "UnprocessableEntityError", "UnprocessableEntityError"),
        (429, "RateLimitError", "RateLimitError"),
        (500, "InternalServerError", "InternalServerError"),
        (502, "InternalServerError", "InternalServerError"),
        (503, "InternalServerError", "ServiceUnavailableError"),
        (529, "InternalServerError", "OverloadedError"),
    ],
)
async def test_each_status_is_the_sdks_own_exception(status, openai_name, anthropic_name):
    """The SDKs raise their class for every status, with a request id and a body in the provider's format."""
    import anthropic
    import openai

    async with clients(lambda _: ErrorStatus(status)) as peer:
        with pytest.raises(openai.APIStatusError) as first:
            await chat_of(peer.openai)
        with pytest.raises(anthropic.APIStatusError) as second:
            await message_of(peer.anthropic)
    assert (type(first.value).__name__, type(second.value).__name__) == (openai_name, anthropic_name)
    assert first.value.status_code == second.value.status_code == status
    assert first.value.request_id == "req_00000001"
    assert set(first.value.body) == {"message", "type", "param", "code"}
    assert second.value.body["type"] == "error"


async def test_exhausted_quota_is_distinguished_from_a_rate_limit():
    """The error has a different type, and for Anthropic a different status and text."""
    import anthropic
    import openai

    fault = ErrorStatus(429, code="insufficient_quota")
    async with clients([fault, fault]) as peer:
        with pytest.raises(openai.RateLimitError) as first:
            await chat_of(peer.openai)
        with pytest.raises(anthropic.BadRequestError, match="credit balance"):
            await message_of(peer.anthropic)
    assert (first.value.type, first.value.code) == ("insufficient_quota", "insufficient_quota")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, "7"),
        (0.25, "0.25"),
        (4_233_600, "4233600"),
        (datetime(2026, 1, 2, 4, tzinfo=UTC), "Fri, 02 Jan 2026 04:00:00 GMT"),
    ],
)
async def test_retry_after_in_seconds_and_as_a_date(value, expected):
    """Retry-After is sent in both formats of RFC 9110."""
    import openai

    async with clients([ErrorStatus(429, retry_after=value)]) as peer:
        with pytest.raises(openai.RateLimitError) as raised:
            await chat_of(peer.openai)
    assert raised.value.response.headers["retry-after"] == expected


@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_cut_stream_breaks_in_both_sdks(is_reset):
    """The connection breaks after the sent events, and the SDKs raise an error."""
    import httpx2
    import openai

    got = []
    fault = CutStream("A long enough answer", events=3, is_reset=is_reset)
    async with clients(lambda _: fault, chunk=4) as peer:
        stream = await chat_of(peer.openai, stream=True)
        with pytest.raises(openai.APIConnectionError):
            got.extend([chunk async for chunk in stream])
        messages = await message_of(peer.anthropic, stream=True)
        with pytest.raises(httpx2.TransportError):
            got.extend([event async for event in messages])


async def test_truncated_body_is_an_error():
    """A body that is shorter than its Content-Length is a connection error."""
    import openai

    async with clients([CutStream("text")]) as peer:
        with pytest.raises(openai.APIConnectionError):
            await chat_of(peer.openai)


async def test_an_early_end_is_silent_success_in_both_sdks():
    """The SDKs raise no exception, and no event shows the early end. The fault exists for this case."""
    async with clients(lambda _: EarlyEnd("A long enough answer"), chunk=4) as peer:
        chunks = await drained(await chat_of(peer.openai, stream=True))
        events = await drained(await response_of(peer.openai, stream=True))
        messages = await drained(await message_of(peer.anthropic, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "A long enough answer"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)
    assert events[-1].type == "response.output_item.done"
    assert messages[-1].type == "message_delta"


async def test_error_event_inside_a_200_stream_raises():
    """The SDKs raise in the middle of the stream. The event has the format of the provider."""
    import anthropic
    import openai

    fault = ErrorEvent("A long enough answer", events=2, code="overloaded_error", message="Too much")
    async with clients(lambda _: fault, chunk=4) as peer:
        with pytest.raises(openai.APIError, match="Too much"):
            await drained(await chat_of(peer.openai, stream=True))
        with pytest.raises(openai.APIError, match="Too much"):
            await drained(await response_of(peer.openai, stream=True))
        with pytest.raises(anthropic.APIStatusError, match="Too much") as raised:
            await drained(await message_of(peer.anthropic, stream=True))
    assert raised.value.status_code == 200


async def test_slow_bytes_torn_apart_still_add_up():
    """Portions of three bytes, which split events and characters, result in the same text."""
    text = "ÄÖÜ🙂 and more"
    async with clients([Slow(text, gap=0, octets=3)]) as peer:
        chunks = await drained(await chat_of(peer.openai, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


async def test_a_delay_and_a_gap_take_their_time(autojump_clock):
    """An answer with a delay of 5 s and gaps of 2 s takes 5 s plus 2 s for each event."""
    async with open_provider([Slow("aabbcc", delay=5, gap=2)], chunk=2) as provider:
        stream = await trio.open_tcp_stream("127.0.0.1", provider.port)
        async with aclosing(stream):
            start = trio.current_time()
            await stream.send_all(
                _request(b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}')
            )
            received = b""
            while b"[DONE]" not in received:
                received += await stream.receive_some()
    events = received.count(b"data: ")
    assert trio.current_time() - start == pytest.approx(5 + 2 * events)


def _request(body: bytes) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("events", [0, 2])
async def test_silence_ends_by_the_clients_timeout(events):
    """The provider sends nothing before the status, or after some events. The timeout of the client ends the request."""
    import openai

    async with clients([Silence("text", events=events)], timeout_seconds=0.2) as peer:
        with pytest.raises(openai.APITimeoutError):
            await drained(await chat_of(peer.openai, stream=True))


async def test_status_200_without_an_answer_is_returned_by_the_sdk():
    """OpenAI's SDK returns the page of a proxy as a str, and a wrong JSON object as a completion without choices."""
    page = RawAnswer(b"<html>login</html>")
    wrong = RawAnswer(b'{"object":"chat.completion"}', content_type="application/json")
    async with clients([page, wrong]) as peer:
        assert await chat_of(peer.openai) == "<html>login</html>"
        assert (await chat_of(peer.openai)).choices is None


async def test_hangup_and_refused_connection_are_errors():
    """A closed connection without an answer and a port without a server are connection errors."""
    import openai

    async with clients([Hangup()]) as peer:
        with pytest.raises(openai.APIConnectionError):
            await chat_of(peer.openai)
        with refused_url() as url, pytest.raises(openai.APIConnectionError):
            await chat_of(peer.openai.with_options(base_url=url))


# --- clean-up and other requests ----------------------------------------------------------


async def test_provider_exit_closes_open_streams():
    """The exit of the block closes silent, slow and kept-alive connections, and leaves no task or socket."""
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}'
    async with assert_no_leaks():
        answers = {1: Silence("x", events=1), 2: Slow("x" * 100, gap=60), 3: "whole"}
        async with open_provider(lambda request: answers[request.number]) as provider:
            streams = [await trio.open_tcp_stream("127.0.0.1", provider.port) for _ in range(3)]
            for stream in streams:
                await stream.send_all(_request(body))
                assert await stream.receive_some()
            assert provider.statistics().connections == 3
            await until(lambda: provider.statistics().running == 2)
        for stream in streams:
            await stream.aclose()


async def test_client_disconnect_is_noticed_immediately():
    """A closed connection ends a silent answer without waiting for the block."""
    async with open_provider([Silence()]) as provider:
        stream = await trio.open_tcp_stream("127.0.0.1", provider.port)
        await stream.send_all(_request(b'{"model":"m","messages":[{"role":"user","content":"x"}]}'))
        await until(lambda: provider.statistics().running == 1)
        await stream.aclose()
        await until(lambda: provider.statistics().connections == 0)
        assert provider.statistics().running == 0


async def test_non_http_request_does_not_affect_others():
    """Invalid bytes on one connection close that connection. The next connection is served."""
    async with clients(["fine"]) as peer:
        stream = await trio.open_tcp_stream("127.0.0.1", peer.provider.port)
        async with aclosing(stream):
            await stream.send_all(b"\x00\x01 garbage\r\n\r\n")
            assert await stream.receive_some() == b""
        assert (await chat_of(peer.openai)).choices[0].message.content == "fine"


@pytest.mark.parametrize("line", [b"HEAD / HTTP/1.1", b"GET /v1/models HTTP/1.1", b"CONNECT x:1 HTTP/1.1"])
async def test_other_http_methods_are_not_found(line):
    """The provider answers any valid HTTP request with an error status, and continues."""
    async with clients(["fine"]) as peer:
        stream = await trio.open_tcp_stream("127.0.0.1", peer.provider.port)
        async with aclosing(stream):
            await stream.send_all(line + b"\r\nhost: x\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 404")
        assert (await chat_of(peer.openai)).choices[0].message.content == "fine"


async def test_too_large_body_is_rejected():
    """The provider does not read more than 32 MiB of a body into memory."""
    async with open_provider([]) as provider:
        stream = await trio.open_tcp_stream("127.0.0.1", provider.port)
        async with aclosing(stream):
            with suppress(trio.BrokenResourceError):
                await stream.send_all(_request(b" " * (33 * 1024 * 1024)))
        await until(lambda: provider.statistics().connections == 0)
        assert provider.statistics().requests == 0


@pytest.mark.parametrize("slow", [{"gap": 0}, {"octets": 5}, {"delay": 0.001}])
async def test_faults_wrap_in_any_order(slow):
    """Faults combine in any nesting: a slow stream with an early end ends early, and a body can be truncated in its middle."""
    import openai

    inside, outside = EarlyEnd(Slow("text", **slow)), Slow(EarlyEnd("text"), **slow)
    cut = CutStream(Slow("text", **slow), events=2)
    async with clients([inside, outside, cut, cut]) as peer:
        for _ in range(2):
            chunks = await drained(await chat_of(peer.openai, stream=True))
            assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None]
        with pytest.raises(openai.APIConnectionError):
            await drained(await chat_of(peer.openai, stream=True))
        with pytest.raises(openai.APIConnectionError):
            await chat_of(peer.openai)


async def test_no_thread_is_used():
    """The provider runs in trio without threads."""
    before = threading.active_count()
    async with clients(["x"]) as peer:
        await chat_of(peer.openai)
        assert threading.active_count() == before
