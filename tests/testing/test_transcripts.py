"""Each rule of the providers, with a request that violates it."""

import pytest

from actgent.errors import ConfigurationError
from actgent.llm.model_interface import ChatMessage, ModelRequest
from actgent.llm.model_resolution import PROVIDERS, dialect_of
from actgent.messages import Image, Text, ToolCall, ToolResult
from actgent.testing import assert_valid_transcript, check_transcript
from actgent.testing.provider_apis import PROVIDER_APIS

USER = {"role": "user", "content": "What is 2 + 3?"}
PARAMETERS = {"type": "object", "properties": {}}


def said(*keys, name="add", arguments="{}"):
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": key, "type": "function", "function": function} for key in keys],
    }


def result(key):
    return {"role": "tool", "tool_call_id": key, "content": "5"}


def used(*keys, name="add", arguments=None):
    blocks = [{"type": "tool_use", "id": key, "name": name, "input": arguments or {}} for key in keys]
    return {"role": "assistant", "content": blocks}


def results(*keys):
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": key, "content": "5"} for key in keys],
    }


def call(key, name="add"):
    return {"type": "function_call", "call_id": key, "name": name, "arguments": "{}"}


def output(key):
    return {"type": "function_call_output", "call_id": key, "output": "5"}


def problems(dialect, items, **body):
    """Return the problems of a request in one dialect."""
    field = "input" if dialect == "openai-responses" else "messages"
    required = {"max_tokens": 10} if dialect == "anthropic" else {}
    return check_transcript({"model": "m", **required, field: items, **body}, dialect)


VALID = [
    ("openai", [USER, said("a", "b"), result("b"), result("a")]),
    ("openai", [USER, said("a"), result("a"), said("a"), result("a")]),
    ("openai", [{"role": "system", "content": "Be brief."}, USER]),
    ("openai", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("openai-responses", "Hello"),
    ("openai-responses", [USER, call("a"), call("b"), output("b"), output("a")]),
    ("openai-responses", [USER, {"type": "reasoning", "id": "r", "summary": []}, call("a"), output("a")]),
    ("anthropic", [USER, used("a", "b"), results("b", "a")]),
    ("anthropic", [USER, used("a", "b"), results("a"), results("b")]),
    (
        "anthropic",
        [
            USER,
            {"role": "assistant", "content": [{"type": "text", "text": " "}, *used("a")["content"]]},
            results("a"),
        ],
    ),
    (
        "anthropic",
        [
            USER,
            {
                "role": "assistant",
                "content": [{"type": "server_tool_use", "id": "s", "name": "x", "input": {}}],
            },
        ],
    ),
]


@pytest.mark.parametrize(("dialect", "items"), VALID)
def test_valid_transcripts_are_accepted(dialect, items):
    """Parallel calls, results in any order, and other content that a provider accepts."""
    assert problems(dialect, items) == []


INVALID = [
    # calls and results
    ("openai", [USER, said("a")], "no result right after it for a"),
    ("openai", [USER, said("a", "b"), result("a"), USER], "after it for b"),
    ("openai", [USER, said("a"), USER, result("a")], "does not call"),
    ("openai", [USER, result("a")], "a result for a"),
    ("openai", [USER, said("a"), result("a"), result("a")], "two results for the call a"),
    ("openai", [USER, said("a", "a"), result("a")], "two calls with the id a"),
    ("openai-responses", [USER, call("a")], "no tool output found for the call a"),
    ("openai-responses", [USER, output("a")], "no tool call found for the output with call_id a"),
    ("openai-responses", [USER, output("a"), call("a")], "no tool output found"),
    ("openai-responses", [USER, call("a"), output("a"), output("a")], "no tool call found"),
    ("openai-responses", [USER, call("a"), output("a"), call("a"), output("a")], "two calls with the id a"),
    ("anthropic", [USER, used("a")], "no result right after it"),
    ("anthropic", [USER, used("a"), USER, results("a")], "tool_result blocks must come first"),
    ("anthropic", [USER, results("a")], "does not call"),
    ("anthropic", [USER, used("a"), results("a"), used("a"), results("a")], "must be unique, a occurs twice"),
    # roles and the ends
    ("openai", [{"role": "robot", "content": "x"}], "'robot' is not one of"),
    ("anthropic", [{"role": "tool", "content": "x"}], "'tool' is not one of"),
    ("anthropic", [used("a"), results("a")], "first message must use the user role"),
    ("anthropic", [{"role": "system", "content": "x"}, USER], "first message must use the user role"),
    ("openai", [USER, {"role": "assistant", "content": "Five"}], "prefill"),
    ("openai-responses", [USER, {"role": "assistant", "content": "Five"}], "prefill"),
    ("anthropic", [USER, {"role": "assistant", "content": "Five"}], "prefill"),
    ("openai-responses", [USER, {"type": "reasoning", "id": "r", "summary": []}], "has to follow"),
    # content
    ("openai", [], "empty array"),
    ("openai", "Hello", "an array is required"),
    ("openai", ["Hello"], "an object is required"),
    ("openai", [{"role": "user", "content": None}], "got null"),
    ("openai", [{"role": "user", "content": []}], "empty array"),
    ("openai", [{"role": "user", "content": [{"type": "image"}]}], "'image' is not one of"),
    ("openai", [USER, {"role": "assistant", "content": None}, USER], "got null"),
    ("openai", [USER, {**said("a"), "tool_calls": []}, USER], "empty array"),
    ("openai-responses", [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "'text' is not one of"),
    ("openai-responses", [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}, USER], "input_text"),
    ("anthropic", [{"role": "user", "content": ""}], "non-empty"),
    ("anthropic", [{"role": "user", "content": " \n"}], "non-whitespace"),
    ("anthropic", [{"role": "user", "content": [{"type": "text", "text": ""}]}], "non-empty"),
    ("anthropic", [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}, USER], "signature"),
    # names, ids, arguments
    ("openai", [USER, said("a", name="my.tool"), result("a")], "'my.tool' does not match"),
    ("openai", [USER, said("a", name="x" * 65), result("a")], "does not match"),
    ("openai-responses", [USER, call("a", name="my tool"), output("a")], "'my tool' does not match"),
    ("anthropic", [USER, used("a", name="my.tool"), results("a")], "'my.tool' does not match"),
    ("openai", [USER, said("x" * 41), result("x" * 41)], "string too long"),
    ("anthropic", [USER, used("a.b"), results("a.b")], "'a.b' does not match"),
    ("openai", [USER, said("a", arguments={"a": 1}), result("a")], "expected a string with JSON"),
    ("anthropic", [USER, used("a", arguments="{}"), results("a")], "an object is required"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "items", "problem"), INVALID)
def test_invalid_transcripts_are_rejected(dialect, items, problem):
    """Each request is rejected with the path and the reason."""
    assert any(problem in found for found in problems(dialect, items)), problems(dialect, items)


SETTINGS = [
    ("openai", {"temperature": 3}, "temperature"),
    ("openai", {"stream_options": {"include_usage": True}}, "only allowed when stream"),
    ("openai", {"tools": []}, "tools: empty array"),
    ("openai", {"tools": [{"type": "function", "function": {"name": "a.b"}}]}, "'a.b' does not match"),
    ("openai", {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]}, "object"),
    ("openai", {"tools": [{"type": "function", "function": {"name": "a"}}] * 2}, "a occurs twice"),
    ("openai", {"model": ""}, "model: field required"),
    ("openai-responses", {"tools": [{"type": "function", "name": "a.b"}]}, "'a.b' does not match"),
    ("anthropic", {"temperature": 1.5}, "temperature"),
    ("anthropic", {"max_tokens": None}, "max_tokens: field required"),
    ("anthropic", {"max_tokens": 0}, "max_tokens"),
    ("anthropic", {"system": [{"type": "text", "text": ""}]}, "non-empty"),
    ("anthropic", {"tools": [{"name": "a"}]}, "input_schema"),
    ("anthropic", {"tools": [{"name": "a", "input_schema": PARAMETERS}] * 2}, "a occurs twice"),
    ("anthropic", {"tools": [{"name": "a", "input_schema": {}}]}, "input_schema.type"),
    ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 10}}, "greater than thinking.budget_tokens"),
    ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 1}, "temperature": 0.5}, "only be set to 1"),
    ("anthropic", {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5}, "found 5"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "settings", "problem"), SETTINGS)
def test_invalid_settings_are_rejected(dialect, settings, problem):
    """The check includes the settings outside of the conversation."""
    assert any(problem in found for found in problems(dialect, [USER], **settings))


@pytest.mark.parametrize("dialect", ["openai", "openai-responses", "anthropic"])
@pytest.mark.parametrize("junk", [None, 7, "x", [None], [[]], [{}], [{"role": None, "content": 7}], {"a": 1}])
def test_junk_is_reported_without_an_exception(dialect, junk):
    """For any value in place of the messages, the check returns problems."""
    found = problems(dialect, junk)
    assert found or (dialect, junk) == ("openai-responses", "x")


def test_earlier_calls_may_be_in_a_stored_response():
    """With previous_response_id, a result without its call is valid, once."""
    assert problems("openai-responses", [output("a")], previous_response_id="resp_1") == []
    assert problems("openai-responses", [output("a"), output("a")], previous_response_id="resp_1")


def test_messages_alone_can_be_checked():
    """Without a request, only the conversation is checked."""
    assert check_transcript([USER], "anthropic") == []
    assert check_transcript([USER, used("a")], "anthropic")
    assert check_transcript([USER, call("a")], "openai-responses")


def test_an_unknown_dialect_is_an_error():
    """The messages do not contain their dialect, so the caller must name a known one."""
    with pytest.raises(ConfigurationError, match="openai-responses"):
        check_transcript([USER])


# --- neutral conversations ---------------------------------------------------------------

ASK = ChatMessage("user", (Text("What is 2 + 3?"),))
CALL = ChatMessage(
    "assistant", (Text("Let me see."), ToolCall("add", {}, id="a"), ToolCall("now", {}, id="b"))
)


def neutral_results(*keys):
    return ChatMessage("tool", tuple(ToolResult(call_id=key, tool_name="add") for key in keys))


def test_valid_neutral_conversations_are_accepted():
    """Results may be in one message or in several. A picture is sufficient content."""
    assert_valid_transcript([ASK, CALL, neutral_results("b", "a")])
    assert_valid_transcript([ASK, CALL, neutral_results("a"), neutral_results("b"), ASK])
    assert_valid_transcript(
        ModelRequest(messages=(ChatMessage("user", (Image(media_type="image/png", url="x"),)),))
    )


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "at least one message"),
        ([CALL, neutral_results("a", "b")], "must be the user's"),
        ([ASK, CALL, neutral_results("a")], "after it for b"),
        ([ASK, neutral_results("a")], "does not call"),
        ([ASK, CALL, neutral_results("a", "b"), CALL, neutral_results("a", "b")], "a occurs twice"),
        ([ASK, ChatMessage("assistant", (Text("5"),))], "prefill"),
        ([ASK, ChatMessage("user", (Text(" "),))], "empty content"),
        ([ASK, ChatMessage("user", ())], "empty content"),
        ([ASK, ChatMessage("user", (ToolCall("add", {}, id="a"),)), neutral_results("a")], "role user"),
    ],
)
def test_invalid_neutral_conversations_are_rejected(messages, problem):
    """A neutral conversation must be valid for every provider."""
    assert any(problem in found for found in check_transcript(messages))
    with pytest.raises(AssertionError, match="not valid"):
        assert_valid_transcript(messages)


def test_calls_in_text_need_no_native_result():
    """A call in the text of an answer is not a native call, so it needs no result message."""
    asked = ChatMessage("assistant", (Text("{...}"), ToolCall("add", {}, id="a", native=False)))
    message = ChatMessage("user", (ToolResult(call_id="a", tool_name="add", content="5", native=False),))
    assert check_transcript([ASK, asked, message]) == []


def test_each_provider_has_a_dialect():
    """The loopback provider can replace each provider in a model name, and checks its requests."""
    assert set(PROVIDER_APIS) == {dialect_of(provider) for provider in PROVIDERS}
