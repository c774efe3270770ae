"""Images and files in tool results, on the three wire formats and at providers without media support."""

import base64

import pytest

from actgent.errors import BadRequest
from actgent.llm.clients.openai_compatible import client_class
from actgent.llm.model_interface import ChatMessage, ModelRequest
from actgent.llm.prompt_token_estimator import MEDIA_BYTES, PromptEstimator
from actgent.messages import File, Image, Text, ToolCall, ToolResult
from actgent.testing import open_provider

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20
PICTURE = Image(media_type="image/png", data=PNG)
DOCUMENT = File(media_type="application/pdf", data=b"%PDF-1", name="a.pdf")
SOUND = File(media_type="audio/wav", data=b"RIFF....WAVE", name="b.wav")


def chat_with(*media, native=True, calls=1):
    """Return a request that ends with call results, all with the same media."""
    ids = [f"call_{n}" for n in range(calls)]
    results = tuple(
        ToolResult(call_id=each, tool_name="camera", content="[a thing]", media=media, native=native)
        for each in ids
    )
    return ModelRequest(
        messages=(
            ChatMessage("user", (Text("Look."),)),
            ChatMessage("assistant", tuple(ToolCall("camera", {}, id=each, native=native) for each in ids)),
            ChatMessage("tool", results),
        )
    )


def encoded(data):
    return base64.b64encode(data).decode()


async def test_anthropic_media_are_blocks_of_the_result(connect, said):
    """Media are blocks of the result. A text names the media types that Anthropic does not accept."""
    model, wire = connect("anthropic", said("anthropic"))
    await model.complete(chat_with(PICTURE, DOCUMENT, SOUND))
    (result,) = wire.bodies[0]["messages"][-1]["content"]
    assert result["type"] == "tool_result"
    text, picture, document = result["content"]
    assert text["text"] == "[a thing]\n[not shown to you: audio/wav]"
    assert picture == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": encoded(PNG)},
    }
    assert (document["type"], document["title"]) == ("document", "a.pdf")


async def test_responses_media_are_in_the_output_item(connect, said):
    model, wire = connect("openai-responses", said("openai-responses"))
    await model.complete(chat_with(PICTURE, DOCUMENT, SOUND))
    output = wire.bodies[0]["input"][-1]["output"]
    assert [block["type"] for block in output] == ["input_text", "input_image", "input_file"]
    assert output[0]["text"] == "[a thing]\n[not shown to you: audio/wav]"
    assert output[1]["image_url"] == f"data:image/png;base64,{encoded(PNG)}"


@pytest.mark.parametrize(("model", "takes_audio"), [("model-1", False), ("gpt-audio", True)])
async def test_completions_media_follow_all_results(connect, said, model, takes_audio):
    """Tool messages carry only text, so media follow as user messages that name their call."""
    client, wire = connect("openai", said("openai"), model=model)
    await client.complete(chat_with(PICTURE, SOUND, calls=2))
    messages = wire.bodies[0]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert messages[2]["content"] == (
        "[a thing]" if takes_audio else "[a thing]\n[not shown to you: audio/wav]"
    )
    kinds = [block["type"] for block in messages[-1]["content"]]
    assert kinds == ["text", "image_url", *(["input_audio"] if takes_audio else [])] * 2
    assert messages[-1]["content"][0]["text"] == "[returned by the tool camera, call call_0:]"


async def test_media_of_text_calls_are_sent_as_a_user_message(connect, said, dialect):
    """For calls inside the text, results and media are sent as a user message."""
    model, wire = connect(dialect, said(dialect))
    await model.complete(chat_with(PICTURE, native=False))
    last = wire.bodies[0]["input" if dialect == "openai-responses" else "messages"][-1]
    assert last["role"] == "user"
    text, picture = last["content"][-2:]  # Anthropic merges adjacent user messages
    assert text["text"] == "Result of camera:\n[a thing]"
    assert "image" in picture["type"]


async def test_model_without_media_support_is_retried_without_media(connect, said, dialect):
    """The request is repeated once. The next request omits these media types and tries others."""
    refusal = {
        "status_code": 400,
        "json": {"error": {"type": "invalid_request_error", "message": "no images"}},
    }
    model, wire = connect(dialect, refusal, said(dialect))
    answer = await model.complete(chat_with(PICTURE))
    assert answer.text
    first, second = [request.content.decode() for request in wire.requests]
    assert encoded(PNG) in first
    assert encoded(PNG) not in second
    assert "[not shown to you: image/png]" in second
    await model.complete(chat_with(PICTURE))
    assert len(wire.requests) == 3
    assert wire.requests[2].content.decode() == second
    await model.complete(chat_with(Image(media_type="image/png", data=PNG + b"other")))
    assert encoded(PNG + b"other") in wire.requests[3].content.decode()


async def test_other_rejections_of_media_are_reported_unchanged(connect, dialect, said):
    """If the retry without media fails as well, the first error is raised.

    The next request sends media again.
    """
    refusals = [{"status_code": 400, "json": {"error": {"message": f"reason {n}"}}} for n in range(2)]
    model, wire = connect(dialect, *refusals, said(dialect))
    with pytest.raises(BadRequest, match="reason 0"):
        await model.complete(chat_with(PICTURE))
    await model.complete(chat_with(PICTURE))
    assert encoded(PNG) in wire.requests[2].content.decode()
    model, wire = connect(dialect, refusals[0])
    with pytest.raises(BadRequest, match="reason 0"):
        await model.complete(chat_with())
    assert len(wire.requests) == 1


@pytest.mark.parametrize("provider", ["anthropic", "openai", "openai-responses"])
async def test_simulated_provider_accepts_result_media(provider, monkeypatch):
    """The simulated provider validates the request and reads the same media."""
    from actgent.llm.clients.anthropic import Anthropic
    from actgent.llm.clients.openai import OpenAI
    from actgent.llm.clients.openai_responses import OpenAIResponses

    made = {"anthropic": Anthropic, "openai": OpenAI, "openai-responses": OpenAIResponses}[provider]
    async with open_provider(["fine"]) as server:
        url = server.anthropic_url if provider == "anthropic" else server.base_url
        model = made("model-1", base_url=url, api_key="k")
        assert (await model.complete(chat_with(PICTURE, DOCUMENT, calls=2))).text == "fine"
        await model.aclose()
        seen = [
            medium
            for message in server.requests[0].chat.messages
            for part in message.parts
            for medium in (part.media if isinstance(part, ToolResult) else [part])
            if isinstance(medium, Image)
        ]
        assert [picture.data for picture in seen] == [PNG, PNG]


async def test_gemini_media_follow_like_completions():
    """Gemini's compatible API accepts images and audio in a user message."""
    model = client_class("gemini")("gemini-3-flash", api_key="k")
    messages = model.encode(chat_with(PICTURE, SOUND))["messages"]
    assert [block["type"] for block in messages[-1]["content"]] == ["text", "image_url", "input_audio"]
    await model.aclose()


def test_estimate_counts_result_media():
    """Media in results count as much as media in user messages."""
    bare, held = (PromptEstimator().tokens(chat) for chat in (chat_with(), chat_with(PICTURE, DOCUMENT)))
    assert held - bare >= 2 * MEDIA_BYTES // 3 - 1
