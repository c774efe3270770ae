"""Providers by name: address, key and quirks of each, asked over real sockets."""

import re
from pathlib import Path

import pytest

from actgent.errors import ConfigurationError, MissingKey
from actgent.llm.base import Chat, ChatMessage, ResponseFormat
from actgent.llm.clients.providers import COMPATIBLE
from actgent.llm.fallback import Fallback
from actgent.llm.models import PROVIDERS, resolve_model
from actgent.llm.settings import load_settings
from actgent.messages import Text, ToolCall, ToolResult, ToolSpec
from actgent.testing import open_provider

GUIDE = Path(__file__).parents[2] / "docs/guides/models.md"
ADD = ToolSpec("add", "Add.", {"type": "object"})
ASKED = (
    ChatMessage("user", (Text("2 + 3?"),)),
    ChatMessage(
        "assistant", (ToolCall("add", {"a": 2}, id="call-1"), ToolCall("add", {"a": 3}, id="abcdefghi"))
    ),
    ChatMessage(
        "user",
        (
            ToolResult(call_id="call-1", tool_name="add", content="5"),
            ToolResult(call_id="abcdefghi", tool_name="add", content="6"),
        ),
    ),
)
FORM = ResponseFormat("sum", {"type": "object"})
LOCAL = {"ollama", "vllm"}
"""Servers of one's own, which need no key."""


@pytest.fixture(autouse=True)
def no_variables_of_theirs(monkeypatch):
    """No key or address of the machine's takes part."""
    for row in COMPATIBLE.values():
        for name in (*row.key, *row.url, "AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=sorted(COMPATIBLE))
def provider(request):
    """Each provider of the table."""
    return request.param


async def ignore(text, attempt):
    """Read a stream."""


async def test_the_variables_say_where_and_with_which_key(provider, monkeypatch):
    """A model by its name alone is asked where the provider's variables say, with the key of its own."""
    row = COMPATIBLE[provider]
    async with open_provider(["Hello."] * 3, api_key="own-key") as server:
        monkeypatch.setenv("LLM_PROVIDER_URL", "http://127.0.0.1:1")
        monkeypatch.setenv("LLM_API_KEY", "another")
        monkeypatch.setenv(row.url[-1], server.base_url)
        monkeypatch.setenv(row.key[-1], "own-key")
        named = f"{provider}:meta/model-1"
        for model in (resolve_model(named), load_settings(named).build(), Fallback(named)):
            answer = await model.complete(Chat(messages=ASKED[:1]))
            assert answer.text == "Hello."
            await model.aclose()
        assert {request.json["model"] for request in server.requests} == {"meta/model-1"}
        assert model.models[0].name == named


async def test_calls_and_their_results_are_taken(provider, monkeypatch):
    """Tools, results, a declared form and a limit, streamed and whole, are requests that the API takes."""
    row = COMPATIBLE[provider]
    async with open_provider([[ToolCall("add", {"a": 1})]] * 2) as server:
        monkeypatch.setenv(row.url[0], server.base_url)
        model = resolve_model(f"{provider}:m")
        chat = Chat(messages=ASKED, tools=(ADD,), response_format=FORM, max_tokens=77)
        whole, streamed = await model.complete(chat), await model.complete(chat, on_text=ignore)
        await model.aclose()
    assert whole.tool_calls[0].arguments == streamed.tool_calls[0].arguments == {"a": 1}
    assert streamed.usage.input_tokens > 0 or not row.has_stream_options
    first, second = (request.json for request in server.requests)
    assert first[row.limit] == 77
    assert first["response_format"]["type"] == ("json_schema" if row.has_json_schema else "json_object")
    assert ("stream_options" in second) is row.has_stream_options


async def test_ids_of_calls_have_the_length_that_a_provider_insists_on(monkeypatch):
    """Calls and results keep belonging together, and an id that fits stays as it is."""
    async with open_provider(["6"]) as server:
        monkeypatch.setenv("MISTRAL_BASE_URL", server.base_url)
        model = resolve_model("mistral:m")
        await model.complete(Chat(messages=ASKED, tools=(ADD,)))
        await model.aclose()
    _, calls, *results = server.requests[0].json["messages"]
    ids = [call["id"] for call in calls["tool_calls"]]
    assert ids == [result["tool_call_id"] for result in results]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in ids)
    assert ids[1] == "abcdefghi" != ids[0]


def test_addresses(provider, monkeypatch):
    """Without a variable a model is where the table says; one of Azure has no address but the user's own."""
    monkeypatch.setenv("LLM_API_KEY", "key")
    if provider == "azure":
        with pytest.raises(ConfigurationError, match="AZURE_OPENAI_ENDPOINT"):
            resolve_model("azure:m")
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
        assert resolve_model("azure:m").base_url == "https://mine.openai.azure.com/openai/v1"
    else:
        assert resolve_model(f"{provider}:m").base_url == COMPATIBLE[provider].address.replace(
            "REGION", "us-east-1"
        )


def test_the_region_of_bedrock(monkeypatch):
    """AWS_REGION says in which one the model is asked."""
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "key")
    url = resolve_model("bedrock:openai.gpt-oss-20b-1:0").base_url
    assert url == "https://bedrock-runtime.eu-central-1.amazonaws.com/openai/v1"


def test_keys_are_asked_for_where_they_are_needed(provider, monkeypatch):
    """The error names the provider's own variables; servers of one's own go without a key."""
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")
    if provider in LOCAL:
        resolve_model(f"{provider}:m")
    else:
        with pytest.raises(MissingKey, match=COMPATIBLE[provider].key[0]):
            resolve_model(f"{provider}:m")


@pytest.mark.parametrize(
    ("wrong", "meant"), [("grok:m", "groq"), ("Mistal:m", "mistral"), ("open-router:m", "openrouter")]
)
def test_a_misspelt_provider_is_told_the_nearest(wrong, meant):
    """Providers of the table are suggested like the others."""
    with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'"):
        resolve_model(wrong)


def test_the_guide_has_the_same_table():
    """The table of the guide says of each provider the address and the variables that the code has."""
    rows = {}
    for line in GUIDE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].endswith(":MODEL`"):
            rows[cells[0].strip("`").removesuffix(":MODEL")] = cells[1:]
    assert set(rows) == set(COMPATIBLE)
    for provider, row in COMPATIBLE.items():
        title, key, address = rows[provider]
        assert title == row.title
        assert re.findall("`(.*?)`", key) == list(row.key)
        assert re.findall("`(.*?)`", address) == [*([row.address] if row.address else []), *row.url]


def test_providers_are_listed_once():
    """The table adds to the providers with a client of their own, and hides none of them."""
    assert len(set(PROVIDERS)) == len(PROVIDERS) == len(COMPATIBLE) + 3
