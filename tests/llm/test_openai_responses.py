"""OpenAI responses: tests for this wire format only."""

import pytest

from actgent.errors import ModelError, ProviderUnavailable, RateLimited
from actgent.llm.model_interface import ChatMessage, ModelRequest, ResponseFormat
from actgent.messages import File, Image, Opaque, Text, Thinking, ToolCall, ToolResult, ToolSpec

HELLO = ModelRequest(messages=(ChatMessage("user", (Text("Hello."),)),))
DIALECT = "openai-responses"


def response(*output, status="completed", **more):
    return {"status_code": 200, "json": {"id": "resp_1", "status": status, "output": list(output), **more}}


def spoken(text, **more):
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
        **more,
    }


async def test_responses_request_has_all_items(connect, said):
    """Instructions, items and formats are in the positions that the API requires; `store` is false."""
    model, wire = connect(DIALECT, said(DIALECT), model="gpt-5.2")
    messages = (
        ChatMessage(
            "user",
            (
                Text("See"),
                Image(media_type="image/png", data=b"png"),
                File(media_type="application/pdf", data=b"pdf", name="a.pdf"),
                File(media_type="application/pdf", url="https://x/a.pdf"),
            ),
        ),
        ChatMessage("assistant", (Text("I add."), ToolCall("add", {"a": 1}, "id-1"))),
        ChatMessage("tool", (ToolResult(call_id="id-1", tool_name="add", content="1"), Text("Go on."))),
    )
    spec = ToolSpec("add", "Add.", {"type": "object"})
    await model.complete(
        ModelRequest(
            system="Be kind.",
            messages=messages,
            tools=(spec,),
            max_tokens=5,
            response_format=ResponseFormat("r", {"type": "object"}),
        )
    )
    body = wire.bodies[0]
    assert body == {
        "model": "gpt-5.2",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "instructions": "Be kind.",
        "max_output_tokens": 5,
        "tools": [{"type": "function", "name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}},  # OpenAI rejects the schema without properties
 "strict": False}],
        "text": {"format": {"type": "json_schema", "name": "r", "schema": {"type": "object"}, "strict": False}},
        "input": [
            {"role": "user", "content": [
                {"type": "input_text", "text": "See"},
                {"type": "input_image", "image_url": "data:image/png;base64,cG5n"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,cGRm"},
                {"type": "input_file", "file_url": "https://x/a.pdf"},
            ]},
            {"role": "assistant", "content": "I add."},
            {"type": "function_call", "call_id": "id-1", "name": "add", "arguments": '{"a":1}'},
            {"type": "function_call_output", "call_id": "id-1", "output": "1"},
            {"role": "user", "content": [{"type": "input_text", "text": "Go on."}]},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        ("gpt-4o", False),
        ("o4-mini", True),
        ("openai/gpt-5.5", True),
        ("gpt-5-chat-latest", False),
        ("gpt-4.1-nano", False),
    ],
)
async def test_reasoning_is_requested_only_from_reasoning_models(connect, said, model, reasons):
    """Other models would reject the request."""
    client, wire = connect(DIALECT, said(DIALECT), model=model)
    await client.complete(HELLO)
    assert ("include" in wire.bodies[0]) == reasons


async def test_reasoning_goes_back_encrypted_and_unchanged(connect):
    """A reasoning item is sent back unchanged before its call. An item without content is omitted."""
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Think."}],
        "encrypted_content": "gAAA",
    }
    bare = {"type": "reasoning", "id": "rs_2", "summary": []}
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "f",
        "arguments": "{}",
        "status": "completed",
    }
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q"}}
    model, wire = connect(DIALECT, response(reasoning, bare, search, call))
    answer = await model.complete(HELLO)
    assert answer.parts == (
        Thinking("Think.", DIALECT, reasoning),
        Thinking("", DIALECT, bare),
        Opaque(DIALECT, search),
        ToolCall("f", {}, provider_id="call_1"),
    )
    await model.complete(
        ModelRequest(messages=(*HELLO.messages, ChatMessage("assistant", answer.parts), *HELLO.messages))
    )
    assert wire.bodies[1]["input"][1:-1] == [
        reasoning, search, {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
    ]  # fmt: skip


async def test_phases_and_annotations_stay_with_their_text(connect):
    """A message's phase is sent back with the message. Citations are kept for display."""
    note = [{"type": "url_citation", "url": "https://x"}]
    message = spoken("First.", phase="commentary")
    message["content"][0]["annotations"] = note
    model, wire = connect(DIALECT, response(message, spoken("Then.")))
    answer = await model.complete(HELLO)
    assert answer.text == "First.Then."
    assert any(isinstance(part, Opaque) and part.data.get("annotations") == note for part in answer.parts)
    await model.complete(
        ModelRequest(messages=(*HELLO.messages, ChatMessage("assistant", answer.parts), *HELLO.messages))
    )
    assert wire.bodies[1]["input"][1:-1] == [
        {"role": "assistant", "content": "First.", "phase": "commentary"},
        {"role": "assistant", "content": "Then."},
    ]


@pytest.mark.parametrize(
    ("reason", "stop"), [("max_output_tokens", "length"), ("content_filter", "filter"), (None, "length")]
)
async def test_incomplete_response_is_an_answer(connect, reason, stop):
    """A truncated answer has its stop reason and no truncated call, even with complete-looking arguments."""
    call = {
        "type": "function_call",
        "call_id": "call_1",
        "name": "f",
        "arguments": '{"a": 1}',
        "status": "incomplete",
    }
    model, _ = connect(
        DIALECT, response(spoken("So"), call, status="incomplete", incomplete_details={"reason": reason})
    )
    answer = await model.complete(HELLO)
    assert (answer.text, answer.stop, answer.tool_calls) == ("So", stop, ())


@pytest.mark.parametrize("streams", [False, True])
async def test_a_refusal_is_an_answer(connect, sse, streams):
    """The text of the refusal is the answer."""
    item = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    reply = response(item)
    if streams:
        delta = {"type": "response.refusal.delta", "delta": "No."}
        reply = sse(delta, {"type": "response.completed", "response": reply["json"]})
    model, _ = connect(DIALECT, reply, stream=streams)
    answer = await model.complete(HELLO)
    assert (answer.text, answer.stop) == ("No.", "refusal")


@pytest.mark.parametrize("streams", [False, True])
async def test_a_failed_response_is_an_error(connect, sse, streams):
    """`failed` is classified by its code."""
    body = response(status="failed", error={"code": "rate_limit_exceeded", "message": "later"})
    if streams:
        body = sse({"type": "response.created"}, {"type": "response.failed", "response": body["json"]})
    model, _ = connect(DIALECT, body, stream=streams)
    with pytest.raises(RateLimited, match="later"):
        await model.complete(HELLO)
    model, _ = connect(DIALECT, response(status="failed", error={"code": "server_error", "message": "x"}))
    with pytest.raises(ProviderUnavailable):
        await model.complete(HELLO)


async def test_error_event_with_top_level_fields_is_read(connect, sse):
    """Error events of this wire have their fields at the top level."""
    reply = sse({"type": "error", "code": "context_length_exceeded", "message": "too long"})
    model, _ = connect(DIALECT, reply, stream=True)
    with pytest.raises(ModelError, match="too long") as caught:
        await model.complete(HELLO)
    assert not caught.value.retryable


async def test_item_events_form_the_answer_without_a_final_output(connect, sse):
    """If the final event has no output, the earlier item events form the answer."""
    events = [
        {"type": "response.output_item.done", "output_index": 1, "item": spoken("B")},
        {"type": "response.output_item.done", "output_index": 0, "item": spoken("A")},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ]
    model, _ = connect(DIALECT, sse(*events), stream=True)
    assert (await model.complete(HELLO)).text == "AB"


async def test_a_custom_call_is_a_call_that_never_runs(connect):
    """Free text is not a JSON object of arguments, so it stays text."""
    item = {"type": "custom_tool_call", "call_id": "call_1", "name": "sql", "input": "SELECT 1"}
    model, _ = connect(DIALECT, response(item))
    assert (await model.complete(HELLO)).tool_calls == (ToolCall("sql", "SELECT 1", provider_id="call_1"),)


async def test_store_true_requests_no_encrypted_reasoning(connect, said):
    """With `store=True` the provider stores the answer, and no encrypted reasoning is requested."""
    model, wire = connect(DIALECT, said(DIALECT), model="gpt-5.2", store=True)
    await model.complete(HELLO)
    assert wire.bodies[0]["store"] is True
    assert "include" not in wire.bodies[0]
