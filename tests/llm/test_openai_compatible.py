"""Providers by name: address, key and differences of each, over real sockets."""

import json
import re
from pathlib import Path

import attrs
import httpx2
import pytest

from actgent import OpenAI
from actgent.errors import ConfigurationError, MissingKey
from actgent.llm.clients.provider_table import COMPATIBLE
from actgent.llm.fallback_model import FallbackModel
from actgent.llm.model_interface import ChatMessage, ModelRequest, ResponseFormat
from actgent.llm.model_resolution import PROVIDERS, resolve_model
from actgent.llm.model_settings import load_settings
from actgent.messages import Image, Text, ToolCall, ToolResult, ToolSpec
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
"""Local servers, which need no key."""


@pytest.fixture(autouse=True)
def no_variables_of_theirs(monkeypatch):
    """Remove the machine's keys and addresses of these providers."""
    for row in COMPATIBLE.values():
        for name in (*row.key, *row.url, "AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=sorted(COMPATIBLE))
def provider(request):
    """Run the test for each provider of the table."""
    return request.param


@pytest.fixture
async def connect_as(monkeypatch):
    """`connect_as("groq:m", *replies)` returns a client of a table provider over an in-memory transport."""
    opened = []

    def connect(named, *replies):
        waiting = list(replies)
        transport = httpx2.MockTransport(lambda _: httpx2.Response(**waiting.pop(0)))
        opened.append(httpx2.AsyncClient(transport=transport))
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")
        return resolve_model(named, api_key="k", http_client=opened[-1])

    yield connect
    for client in opened:
        await client.aclose()


async def ignore(text, attempt):
    """Discard streamed text."""


async def test_provider_variables_set_address_and_key(provider, monkeypatch):
    """A model name alone uses the address and key of its provider's variables."""
    row = COMPATIBLE[provider]
    async with open_provider(["Hello."] * 3, api_key="own-key") as server:
        monkeypatch.setenv("LLM_PROVIDER_URL", "http://127.0.0.1:1")
        monkeypatch.setenv("LLM_API_KEY", "another")
        monkeypatch.setenv(row.url[-1], server.base_url)
        monkeypatch.setenv(row.key[-1], "own-key")
        named = f"{provider}:meta/model-1"
        for model in (resolve_model(named), load_settings(named).build(), FallbackModel(named)):
            answer = await model.complete(ModelRequest(messages=ASKED[:1]))
            assert answer.text == "Hello."
            await model.aclose()
        assert {request.json["model"] for request in server.requests} == {"meta/model-1"}
        assert model.models[0].name == named


async def test_each_provider_accepts_calls_and_results(provider, monkeypatch):
    """The API accepts tools, results, an output schema and a limit, streamed and not."""
    row = COMPATIBLE[provider]
    async with open_provider([[ToolCall("add", {"a": 1})]] * 2) as server:
        monkeypatch.setenv(row.url[0], server.base_url)
        model = resolve_model(f"{provider}:m")
        chat = ModelRequest(messages=ASKED, tools=(ADD,), response_format=FORM, max_tokens=77)
        whole, streamed = await model.complete(chat), await model.complete(chat, on_text=ignore)
        await model.aclose()
    assert whole.tool_calls[0].arguments == streamed.tool_calls[0].arguments == {"a": 1}
    assert streamed.usage.input_tokens > 0 or not row.has_stream_options
    first, second = (request.json for request in server.requests)
    assert first[row.limit] == 77
    if provider in ("gemini", "groq"):
        assert "response_format" not in first  # rejected together with tools; the prompt describes the format
    else:
        assert first["response_format"]["type"] == (
            "json_object" if provider == "deepseek" else "json_schema"
        )
    assert ("stream_options" in second) is row.has_stream_options


async def test_call_ids_have_the_required_length(monkeypatch):
    """Calls and results keep matching ids. An id that fits is unchanged."""
    async with open_provider(["6"]) as server:
        monkeypatch.setenv("MISTRAL_BASE_URL", server.base_url)
        model = resolve_model("mistral:m")
        await model.complete(ModelRequest(messages=ASKED, tools=(ADD,)))
        await model.aclose()
    _, calls, *results = server.requests[0].json["messages"]
    ids = [call["id"] for call in calls["tool_calls"]]
    assert ids == [result["tool_call_id"] for result in results]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in ids)
    assert ids[1] == "abcdefghi" != ids[0]


def test_provider_addresses_come_from_the_table(provider, monkeypatch):
    """Without a variable the table's address is used. Azure requires an address of the user."""
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


def test_aws_region_sets_the_address_of_bedrock(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "key")
    url = resolve_model("bedrock:openai.gpt-oss-20b-1:0").base_url
    assert url == "https://bedrock-runtime.eu-central-1.amazonaws.com/openai/v1"


def test_remote_providers_require_keys(provider, monkeypatch):
    """The error names the provider's variables. Local servers need no key."""
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")
    if provider in LOCAL:
        resolve_model(f"{provider}:m")
    else:
        with pytest.raises(MissingKey, match=COMPATIBLE[provider].key[0]):
            resolve_model(f"{provider}:m")


@pytest.mark.parametrize(
    ("wrong", "meant"), [("grok:m", "groq"), ("Mistal:m", "mistral"), ("open-router:m", "openrouter")]
)
def test_a_misspelt_provider_gets_a_suggestion(wrong, meant):
    """Providers of the table are suggested as well."""
    with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'"):
        resolve_model(wrong)


def test_guide_has_the_provider_table():
    """The guide's table has the titles, key variables and addresses of the code."""
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
    """Table providers and built-in providers have distinct names."""
    assert len(set(PROVIDERS)) == len(PROVIDERS) == len(COMPATIBLE) + 3


# --- what goes back, and what does not ------------------------------------------------------------


SIGNED = {
    "id": "g1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1}'},
    "extra_content": {"google": {"thought_signature": "c2ln"}},
}
SECOND = {"id": "g2", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}


def scripted(message, finish="tool_calls"):
    """Return the two replies, complete and streamed, for one message."""
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls", ()))]
    delta = {**message, **({"tool_calls": calls} if calls else {})}
    event = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    data = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"
    return (
        {"status_code": 200, "json": whole},
        {"status_code": 200, "headers": {"content-type": "text/event-stream"}, "content": data.encode()},
    )


async def sent_back(model, *, to=None, streams=False, asked=()):
    """Return the assistant's message in the next request to `to`, by default the same model."""
    answer = await model.complete(ModelRequest(messages=ASKED[:1]), on_text=ignore if streams else None)
    results = tuple(
        ToolResult(call_id=f"id-{at}", tool_name="add", content="5") for at in range(len(answer.tool_calls))
    )
    parts = []
    for part in answer.parts:
        if isinstance(part, ToolCall):
            part = attrs.evolve(part, id=f"id-{sum(isinstance(each, ToolCall) for each in parts)}")  # noqa: PLW2901
        parts.append(part)
    messages = (
        *ASKED[:1],
        ChatMessage("assistant", tuple(parts)),
        ChatMessage("user", results or (Text("?"),)),
    )
    body = (to or model).encode(ModelRequest(messages=messages))
    return next(message for message in body["messages"] if message["role"] == "assistant")


@pytest.mark.parametrize("streams", [False, True])
async def test_unknown_fields_are_sent_back_to_their_model(connect_as, streams):
    """Gemini rejects the next request without its signature. No other model gets the unknown fields."""
    message = {"content": None, "tool_calls": [SIGNED, SECOND], "provider_specific_fields": {"a": 1}}
    gemini = connect_as("gemini:gemini-3-pro-preview", *scripted(message)[streams:])
    back = await sent_back(gemini, streams=streams)
    assert [call.get("extra_content") for call in back["tool_calls"]] == [SIGNED["extra_content"], None]
    assert back["provider_specific_fields"] == {"a": 1}
    for other in ("gemini:gemini-2.5-pro", "groq:m", "mistral:m", "openrouter:m"):
        gemini = connect_as("gemini:gemini-3-pro-preview", *scripted(message)[streams:])
        back = await sent_back(gemini, to=connect_as(other), streams=streams)
        assert not [call for call in back["tool_calls"] if set(call) != {"id", "type", "function"}]
        assert "provider_specific_fields" not in back


async def test_calls_of_other_models_get_a_placeholder_signature(connect_as):
    """Gemini 3 gets a placeholder signature on calls of a different model."""
    other = connect_as("deepseek:m", scripted({"content": None, "tool_calls": [SECOND, SECOND]})[0])
    back = await sent_back(other, to=connect_as("gemini:gemini-3-pro-preview"))
    words = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert [call.get("extra_content") for call in back["tool_calls"]] == [words, None]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("streams", [False, True])
async def test_reasoning_is_sent_back_only_to_its_model(connect_as, field, streams):
    """DeepSeek needs its reasoning in the next request. Every other provider rejects or ignores it."""
    replies = scripted({"content": "One.", field: "They want one."}, "stop")[streams:]
    assert (await sent_back(connect_as("deepseek:m", *replies), streams=streams))[field] == "They want one."
    for other in ("groq:m", "mistral:m", "deepseek:m2", "vllm:m"):
        back = await sent_back(connect_as("deepseek:m", *replies), to=connect_as(other), streams=streams)
        assert back == {"role": "assistant", "content": "One."}


async def test_fields_of_a_truncated_call_are_dropped(connect_as):
    """Without its call, the signature would attach to the previous call."""
    cut = {**SIGNED, "id": "g3", "function": {"name": "add", "arguments": '{"a": '}}
    model = connect_as("gemini:gemini-3-pro-preview", scripted({"tool_calls": [SECOND, cut]}, "length")[0])
    back = await sent_back(model)
    assert [call["function"]["arguments"] for call in back["tool_calls"]] == ['{"a":2}']
    assert "c2ln" not in str(back)


# --- the order of messages --------------------------------------------------------------------------


def said_by(role, *texts):
    return ChatMessage(role, tuple(map(Text, texts)))


RESULTS = ChatMessage("tool", (ToolResult(call_id="call-1", tool_name="add", content="5"), Text("Go on.")))
CALLED = ChatMessage("assistant", (ToolCall("add", {"a": 2}, id="call-1"),))


@pytest.mark.parametrize("provider", ["mistral", "vllm"])
async def test_an_assistant_message_separates_tool_and_user(connect_as, provider):
    """The provider rejects `user` after `tool`, the order after a turn is stopped during its tool."""
    body = connect_as(f"{provider}:m").encode(ModelRequest(messages=(*ASKED[:1], CALLED, RESULTS)))
    assert [each["role"] for each in body["messages"]] == ["user", "assistant", "tool", "assistant", "user"]
    assert body["messages"][3]["content"]


async def test_roles_alternate_for_chat_templates(connect_as):
    """VLLM templates reject adjacent equal roles and a first assistant. Messages are merged without loss."""
    picture = Image(media_type="image/png", data=b"png")
    messages = (
        said_by("assistant", "Welcome."),
        said_by("user", "One."),
        said_by("user", "Two."),
        ChatMessage("user", (Text("Three."), picture)),
        said_by("assistant", "A."),
        ChatMessage("assistant", (Text("B."), *CALLED.parts)),
        RESULTS,
    )
    body = connect_as("vllm:m").encode(ModelRequest(system="S.", messages=messages))
    roles = [each["role"] for each in body["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool", "assistant", "user"]
    assert [item.get("text") for item in body["messages"][3]["content"]] == ["One.\n\nTwo.", "Three.", None]
    assert body["messages"][4]["content"] == "A.\n\nB."
    assert body["messages"][4]["tool_calls"]
    plain = connect_as("openrouter:m").encode(ModelRequest(messages=messages))
    assert [each["role"] for each in plain["messages"]][:4] == ["assistant", "user", "user", "user"]


async def test_arguments_that_are_no_json_do_not_break_the_next_request(connect_as):
    """vLLM, llama.cpp and Ollama parse the arguments of earlier calls."""
    broken = ChatMessage("assistant", (ToolCall("add", "{broken", id="call-1"),))
    for provider in ("vllm:m", "ollama:m", "groq:m"):
        body = connect_as(provider).encode(ModelRequest(messages=(*ASKED[:1], broken, RESULTS)))
        call = body["messages"][1]["tool_calls"][0]
        assert json.loads(call["function"]["arguments"]) == {"invalid_json": "{broken"}


# --- response formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "alone", "with_tools"),
    [
        ("groq:llama-3.3-70b-versatile", "json_object", None),
        ("groq:openai/gpt-oss-120b", "json_schema", None),
        ("gemini:gemini-2.5-flash", "json_schema", None),
        ("gemini:gemini-3-pro-preview", "json_schema", "json_schema"),
        ("deepseek:deepseek-v4-pro", "json_object", "json_object"),
        ("openrouter:x/y", "json_schema", "json_schema"),
    ],
)
async def test_response_format_is_dropped_if_tools_exclude_it(connect_as, model, alone, with_tools):
    """A provider that rejects a format with tools gets only the tools; the prompt describes the format."""
    client = connect_as(model)
    for tools, kind in (((), alone), ((ADD,), with_tools)):
        body = client.encode(ModelRequest(messages=ASKED[:1], tools=tools, response_format=FORM))
        assert body.get("response_format", {}).get("type") == kind


async def test_base_url_of_a_known_provider_applies_its_differences(connect_as):
    """`OpenAI(base_url=...)` at a provider of the table applies the provider's differences."""
    client = OpenAI("llama-3.3-70b-versatile", base_url="https://api.groq.com/openai/v1", api_key="k")
    body = client.encode(ModelRequest(messages=ASKED[:1], tools=(ADD,), response_format=FORM))
    assert "response_format" not in body
    await client.aclose()
