"""Strict parsing of native arguments, record bytes, tool names, and brain.md."""

import json

import msgpack
import pytest
from hypothesis import given, strategies as st

from actgent import (
    AgentBuilder,
    Anthropic,
    BareAgent,
    FunctionTool,
    GoalAgent,
    InvalidFolder,
    Limits,
    OpenAI,
    OpenAIResponses,
    PlanAgent,
    ReActAgent,
    ScriptedLLM,
    SimpleAgent,
    StepsAgent,
    ToolCall,
    WireError,
    tool,
)
from actgent.journal.record_types import WIRE, AgentMessageRecord, MessageAppendedRecord, Record
from actgent.llm.http.wire_encoding import check_decoded, read_arguments
from actgent.messages import Message, Sender, Text
from actgent.testing import open_provider

# --- native arguments ----------------------------------------------------------------------------

BAD = [
    '{"n": NaN}',
    '{"n": Infinity}',
    '{"n": -Infinity}',
    '{"n": 1, "n": 2}',
    '{"n": 9E9999}',
    '{"n": {"a": 1, "a": 1}}',
]


def counting():
    ran = []

    async def take(**arguments):
        ran.append(arguments)
        return "taken"

    parameters = {"type": "object", "properties": {"n": {}}}
    return ran, FunctionTool("take", "d", take, parameters=parameters)


@pytest.mark.parametrize("arguments", BAD)
@pytest.mark.parametrize("client", [OpenAI, OpenAIResponses, Anthropic])
@pytest.mark.parametrize("stream", [True, False])
async def test_invalid_native_arguments_run_no_tool(client, stream, arguments):
    """Arguments that are invalid or ambiguous JSON run no tool, and the model reads the reason."""
    ran, take = counting()
    async with open_provider([[ToolCall("take", arguments)], "ok"]) as provider:
        llm = client("m", base_url=provider.base_url, api_key="k-held-out", stream=stream)
        async with BareAgent("a", llm=llm, tools=[take]) as agent:
            session = await agent.create_session("u", "x")
            results = []
            session.on_tool_result(results.append)
            session.on_exception(lambda _: None)
            await session.wait_idle()
        await llm.aclose()
    assert ran == []
    for result in results:
        assert "must be a JSON object (" in result.error


@pytest.mark.parametrize("arguments", BAD)
def test_invalid_arguments_are_returned_as_text(arguments):
    """Invalid arguments are returned as text, valid ones as an object."""
    assert read_arguments(arguments) == arguments
    assert read_arguments('{"n": -0.0, "m": 1}') == {"n": -0.0, "m": 1}


@pytest.mark.parametrize(
    "body", ['{"content":[{"type":"tool_use","input":{"n":1,"n":2}}]}', '{"arguments": {"n":1,"n":2}}']
)
def test_repeated_key_in_decoded_arguments_is_detected(body):
    """A repeated key is detected in the response body, because decoded arguments have lost it."""
    with pytest.raises(ValueError, match=r"same key"):
        _checked(body)
    _checked(body.replace('"n":2', '"m":2'))


def _checked(body):
    try:
        check_decoded(body.encode())
    except Exception as error:
        raise ValueError(str(error)) from error


# --- names of tools ------------------------------------------------------------------------------

NAME = "delete_all "
CALLS = {
    SimpleAgent: {"messageType": "TOOL_INVOCATION", "content": {"name": NAME, "parameters": {}}},
    ReActAgent: {
        "primary_action": {"response_purpose": "TOOL_INVOCATION", "response_content": {"name": NAME}}
    },
    StepsAgent: {"tool_calls": [{"tool_name": NAME, "parameters": {}}]},
    PlanAgent: {"intent": "i", "toolCalls": [{"toolName": NAME, "arguments": {}}]},
}


@pytest.mark.parametrize("make", [*CALLS, BareAgent, GoalAgent])
@pytest.mark.parametrize("name", [NAME, " delete_all", "Delete_All", "delete_all\n", "delete\u200b_all"])
async def test_names_of_tools_are_exact(make, name):
    """A misspelled tool name runs no tool in any protocol, and the model reads the existing names."""
    ran = []

    @tool(thread=False)
    def delete_all() -> str:
        """Delete all."""
        ran.append(1)
        return "deleted"

    answer = (
        json.dumps(CALLS[make]).replace(json.dumps(NAME), json.dumps(name))
        if make in CALLS
        else ToolCall(name, {})
    )
    llm = ScriptedLLM([answer], repeat=True)
    async with make("a", llm=llm, tools=[delete_all], limits=Limits(model_calls=2)) as agent:
        session = await agent.create_session("u", "x")
        session.on_exception(lambda _: None)
        await session.wait_idle()
    assert ran == []
    assert "not found; existing tools: delete_all" in repr(list(llm.chats[1].messages))


# --- bytes ---------------------------------------------------------------------------------------

WHOLE = WIRE.encode(
    [
        AgentMessageRecord(message=Message(session_id="s", sender=Sender("ada"), parts=(Text("hi"),))),
        MessageAppendedRecord(message_id="m"),
    ],
    Record,
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8) | st.integers(0, 9) | st.sampled_from(["message", "parts", "sender"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def decoded(data):
    text = ""
    try:
        WIRE.decode(data, Record)
    except WireError as error:
        text = str(error)
    assert text.isprintable()
    assert len(text) < 2_000


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_raise_wire_error(data):
    """Any bytes decode to records or raise `WireError`."""
    decoded(data)


@given(
    st.lists(
        st.tuples(st.sampled_from(["said", "appended", "x", "", 1]), PLAIN).map(list) | PLAIN, max_size=3
    )
)
def test_any_msgpack_value_decodes_or_raises_wire_error(values):
    """Any msgpack value in place of a record decodes or raises `WireError`."""
    decoded(msgpack.packb(values, strict_types=True))


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_changed_byte_decodes_or_raises_wire_error(place, byte):
    """Valid records with one changed byte decode or raise `WireError`."""
    decoded(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :])


def test_non_text_keys_raise_wire_error():
    """Keys that are not text raise `WireError`; formatting that error must not fail."""
    for value in ({1: 2}, {b"x": 1}, {None: 1}, {1.5: [1]}):
        with pytest.raises(WireError):
            WIRE.decode(msgpack.packb([["said", value]]), Record)


# --- brain.md ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "line", "reason"),
    [
        ('role: r\nname: "a\\tb"', 3, "printable"),
        ('name: "a\\u202eb"', 2, "printable"),
        ("name: a\nlimits:\n  model_calls: 1.0", 4, "whole number"),
        ("name: a\nlimits: {output_retries: 1e1}", 3, "whole number"),
        ("name: a\nlimits:\n  answer_calls: 0", 4, "minimum"),
        ('name: a\nllm: "openai:"', 3, "empty"),
        ('name: a\nllm:\n  model: " "', 4, "empty"),
        ('name: a\nllm:\n  model: openai:x\n  base_url: "http://[::1"', 5, "not an http"),
    ],
)
def test_an_error_in_brain_md_has_its_line(tmp_path, head, line, reason):
    """Values that would fail only in the constructor are also reported with their line."""
    (tmp_path / "brain.md").write_text(f"---\n{head}\n---\nbody\n")
    with pytest.raises(InvalidFolder) as caught:
        AgentBuilder.from_folder(tmp_path)
    (problem,) = caught.value.problems
    assert problem.line == line
    assert reason in problem.reason


def test_all_limits_can_be_set_in_brain_md(tmp_path):
    """brain.md accepts the limits of one answer too."""
    (tmp_path / "brain.md").write_text("---\nname: a\nlimits: {answer_calls: 3, argument_bytes: 9}\n---\n")
    agent = AgentBuilder.from_folder(tmp_path).build(llm=ScriptedLLM(["x"]))
    assert agent is not None
