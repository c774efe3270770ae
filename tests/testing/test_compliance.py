"""The loopback provider against external descriptions of the three APIs: `llm-comply`, and the types of the provider SDKs.

The same types check the requests of this package.
"""

import collections.abc
import importlib.util
import json
import sys
import types
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, Required, TypeVar, Union, get_args, get_origin

import anthropic.types
import httpx2
import openai.types.chat
import openai.types.responses
import pydantic
import pytest
import trio
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from typing_extensions import get_type_hints, is_typeddict

from actgent.llm.clients.anthropic import Anthropic
from actgent.llm.clients.openai import OpenAI
from actgent.llm.clients.openai_responses import OpenAIResponses
from actgent.llm.model_interface import ChatMessage, ModelRequest, ModelResponse, ResponseFormat
from actgent.messages import File, Image, Text, Thinking, ToolCall, ToolResult, ToolSpec
from actgent.testing import open_provider

# --- llm-comply -------------------------------------------------------------------------------------------

FORMATS = [("open-responses", "gpt-5.2", 13), ("openai-chat", "gpt-5.2", 9), ("anthropic", "claude-sonnet-4-5", 9)]  # fmt: skip


def answer_anything(request):
    """Call the first tool once. Then return a text, with thinking if the request enables it."""
    if request.chat.tools and not request.tool_results:
        (first, *_) = request.chat.tools
        return ToolCall(first.name, dict.fromkeys(first.parameters.get("properties", ()), "Paris"))
    if request.json.get("reasoning") or request.json.get("thinking"):
        return [Thinking("15 * 37 is 555.", ""), Text("It is 555.")]
    return "Hello there, ada."


@pytest.mark.skipif(
    importlib.util.find_spec("llm_comply") is None,
    reason="llm-comply is not installed: pip install 'actgent[dev]'",
)
@pytest.mark.parametrize(("wire", "model", "cases"), FORMATS, ids=[each[0] for each in FORMATS])
async def test_llm_comply_passes_every_case(wire, model, cases):
    """No case fails, warns or is skipped."""
    async with open_provider(answer_anything) as provider:
        arguments = ["-u", provider.base_url, "-k", "k", "-m", model, "--format", wire, "--json"]
        run = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False)
        done = await run([sys.executable, "-m", "llm_comply.cli", *arguments])
    output = json.loads(done.stdout)
    assert [each for each in output["results"] if each["status"] != "passed" or each.get("errors")] == []
    assert len(output["results"]) == cases


# --- the types of the SDKs ----------------------------------------------------------------------------------

TOOL = ToolSpec(
    "get.weather",
    "Get the weather.",
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}, "required": ["city"]},
)  # fmt: skip
ANSWERS = {
    "text": "Hello there.",
    "empty": "",
    "call": ToolCall("get_weather", {"city": "Oslo"}),
    "calls": ["Let me look.", ToolCall("get_weather", {"city": "Oslo"}), ToolCall("now", {})],
    "thinking": [Thinking("Hm.", ""), Text("Four.")],
    "refusal": ModelResponse(parts=(Text("No."),), stop="refusal"),
    "length": ModelResponse(parts=(Text("Once upon"),), stop="length"),
    "filter": ModelResponse(parts=(), stop="filter"),
}
BODIES = {
    "openai": ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
    "openai-responses": ("/v1/responses", {"model": "m", "input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": None, "strict": True}]}),
    "anthropic": ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
}  # fmt: skip
WHOLE = {
    "openai": openai.types.chat.ChatCompletion,
    "openai-responses": openai.types.responses.Response,
    "anthropic": anthropic.types.Message,
}
EVENTS = {
    "openai": openai.types.chat.ChatCompletionChunk,
    "openai-responses": openai.types.responses.ResponseStreamEvent,
    "anthropic": anthropic.types.RawMessageStreamEvent,
}
OTHERS = {
    "openai": {"reasoning"},  # of compatible servers
    "openai-responses": {"frequency_penalty", "presence_penalty", "store"},  # of Open Responses
    "anthropic": set(),
}
"""Fields that the SDKs do not define."""


def unknown(value):
    """Return the names of fields in a value that the classes of the SDK do not have."""
    if isinstance(value, pydantic.BaseModel):
        found = set(value.model_extra or ())
        return found.union(*(unknown(each) for _, each in value))
    if isinstance(value, list):
        return set().union(*map(unknown, value))
    return set()


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("wire", BODIES)
async def test_answers_have_the_types_of_the_sdks(wire, name):
    """The classes of the SDKs parse complete and streamed answers in strict mode, and define every field."""
    path, body = BODIES[wire]
    async with (
        open_provider([ANSWERS[name]] * 2, chunk=3) as provider,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        url = provider.anthropic_url + path
        whole = (await client.post(url, json=body)).json()
        streamed = (await client.post(url, json={**body, "stream": True})).text
    read = pydantic.TypeAdapter(WHOLE[wire]).validate_json(json.dumps(whole), strict=True)
    assert unknown(read) <= OTHERS[wire]
    adapter = pydantic.TypeAdapter(EVENTS[wire])
    datas = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: {")]
    for data in datas:
        if json.loads(data)["type" if wire != "openai" else "object"] != "ping":
            assert unknown(adapter.validate_json(data, strict=True)) <= OTHERS[wire]
    assert len(datas) > 1


PICTURE = Image(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
CHATS = {
    "plain": ModelRequest(system="Be kind.", messages=(ChatMessage("user", (Text("Hi"),)),), temperature=0.5, max_tokens=9),
    "media": ModelRequest(messages=(ChatMessage("user", (Text("See"), PICTURE, File(media_type="application/pdf", data=b"%PDF-", name="a.pdf"))),)),
    "tools": ModelRequest(
        messages=(
            ChatMessage("user", (Text("Weather?"),)),
            ChatMessage("assistant", (Text("I look."), ToolCall("get.weather", {"city": "Oslo"}, "c1"), ToolCall("get.weather", {"city": "Rome"}, "c2"))),
            ChatMessage("tool", (ToolResult(call_id="c1", tool_name="get.weather", content="4"), ToolResult(call_id="c2", tool_name="get.weather", status="error", error="no", media=(PICTURE,)), Text("Go on."))),
        ),
        tools=(TOOL, ToolSpec("now", "", {"type": "object"})),
    ),
    "form": ModelRequest(messages=(ChatMessage("user", (Text("Hi"),)),), response_format=ResponseFormat("n", {"type": "array", "items": {"type": "integer"}})),
}  # fmt: skip
CLIENTS = {"openai": OpenAI, "openai-responses": OpenAIResponses, "anthropic": Anthropic}
PARAMS = {
    "openai": CompletionCreateParamsNonStreaming,
    "openai-responses": ResponseCreateParamsNonStreaming,
    "anthropic": anthropic.types.message_create_params.MessageCreateParamsNonStreaming,
}


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("wire", CLIENTS)
async def test_our_requests_have_the_types_of_the_sdks(wire, name):
    """The typed dictionaries of the SDKs accept the requests and define all their fields."""
    async with open_provider(["ok"]) as provider:
        model = CLIENTS[wire]("gpt-5.2", base_url=provider.url_for(wire), api_key="k")
        await model.complete(CHATS[name])
        await model.aclose()
        sent = dict(provider.requests[0].json)
    if wire == "anthropic":
        sent.pop("temperature", None)  # older models accept it; the SDK's types no longer define it
    assert misfits(sent, PARAMS[wire], "") == []


def misfits(value, kind, path):  # noqa: PLR0911 - one line a kind of type
    """Return the paths in a value that its type does not define. For a union, use the member with the fewest errors."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Required, NotRequired, Annotated):
        return misfits(value, arguments[0], path)
    if origin in (Union, types.UnionType):
        return min((misfits(value, each, path) for each in arguments), key=len)
    if origin is Literal:
        return [] if value in arguments else [f"{path}: {value!r} is none of {arguments}"]
    if is_typeddict(kind):
        return _misfits_of_fields(value, kind, path)
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        if not isinstance(value, list):
            return [f"{path}: {value!r} is no list"]
        return [each for at, item in enumerate(value) for each in misfits(item, arguments[0], f"{path}/{at}")]
    if kind in (object, Any) or isinstance(kind, TypeVar):
        return []
    plain = {float: (int, float), None: type(None)}.get(kind, origin or kind)
    return [] if isinstance(value, plain) else [f"{path}: {value!r} is no {kind}"]


def _misfits_of_fields(value, kind, path):
    if not isinstance(value, dict):
        return [f"{path}: {value!r} is no {kind.__name__}"]
    hints = get_type_hints(kind, include_extras=True)
    found = [f"{path}/{key} is unknown to {kind.__name__}" for key in value.keys() - hints.keys()]
    found += [f"{path}/{key} is missing" for key in kind.__required_keys__ - value.keys()]
    return found + [
        each
        for key in value.keys() & hints.keys()
        for each in misfits(value[key], hints[key], f"{path}/{key}")
    ]
