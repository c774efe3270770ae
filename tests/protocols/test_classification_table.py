"""The classification table of the specification (section 0.3). Each test checks a row against its `want` column."""

import json

import pytest

from actgent.errors import AnswerError, EmptyAnswer, ParseError
from actgent.messages import Event, Route, ToolCall
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.protocol_interface import CallTools, SendReply
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.router_protocol import Router
from actgent.protocols.simple_protocol import Simple

from .conftest import read

BARE, SIMPLE, REACT, ROUTER = Bare(), Simple(), ReAct(), Router()
ALL = (BARE, SIMPLE, REACT, ROUTER)
JSON_ONLY = (SIMPLE, REACT, ROUTER)
GREETING = '{"messageType":"greeting","content":"hi"}'
CREATION = {"name": "n", "goal": "g", "caps": ["c"]}
REASONED = {"question_nature": "SIMPLE", "context": "c"}


def native(*arguments, **more):
    calls = [
        {"type": "function", "function": {"name": "add", "arguments": text}} | more for text in arguments
    ]
    return json.dumps(calls)


def action(purpose, **members):
    return json.dumps(
        {
            "question_nature": "SIMPLE",
            "context": "c",
            "primary_action": {"response_purpose": purpose, **members},
        }
    )


def said(outcomes):
    return [outcome.text for outcome in outcomes if isinstance(outcome, SendReply)]


def calls(outcomes):
    return [
        (call.name, call.arguments)
        for outcome in outcomes
        if isinstance(outcome, CallTools)
        for call in outcome.calls
    ]


@pytest.mark.parametrize(
    ("row", "text", "shown"),
    [
        (1, "hello", "hello"),
        (2, "", ""),
        (3, "42", "42"),
        (3, '"hi"', "hi"),
        (5, "{}", "{}"),
        (6, '{"text":"t"}', "t"),
        (6, '{"content":"c"}', "c"),
        (7, '{"foo":1}', '{"foo":1}'),
        (8, "[1,2]", "[1,2]"),
        (14, GREETING, "hi"),
        (15, '{"messageType":"zzz","content":"hi"}', "hi"),
        (16, '{"messageType":"creation","content":"x"}', "x"),
        (18, f"```json\n{GREETING}\n```", "hi"),
        (1, "between [0 and", "between [0 and"),
        (1, "{oops}", "{oops}"),
    ],
)
def test_bare_returns_one_conversation(row, text, shown):
    """Bare returns one conversation with the first classification type."""
    (reply,) = read(BARE, text)
    assert (reply.text, reply.message_type) == (shown, "greeting"), row


@pytest.mark.parametrize(
    ("row", "protocol", "text"),
    [
        (row, protocol, text)
        for row, text in [(3, "42"), (3, '"hi"'), (5, "{}"), (7, '{"foo":1}')]
        for protocol in JSON_ONLY
    ]
    + [(row, protocol, "[1,2]") for row, protocol in [(8, SIMPLE), (8, REACT), (8, ROUTER)]]
    + [(4, protocol, "null") for protocol in ALL]
    + [(6, protocol, text) for text in ('{"text":"t"}', '{"content":"c"}') for protocol in JSON_ONLY]
    + [
        (1, SIMPLE, "hello"),
        (1, REACT, "hello"),
        (14, REACT, GREETING),
        (18, REACT, f"```json\n{GREETING}\n```"),
    ]
    + [(15, SIMPLE, '{"messageType":"zzz","content":"hi"}'), (20, SIMPLE, action("TOOL_INVOCATION"))]
    + [
        (25, REACT, action("DIRECT_RESPONSE", response_description="d")),
        (25, REACT, action("TOOL_INVOCATION")),
    ]
    + [
        (28, ROUTER, text)
        for text in (
            '{"top_level_intent":"CONVERSATION"}',
            '{"top_level_intent":"ACTION"}',
            '{"top_level_intent":"FOO"}',
            '{"top_level_intent":5}',
            "5",
        )
    ],
)
def test_unreadable_answer_reaches_the_exception_handlers(row, protocol, text):
    """The answer is passed to the exception handlers."""
    with pytest.raises(ParseError):
        read(protocol, text)
    assert row


@pytest.mark.parametrize("protocol", JSON_ONLY)
def test_row_2_empty_answer_raises_a_specific_error(protocol):
    """Every JSON protocol raises an error that names the empty answer."""
    with pytest.raises(EmptyAnswer):
        read(protocol, " \n")


def test_unknown_types_are_named():
    """The reason names the unknown type, so that the model can correct it."""
    with pytest.raises(ParseError, match="Unknown messageType: zzz"):
        read(SIMPLE, '{"messageType":"zzz","content":"hi"}')
    with pytest.raises(ParseError, match="missing messageType"):
        read(SIMPLE, '{"foo":1}')


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize(
    ("row", "text", "expected"),
    [
        (9, native('{"a":1}', id="x"), [("add", {"a": 1})]),
        (10, native('{"a":1}', '{"a":2}', id="x"), [("add", {"a": 1}), ("add", {"a": 2})]),
        (11, f'{{"tool_calls":{native(json.dumps({"a": 1}), id="x")}}}', [("add", {"a": 1})]),
        (12, native("{bad", id="x"), [("add", "{bad")]),
        (13, native('{"a":1}'), [("add", {"a": 1})]),
    ],
)
def test_rows_9_to_13_native_calls_in_text(protocol, row, text, expected):
    """Every protocol reads calls in the provider's form. Undecodable arguments stay text."""
    assert calls(read(protocol, text)) == expected, row


@pytest.mark.parametrize("protocol", ALL)
def test_text_calls_are_marked_as_such(protocol):
    """Calls from text get ids from the core, their results are sent as text, and they cannot run an instruction's tool."""
    (outcome,) = read(protocol, native("{}", id="theirs"))
    assert outcome.calls == [ToolCall("add", {}, id="", provider_id="theirs", native=False, mapped=False)]


def test_row_14_simple_returns_text_and_router_an_event():
    """Simple returns one conversation. The router returns an event."""
    (reply,) = read(SIMPLE, GREETING)
    assert (reply.text, reply.message_type) == ("hi", "greeting")
    assert read(ROUTER, GREETING) == [Event(name="greeting", data="hi")]


def test_row_15_router_reports_unknown_types():
    """The router returns an event for each typed answer."""
    assert read(ROUTER, '{"messageType":"zzz","content":"hi"}') == [Event(name="zzz", data="hi")]


@pytest.mark.parametrize("protocol", [SIMPLE, ROUTER])
def test_row_16_mapped_type_with_text_runs_no_tool(protocol):
    """The outcomes are an event, a conversation and the tool's call. Text does not match the schema, so the call never runs."""
    event, reply, tools = read(protocol, '{"messageType":"creation","content":"x"}')
    assert (event, reply.text) == (Event(name="creation", data="x"), "x")
    assert tools.calls == [ToolCall("AgentGenerator", "x", native=False, mapped=True)]


def test_row_17_simple_reads_a_tool_call():
    """TOOL_INVOCATION is read as a call with its parameters."""
    text = '{"messageType":"TOOL_INVOCATION","content":{"name":"add","parameters":{"a":1}}}'
    assert calls(read(SIMPLE, text)) == [("add", {"a": 1})]
    assert calls(read(BARE, text)) == []


def test_row_18_fence_does_not_change_the_outcomes():
    fenced = f"```json\n{GREETING}\n```"
    assert read(SIMPLE, fenced) == read(SIMPLE, GREETING)
    assert read(ROUTER, fenced) == read(ROUTER, GREETING)


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("length", range(14, len(GREETING)))
def test_row_19_cut_answer_is_truncated(protocol, length):
    """Each protocol reports a cut answer as truncated."""
    with pytest.raises(AnswerError, match="truncated"):
        read(protocol, GREETING[:length])


@pytest.mark.parametrize(
    ("row", "content", "expected"),
    [
        (20, {"name": "add", "parameters": {"a": 1}}, [("add", {"a": 1})]),
        (21, {"name": "add"}, [("add", {})]),
        (0, [{"name": "add"}, {"name": "sub", "parameters": {"b": 1}}], [("add", {}), ("sub", {"b": 1})]),
    ],
)
def test_rows_20_21_react_reads_one_call_or_parallel_calls(row, content, expected):
    assert calls(read(REACT, action("TOOL_INVOCATION", response_content=content))) == expected, row


def test_row_22_direct_answer_with_a_known_type_is_a_conversation():
    """The outcome is one conversation with the description as its text."""
    (reply,) = read(
        REACT, action("DIRECT_RESPONSE", response_content={"content": "hi"}, response_description="desc")
    )
    assert reply == SendReply(
        text="desc", data={"content": "hi"}, message_type="greeting", reasoning=REASONED
    )


def test_row_23_direct_answer_with_a_mapped_type_runs_its_tool():
    """The outcomes are an event, a conversation, and the call of the instruction's tool with the validated structure."""
    named = {"messageType": "creation", **CREATION}
    outcomes = read(REACT, action("DIRECT_RESPONSE", response_content=named, response_description="desc"))
    assert outcomes[0] == Event(name="creation", data=CREATION)
    assert said(outcomes) == ["desc"]
    assert outcomes[-1].calls == [ToolCall("AgentGenerator", CREATION, native=False, mapped=True)]


def test_row_23_a_mapped_type_without_its_name_is_asked_again():
    """With several types, data that matches a type with a tool is retried until the answer names the type."""
    with pytest.raises(ParseError, match="does not name its type"):
        read(REACT, action("DIRECT_RESPONSE", response_content=CREATION, response_description="desc"))


def test_row_24_empty_list_matches_no_type():
    """An empty list matches no type, so the content is unchanged and no tool runs."""
    content = CREATION | {"caps": []}
    outcomes = read(REACT, action("DIRECT_RESPONSE", response_content=content, response_description="desc"))
    assert outcomes == [SendReply(text="desc", data=content, reasoning=REASONED)]


def test_rows_26_27_router_reads_intents_and_actions():
    """The intent of a conversation is read in any case. An action is a route with its text."""
    assert read(ROUTER, "hello") == [SendReply(text="hello")]
    assert read(ROUTER, '{"top_level_intent":"conversation","response":"hey"}') == [SendReply(text="hey")]
    text = '{"top_level_intent":"ACTION","second_level_intent":"creation","response":"ok"}'
    assert read(ROUTER, text) == [Route(action="creation"), SendReply(text="ok")]
