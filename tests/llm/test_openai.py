"""OpenAI chat completions: tests for this wire format only."""

import pytest

from actgent.errors import ModelError, RateLimited, StreamInterrupted, UnsupportedPart
from actgent.llm.model_interface import ChatMessage, ModelRequest, ResponseFormat
from actgent.messages import File, Image, Opaque, Text, Thinking, ToolCall, ToolResult

HELLO = ModelRequest(messages=(ChatMessage("user", (Text("Hello."),)),))
CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


def completion(message, finish="stop", **more):
    return {
        "status_code": 200,
        "json": {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **more},
    }


def stream_of(sse, *deltas, finish="stop"):
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return sse(*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})


async def test_openai_request_has_all_parts(connect, said):
    """System prompt, parts, calls and results are in the positions that the API requires."""
    model, wire = connect("openai", said("openai"), model="gpt-5.2")
    messages = (
        ChatMessage(
            "user",
            (
                Text("See"),
                Image(media_type="image/png", data=b"png"),
                Image(media_type="image/png", url="https://x/y"),
            ),
        ),
        ChatMessage(
            "assistant",
            (Text("I add."), ToolCall("add", {"a": 1}, "id-1"), ToolCall("add", "{broken", "id-2")),
        ),
        ChatMessage(
            "tool",
            (
                ToolResult(call_id="id-1", tool_name="add", content="1"),
                ToolResult(call_id="id-2", tool_name="add", status="error", error="bad"),
                Text("Go on."),
            ),
        ),
        ChatMessage(
            "user",
            (
                File(media_type="application/pdf", data=b"pdf", name="a.pdf"),
                File(media_type="audio/wav", data=b"wav"),
            ),
        ),
    )
    await model.complete(ModelRequest(system="Be kind.", messages=messages, max_tokens=5))
    body = wire.bodies[0]
    assert body["max_completion_tokens"] == 5
    assert body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
                {"type": "image_url", "image_url": {"url": "https://x/y"}},
            ],
        },
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [
                {"id": "id-1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
                {"id": "id-2", "type": "function", "function": {"name": "add", "arguments": "{broken"}},
            ],
        },
        {"role": "tool", "tool_call_id": "id-1", "content": "1"},
        {"role": "tool", "tool_call_id": "id-2", "content": "Error: bad"},
        {"role": "user", "content": "Go on."},
        {
            "role": "user",
            "content": [
                {
                    "type": "file",
                    "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,cGRm"},
                },
                {"type": "input_audio", "input_audio": {"data": "d2F2", "format": "wav"}},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("model", "url", "field"),
    [
        ("gpt-4o", None, "max_completion_tokens"),
        ("o3", "http://localhost/v1", "max_completion_tokens"),
        ("openai/gpt-5.2", "https://openrouter.ai/api/v1", "max_completion_tokens"),
        ("gpt-4o", "http://localhost/v1", "max_tokens"),
        ("llama3", "http://localhost/v1", "max_tokens"),
        ("gpt-4o", "https://mine.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("gpt-4o", "https://notopenai.com/v1", "max_tokens"),
    ],
)
async def test_token_limit_field_depends_on_the_server(connect, said, model, url, field):
    """OpenAI and its reasoning models get the new field, compatible servers the old one."""
    client, wire = connect("openai", said("openai"), model=model, base_url=url, max_tokens=7)
    await client.complete(HELLO)
    assert wire.bodies[0][field] == 7


@pytest.mark.parametrize(
    ("schema", "strict"), [(CLOSED, True), ({"type": "object"}, False), ({**CLOSED, "required": []}, False)]
)
async def test_strict_is_set_for_enforceable_schemas(connect, said, schema, strict):
    """`strict` is set for a schema that OpenAI can enforce."""
    model, wire = connect("openai", said("openai"))
    await model.complete(ModelRequest(messages=HELLO.messages, response_format=ResponseFormat("a.b", schema)))
    form = wire.bodies[0]["response_format"]
    assert form["type"] == "json_schema"
    assert (form["json_schema"]["schema"], form["json_schema"]["strict"]) == (schema, strict)
    assert "." not in form["json_schema"]["name"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_sent_back_unchanged(connect, sse, field):
    """Reasoning is kept next to the text, streamed or not, and returned in the server's own field."""
    reply = stream_of(sse, {field: "Let "}, {field: "me see."}, {"content": "42"})
    model, wire = connect("openai", reply, completion({"content": "42", field: "Let me see."}), stream=True)
    for _ in range(2):
        answer = await model.complete(HELLO)
        assert answer.text == "42"
        assert answer.parts[0] == Thinking("Let me see.", "openai", {field: "Let me see."})
    await model.complete(
        ModelRequest(messages=(*HELLO.messages, ChatMessage("assistant", answer.parts), *HELLO.messages))
    )
    assert wire.bodies[-1]["messages"][1] == {"role": "assistant", "content": "42", field: "Let me see."}


async def test_reasoning_pieces_are_joined(connect, sse):
    """Numbered pieces of a block are joined before they are sent back."""
    piece = {"type": "reasoning.text", "index": 0, "format": "f"}
    reply = stream_of(
        sse,
        {"reasoning": "a", "reasoning_details": [{**piece, "text": "a"}]},
        {"reasoning": "b", "reasoning_details": [{**piece, "text": "b", "signature": "s"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "x"}]},
        {"content": "42"},
    )
    model, _ = connect("openai", reply, stream=True)
    thinking = (await model.complete(HELLO)).parts[0]
    assert thinking.text == "ab"
    assert thinking.data["reasoning_details"] == [
        {**piece, "text": "ab", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
    ]


async def test_streamed_calls_with_wrong_indexes_are_separated(connect, sse):
    """Calls that all have index 0, no index or repeated names are separated by id."""

    def call(call_id, arguments, **more):
        return {"tool_calls": [{"id": call_id, "function": {"name": "f", "arguments": arguments}, **more}]}

    reply = stream_of(
        sse, call("a", "{}", index=0), call("b", '{"x"', index=0), call("b", ": 1}", index=0), finish="stop"
    )
    model, _ = connect("openai", reply, stream=True)
    answer = await model.complete(HELLO)
    assert answer.stop == "tool_calls"
    assert answer.tool_calls == (ToolCall("f", {}, provider_id="a"), ToolCall("f", {"x": 1}, provider_id="b"))


F, G = ToolCall("f", {"x": 1}), ToolCall("g", {"y": 2})


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        # Complete calls with index 0 and no id, as some gateways send them.
        (
            [
                {"index": 0, "name": "f", "arguments": '{"x": 1}'},
                {"index": 0, "name": "g", "arguments": '{"y": 2}'},
            ],
            (F, G),
        ),
        ([{"name": "f", "arguments": '{"x": 1}'}, {"id": "", "name": "g", "arguments": '{"y": 2}'}], (F, G)),
        # Only the first piece has an index or an id.
        ([{"index": 0, "name": "f", "arguments": ""}, {"arguments": '{"x"'}, {"arguments": ": 1}"}], (F,)),
        ([{"id": "", "name": "f", "arguments": '{"x"'}, {"arguments": ": 1}"}], (F,)),
        # Each piece has the name.
        (
            [
                {"index": 0, "name": "f", "arguments": '{"x"'},
                {"index": 0, "name": "f", "arguments": ": 1}"},
                {"index": 0, "name": "f", "arguments": ""},
            ],
            (F,),
        ),
        # Pieces of two calls alternate.
        (
            [
                {"index": 0, "name": "f", "arguments": '{"x"'},
                {"index": 1, "name": "g", "arguments": '{"y"'},
                {"index": 0, "arguments": ": 1}"},
                {"index": 1, "arguments": ": 2}"},
            ],
            (F, G),
        ),
    ],
)
async def test_streamed_calls_without_ids_are_separated(connect, sse, pieces, calls):
    """The index or complete arguments show where a call ends."""

    def delta(index=None, id=None, **function):  # noqa: A002 - the wire's word
        raw = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
        return {"tool_calls": [{**raw, "type": "function", "function": function}]}

    model, _ = connect("openai", stream_of(sse, *(delta(**piece) for piece in pieces)), stream=True)
    assert (await model.complete(HELLO)).tool_calls == calls


async def test_deltas_without_index_are_separated_by_id(connect, sse):
    """Alternating deltas of two calls without an index are separated by id."""
    pieces = [("a", "f", '{"x"'), ("b", "g", '{"y"'), ("a", None, ": 1}"), ("b", None, ": 2}")]
    deltas = [
        {"tool_calls": [{"id": call_id, "function": {"name": name, "arguments": arguments}}]}
        for call_id, name, arguments in pieces
    ]
    model, _ = connect("openai", stream_of(sse, *deltas), stream=True)
    read = (await model.complete(HELLO)).tool_calls
    assert [(call.provider_id, call.name, call.arguments) for call in read] == [
        ("a", "f", {"x": 1}),
        ("b", "g", {"y": 2}),
    ]


@pytest.mark.parametrize(
    "finish", ["error", "abort", "insufficient_system_resource", "MALFORMED_FUNCTION_CALL"]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_aborted_answer_raises_stream_interrupted(connect, sse, finish, stream):
    """A finish reason for an aborted answer raises StreamInterrupted, without the partial text."""
    reply = stream_of(sse, {"content": "The first"}, finish=finish)
    model, _ = connect(
        "openai", reply if stream else completion({"content": "The first"}, finish), stream=stream
    )
    with pytest.raises(StreamInterrupted, match=finish):
        await model.complete(HELLO)


async def test_safety_stop_of_gemini_is_a_filter(connect):
    """Gemini's finish reason SAFETY becomes the stop "filter"."""
    model, _ = connect("openai", completion({"content": None}, "SAFETY"))
    assert (await model.complete(HELLO)).stop == "filter"


async def test_calls_without_id_and_function_call_are_read(connect, sse):
    """A missing id is None. The `function_call` of old servers is a call."""
    model, _ = connect("openai", completion({"tool_calls": [{"function": {"name": "f", "arguments": None}}]}))
    assert (await model.complete(HELLO)).tool_calls == (ToolCall("f", {}),)
    legacy = {"function_call": {"name": "f", "arguments": '{"a": 1}'}}
    model, _ = connect("openai", completion(legacy, finish="function_call"))
    answer = await model.complete(HELLO)
    assert (answer.tool_calls, answer.stop) == ((ToolCall("f", {"a": 1}),), "tool_calls")
    pieces = [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a"'}},
        {"function_call": {"arguments": ": 1}"}},
    ]
    model, _ = connect("openai", stream_of(sse, *pieces, finish="function_call"), stream=True)
    assert (await model.complete(HELLO)).tool_calls == answer.tool_calls


async def test_refusal_and_filter_are_answers(connect, sse):
    """A refusal has its text and stop, also streamed. A filtered choice may have no message."""
    model, _ = connect("openai", completion({"content": None, "refusal": "No."}))
    answer = await model.complete(HELLO)
    assert (answer.text, answer.stop) == ("No.", "refusal")
    model, _ = connect("openai", stream_of(sse, {"refusal": "N"}, {"refusal": "o."}), stream=True)
    assert await model.complete(HELLO) == answer
    model, _ = connect(
        "openai", {"status_code": 200, "json": {"choices": [{"finish_reason": "content_filter"}]}}
    )
    assert (await model.complete(HELLO)).stop == "filter"


async def test_error_inside_a_choice_is_raised(connect, sse):
    """A gateway's error inside a choice is raised; it is not an empty answer."""
    choice = {
        "index": 0,
        "delta": {"content": ""},
        "finish_reason": "error",
        "error": {"code": 429, "message": "later"},
    }
    model, _ = connect("openai", sse({"choices": [choice]}), stream=True)
    with pytest.raises(RateLimited, match="later"):
        await model.complete(HELLO)


async def test_audio_is_sent_back_by_its_id(connect):
    """Spoken answers are kept as opaque blocks and sent back as the id that the API expects."""
    model, wire = connect(
        "openai", completion({"content": None, "audio": {"id": "audio_1", "data": "x", "transcript": "Hi"}})
    )
    answer = await model.complete(HELLO)
    assert answer.parts == (Opaque("openai", {"audio": {"id": "audio_1", "data": "x", "transcript": "Hi"}}),)
    await model.complete(
        ModelRequest(messages=(*HELLO.messages, ChatMessage("assistant", answer.parts), *HELLO.messages))
    )
    assert wire.bodies[1]["messages"][1] == {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}


async def test_usage_of_compatible_servers_is_read(connect):
    """DeepSeek's cache hits and OpenRouter's own price are read."""
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 8, "cost": 0.25}
    model, _ = connect("openai", completion({"content": "x"}, usage=usage))
    read = (await model.complete(HELLO)).usage
    assert (read.cached_tokens, read.cost) == (8, 0.25)


async def test_answers_without_usage_have_no_known_price(connect):
    """The cost is None, not 0."""
    model, _ = connect("openai", completion({"content": "x"}), model="gpt-4o")
    usage = (await model.complete(HELLO)).usage
    assert (usage.input_tokens, usage.cost) == (0, None)


async def test_file_urls_are_rejected(connect, said):
    """The chat completions API accepts no file URL."""
    model, _ = connect("openai", said("openai"))
    file = File(media_type="application/pdf", url="https://example.com/a.pdf", name="a.pdf")
    with pytest.raises(UnsupportedPart, match=r"a\.pdf.*data="):
        await model.complete(ModelRequest(messages=(ChatMessage("user", (file,)),)))
    assert issubclass(UnsupportedPart, ModelError)


async def test_error_in_a_list_is_read(connect):
    """An error body inside a list is read, as Gemini sends it."""
    error = {"error": {"code": 429, "message": "No more today.", "status": "RESOURCE_EXHAUSTED"}}
    model, _ = connect("openai", {"status_code": 429, "json": [error]})
    with pytest.raises(RateLimited, match="No more today") as caught:
        await model.complete(HELLO)
    assert "RESOURCE" not in str(caught.value)
