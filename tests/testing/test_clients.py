"""The model clients of this package with the loopback provider: requests and answers survive each wire format."""

import attrs
import pytest

from actgent.llm.clients.anthropic import Anthropic
from actgent.llm.clients.openai import OpenAI
from actgent.llm.clients.openai_responses import OpenAIResponses
from actgent.llm.model_interface import ChatMessage, ModelRequest, ResponseFormat
from actgent.messages import File, Image, Text, Thinking, ToolCall, ToolResult, ToolSpec
from actgent.testing import assert_no_leaks, open_provider

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
CHAT = ModelRequest(
    system="Be brief.",
    messages=(
        ChatMessage(
            "user",
            (
                Text("What is this?"),
                Image(media_type="image/png", data=b"png"),
                File(media_type="application/pdf", data=b"pdf", name="x.pdf"),
            ),
        ),
        ChatMessage(
            "assistant",
            (Text("Let me see."), ToolCall("add", {"a": 1}, id="c-1"), ToolCall("now", {}, id="c-2")),
        ),
        ChatMessage(
            "tool",
            (
                ToolResult(call_id="c-1", tool_name="add", content="5 🙂"),
                ToolResult(call_id="c-2", tool_name="now", content="noon"),
            ),
        ),
    ),
    tools=(ToolSpec("add", "Add.", SCHEMA), ToolSpec("now", "Tell the time.", SCHEMA)),
    temperature=0.5,
    max_tokens=100,
    response_format=ResponseFormat("output", SCHEMA),
)


def client(cls, provider):
    url = provider.anthropic_url if cls is Anthropic else provider.openai_url
    return cls("any-model", base_url=url, api_key="any")


@pytest.mark.parametrize("cls", [OpenAI, OpenAIResponses, Anthropic])
async def test_chat_survives_each_wire_format(cls):
    """The provider parses the same conversation that the client sent."""
    async with open_provider(["Five."]) as provider:
        llm = client(cls, provider)
        await llm.complete(CHAT)
        await llm.aclose()
    assert provider.requests[0].problems == []
    assert attrs.asdict(provider.requests[0].chat) == attrs.asdict(CHAT)


@pytest.mark.parametrize("cls", [OpenAI, OpenAIResponses, Anthropic])
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_answer_survives_each_wire_format(cls, is_streamed):
    """Thinking, text and calls arrive in their order, and no task or connection stays open."""
    answers = [Thinking("So.", "any"), Text("Let me see: ÄÖ🙂."), ToolCall("add", {"a": 1})]
    pieces = []

    async def on_text(text, attempt):
        pieces.append(text)

    async with assert_no_leaks(), open_provider([answers], chunk=3) as provider:
        llm = client(cls, provider)
        answer = await llm.complete(CHAT, on_text=on_text if is_streamed else None)
        await llm.aclose()
    assert [type(part) for part in answer.parts] == [Thinking, Text, ToolCall]
    assert answer.text == answers[1].text
    assert answer.tool_calls[0].arguments == {"a": 1}
    assert answer.stop == "tool_calls"
    assert "".join(pieces) == (answers[1].text if is_streamed else "")
