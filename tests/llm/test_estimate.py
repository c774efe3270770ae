"""Token estimates of a prompt before its provider has counted it."""

from actgent.llm.model_interface import ChatMessage, ModelRequest, ResponseFormat
from actgent.llm.prompt_token_estimator import PromptEstimator
from actgent.messages import Image, Text, ToolCall, ToolResult, ToolSpec


def estimate(*parts, **fields):
    return PromptEstimator().tokens(ModelRequest(messages=(ChatMessage("user", parts),), **fields))


def test_three_bytes_are_a_token():
    """One Chinese character has three bytes and counts as one token."""
    assert estimate(Text("abc" * 100)) == estimate(Text("")) + 100
    assert estimate(Text("\u4f60" * 100)) == estimate(Text("")) + 100


def test_estimate_counts_all_parts_of_a_prompt():
    """System prompt, tools, schemas, calls, results and images are counted."""
    bare = estimate(Text("x"))
    spec = ToolSpec("add", "Add two integers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
    assert estimate(Text("x"), system="Be kind. " * 20) > bare + 50
    assert estimate(Text("x"), tools=(spec,)) > bare + 20
    assert estimate(Text("x"), response_format=ResponseFormat("out", {"type": "object"})) > bare
    assert estimate(Text("x"), ToolCall("add", {"a": 2, "b": 3})) > bare + 5
    assert estimate(Text("x"), ToolResult(call_id="c", tool_name="add", content="5" * 300)) > bare + 100
    assert estimate(Text("x"), Image(media_type="image/png", data=b"x")) > bare + 1000


def test_tools_are_estimated_once():
    """The estimate of tools is cached for the same object."""
    estimator = PromptEstimator()
    one, two = (ToolSpec("a", "b" * 300, {}),), (ToolSpec("a", "b" * 600, {}),)
    first = estimator.tokens(ModelRequest(tools=one))
    assert estimator.tokens(ModelRequest(tools=one)) == first
    assert estimator.tokens(ModelRequest(tools=two)) > first + 90
    assert estimator.tokens(ModelRequest(tools=one)) == first
