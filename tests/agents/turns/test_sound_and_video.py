"""Sound and video in user messages, in the requests of real clients with and without support."""

from contextlib import asynccontextmanager

import pytest

from actgent import Anthropic, BareAgent, File, OpenAI, OpenAIResponses, Text, UnsupportedPart
from actgent.llm.retry_policy import Retry
from actgent.testing import open_provider

WAV = File(media_type="audio/wav", data=b"RIFF....WAVE", name="a.wav")
MP3 = File(media_type="audio/mpeg", data=b"ID3", name="a.mp3")
OGG = File(media_type="audio/ogg", data=b"OggS", name="a.ogg")
VIDEO = File(media_type="video/mp4", data=b"....ftyp", name="a.mp4")
LINKED = File(media_type="video/mp4", url="https://example.org/a.mp4")


@asynccontextmanager
async def listening(kind, provider=None):
    """An agent with such a client, which is closed behind it."""
    options = {}
    if provider is not None:
        options["base_url"] = provider.anthropic_url if kind is Anthropic else provider.openai_url
    llm = kind("any-model", api_key="any", retry=Retry(attempts=1), **options)
    async with BareAgent("listener", llm=llm) as agent:
        yield agent
    await llm.aclose()


@pytest.mark.parametrize("answer", [WAV, MP3, VIDEO])
async def test_chat_completions_carry_sound_and_video(answer):
    """The server receives the same bytes, and the record has them for the next turn."""
    async with open_provider(["A bird.", "Yes."]) as provider:
        async with listening(OpenAI, provider) as agent:
            session = await agent.create_session("ada")
            assert (await agent.run(["What is it?", answer], session=session)).text == "A bird."
            assert (await agent.run("Sure?", session=session)).text == "Yes."
        for chat in [each.chat for each in provider.requests]:
            text, medium = chat.messages[0].parts
            assert (text, medium.media_type, medium.data) == (
                Text("What is it?"),
                answer.media_type,
                answer.data,
            )


async def test_video_address_is_passed_to_the_server():
    """The server reads the video."""
    async with open_provider(["A cat."]) as provider:
        async with listening(OpenAI, provider) as agent:
            await agent.run(["What is it?", LINKED])
        assert provider.requests[0].chat.messages[0].parts[1].url == LINKED.url


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [
        (OpenAI, OGG, "WAV and MP3, not audio/ogg"),
        (OpenAIResponses, WAV, "the responses API accepts no audio/wav"),
        (OpenAIResponses, VIDEO, "the responses API accepts no video/mp4"),
        (Anthropic, WAV, "Anthropic accepts no audio/wav"),
        (Anthropic, VIDEO, "Anthropic accepts no video/mp4"),
    ],
)
async def test_an_api_without_media_support_raises(kind, answer, expected):
    """No request is sent, and the error lists the supported media."""
    async with open_provider(["never"]) as provider:
        async with listening(kind, provider) as agent:
            with pytest.raises(UnsupportedPart, match=expected):
                await agent.run(["What is it?", answer])
        assert provider.requests == []


async def test_video_is_rejected_for_servers_of_openai():
    """The servers are recognized by their address, and no request is sent."""
    async with listening(OpenAI) as agent:
        with pytest.raises(UnsupportedPart, match="images of it, or its audio"):
            await agent.run(["What is it?", VIDEO])
