"""Anthropic messages: tests for this wire format only."""

import pytest

from actgent.llm.model_interface import ChatMessage, ModelRequest, ResponseFormat
from actgent.messages import File, Image, Opaque, Text, Thinking, ToolCall, ToolResult, ToolSpec

HELLO = ModelRequest(messages=(ChatMessage("user", (Text("Hello."),)),))
ASKED = HELLO.messages[0]
DIALECT = "anthropic"
MARK = {"cache_control": {"type": "ephemeral"}}


def message(*content, stop="end_turn", **more):
    return {"status_code": 200, "json": {"content": list(content), "stop_reason": stop, **more}}


def text(content, **more):
    return {"type": "text", "text": content, **more}


async def test_anthropic_request_has_all_blocks_in_order(connect, said):
    """The request has its blocks in API order, with cache marks at the stable ends."""
    model, wire = connect(DIALECT, said(DIALECT))
    messages = (
        ChatMessage(
            "user",
            (
                Text("See"),
                Image(media_type="image/png", data=b"png"),
                Image(media_type="image/png", url="https://x/y"),
                File(media_type="application/pdf", data=b"pdf", name="a.pdf"),
                File(media_type="text/csv", data=b"a;b", name="a.csv"),
            ),
        ),
        ChatMessage(
            "assistant",
            (Text("I add."), ToolCall("add", {"a": 1}, "id-1"), ToolCall("add", "{broken", "id-2")),
        ),
        ChatMessage(
            "tool",
            (
                Text("Go on."),
                ToolResult(call_id="id-1", tool_name="add", content="1"),
                ToolResult(call_id="id-2", tool_name="add", status="error", error="bad"),
            ),
        ),
    )
    specs = (ToolSpec("add", "Add.", {"type": "object"}), ToolSpec("sub", "Subtract.", {"type": "object"}))
    await model.complete(ModelRequest(system="Be kind.", messages=messages, tools=specs))
    assert wire.bodies[0] == {
        "model": "model-1",
        "max_tokens": 8192,
        "system": [text("Be kind.", **MARK)],
        "tools": [
            {"name": "add", "description": "Add.", "input_schema": {"type": "object"}},
            {"name": "sub", "description": "Subtract.", "input_schema": {"type": "object"}, **MARK},
        ],
        "messages": [
            {"role": "user", "content": [
                text("See"),
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"}},
                {"type": "image", "source": {"type": "url", "url": "https://x/y"}},
                {"type": "document", "title": "a.pdf", "source": {"type": "base64", "media_type": "application/pdf", "data": "cGRm"}},
                {"type": "document", "title": "a.csv", "source": {"type": "text", "media_type": "text/plain", "data": "a;b"}},
            ]},
            {"role": "assistant", "content": [
                text("I add."),
                {"type": "tool_use", "id": "id-1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "id-2", "name": "add", "input": {"invalid_json": "{broken"}, **MARK},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "id-1", "content": "1"},
                {"type": "tool_result", "tool_use_id": "id-2", "content": "Error: bad", "is_error": True},
                text("Go on.", **MARK),
            ]},
        ],
    }  # fmt: skip


async def test_last_answer_has_a_cache_mark(connect, said):
    """The last answer also gets a cache mark, because the final instruction changes with each call."""
    model, wire = connect(DIALECT, said(DIALECT))
    history = (
        ASKED,
        ChatMessage("assistant", (Text("Yes?"),)),
        ChatMessage("user", (Text("Add."), Text("Answer in JSON."))),
    )
    await model.complete(ModelRequest(messages=history))
    marked = [
        block["text"]
        for turn in wire.bodies[0]["messages"]
        for block in turn["content"]
        if "cache_control" in block
    ]
    assert marked == ["Yes?", "Answer in JSON."]


async def test_cache_false_sends_no_cache_mark(connect, said):
    model, wire = connect(DIALECT, said(DIALECT), cache=False)
    await model.complete(HELLO)
    assert b"cache_control" not in wire.requests[0].content


async def test_roles_alternate_and_begin_with_the_user(connect, said):
    """Adjacent messages of one role are merged, blank text is removed, and the user comes first."""
    model, wire = connect(DIALECT, said(DIALECT), cache=False)
    messages = (
        ChatMessage("assistant", (Text("Welcome."),)),
        ChatMessage("user", (Text("A"),)),
        ChatMessage("user", (Text(" \n"),)),
        ChatMessage("tool", (ToolResult(call_id="id-1", tool_name="f", content="", native=True),)),
        ChatMessage("assistant", (Thinking("x", "openai"),)),
        ChatMessage("user", (Text("B"),)),
    )
    await model.complete(ModelRequest(messages=messages))
    opening, welcome, asked = wire.bodies[0]["messages"]
    assert (opening["role"], welcome["content"]) == ("user", [text("Welcome.")])
    assert asked == {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "id-1"}, text("A"), text("B")],
    }


async def test_thinking_goes_back_unchanged(connect):
    """Signed and redacted thinking, server tools and citations are sent back unchanged and in order."""
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
        text("Found.", citations=[{"type": "web_search_result_location", "url": "https://x"}]),
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
    ]
    model, wire = connect(DIALECT, message(*blocks, stop="tool_use"), cache=False)
    answer = await model.complete(HELLO)
    assert answer.text == "Found."
    assert answer.parts[:2] == (Thinking("Hm.", DIALECT, blocks[0]), Thinking("", DIALECT, blocks[1]))
    assert answer.tool_calls == (ToolCall("f", {}, provider_id="toolu_1"),)
    await model.complete(ModelRequest(messages=(ASKED, ChatMessage("assistant", answer.parts), ASKED)))
    assert wire.bodies[1]["messages"][1]["content"] == blocks


async def test_stream_assembles_every_kind_of_block(connect, sse):
    """Deltas of known and unknown types assemble to the same blocks as without streaming."""

    def start(index, **block):
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index, **delta):
        return {"type": "content_block_delta", "index": index, "delta": delta}

    events = [
        {
            "type": "message_start",
            "message": {
                "id": "m",
                "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1},
            },
        },
        start(0, type="thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="H"),
        delta(0, type="thinking_delta", thinking="m."),
        delta(0, type="signature_delta", signature="sig"),
        {"type": "ping"},
        start(1, type="compaction", content=None),
        delta(1, type="compaction_delta", content="short"),
        start(2, type="server_tool_use", id="srv_1", name="web_search", input={}),
        delta(2, type="input_json_delta", partial_json='{"query": "q"}'),
        start(3, type="text", text="Fo"),
        delta(3, type="text_delta", text="und."),
        delta(3, type="citations_delta", citation={"url": "https://x"}),
        start(4, type="tool_use", id="toolu_1", name="f", input={}),
        delta(4, type="input_json_delta", partial_json=""),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 9, "input_tokens": None},
        },
        {"type": "message_stop"},
    ]
    model, _ = connect(DIALECT, sse(*events), stream=True)
    answer = await model.complete(HELLO)
    assert answer.parts == (
        Thinking("Hm.", DIALECT, {"type": "thinking", "thinking": "Hm.", "signature": "sig"}),
        Opaque(DIALECT, {"type": "compaction", "content": "short"}),
        Opaque(
            DIALECT, {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}}
        ),
        Text("Found."),
        Opaque(DIALECT, {"type": "actgent.citations", "citations": [{"url": "https://x"}]}),
        ToolCall("f", {}, provider_id="toolu_1"),
    )
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 9)


async def test_a_restarted_stream_replaces_the_first(connect, sse):
    """After a second message_start, only the later events form the answer."""
    begin = {"type": "message_start", "message": {}}
    events = [
        begin,
        {"type": "content_block_start", "index": 0, "content_block": text("void")},
        {"type": "content_block_start", "index": 1, "content_block": text("void")},
        begin,
        {"type": "content_block_start", "index": 0, "content_block": text("valid")},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    model, _ = connect(DIALECT, sse(*events), stream=True)
    assert (await model.complete(HELLO)).text == "valid"


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause"),
        ("something_new", "end"),
    ],
)
async def test_stop_reasons_are_mapped(connect, reason, stop):
    """Each known stop reason maps to one of actgent's. An unknown reason ends the answer."""
    model, _ = connect(DIALECT, message(text("So"), stop=reason))
    assert (await model.complete(HELLO)).stop == stop


async def test_truncated_call_with_complete_input_is_dropped(connect):
    """The server completes truncated JSON itself, so the last call of a truncated answer is dropped."""
    first = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
    last = {"type": "tool_use", "id": "2", "name": "f", "input": {"a": 2}}
    model, _ = connect(DIALECT, message(first, last, stop="max_tokens"))
    assert [call.provider_id for call in (await model.complete(HELLO)).tool_calls] == ["1"]


async def test_input_tokens_are_added_up(connect):
    """Anthropic counts cached tokens separately. Our input tokens include them."""
    usage = {
        "input_tokens": 1,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 300,
        "output_tokens": 5,
    }
    model, _ = connect(DIALECT, message(text("So"), usage=usage))
    read = (await model.complete(HELLO)).usage
    assert (read.input_tokens, read.cached_tokens, read.cache_write_tokens, read.output_tokens) == (
        321,
        20,
        300,
        5,
    )


async def test_anthropic_schema_is_sent_closed_and_without_bounds(connect, said):
    """The schema is sent closed and without the bounds that the API does not accept."""
    model, wire = connect(DIALECT, said(DIALECT))
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}
    await model.complete(ModelRequest(messages=HELLO.messages, response_format=ResponseFormat("r", schema)))
    form = wire.bodies[0]["output_config"]["format"]
    assert form["type"] == "json_schema"
    assert form["schema"]["additionalProperties"] is False
    assert "minimum" not in form["schema"]["properties"]["a"]


async def test_address_may_omit_the_version(connect, said):
    """Addresses with and without the version path lead to the same endpoint."""
    for url in ("http://localhost:1/", "http://localhost:1/v1", "http://localhost:1/v1/"):
        model, wire = connect(DIALECT, said(DIALECT), base_url=url)
        await model.complete(HELLO)
        assert str(wire.requests[0].url) == "http://localhost:1/v1/messages"


async def test_sdk_writes_no_spans(connect, said):
    """Only actgent writes spans, once per call."""
    model, _ = connect(DIALECT, said(DIALECT))
    assert model._sdk.client.open_telemetry["traces"]["enabled"] is False


async def test_a_large_answer_needs_no_stream(connect, said):
    """The SDK's rejection of long answers without streaming does not apply."""
    model, wire = connect(DIALECT, said(DIALECT), max_tokens=64_000)
    assert (await model.complete(HELLO)).text == "Hello."
    assert wire.bodies[0]["max_tokens"] == 64_000
