"""Inputs of each protocol that are not in the table, and the visible text of a partial answer."""

import json

import pytest

from actgent.errors import EmptyAnswer, ParseError
from actgent.messages import Event, Route, ToolCall
from actgent.protocols.answer_content_parsing import parse_encoded_calls
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.protocol_interface import CallTools, ClassificationType, Profile, SendReply
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.router_protocol import Router
from actgent.protocols.simple_protocol import Simple

from .conftest import read

CREATION = {"name": "n", "goal": "g", "caps": ["c"]}


def simple(kind, content, **more):
    return json.dumps({"messageType": kind, "content": content} | more)


REASONED = {"question_nature": "SIMPLE", "context": "{x}"}


def direct(description, content="c", purpose="DIRECT_RESPONSE"):
    action = {"response_purpose": purpose, "response_description": description, "response_content": content}
    return json.dumps({"question_nature": "SIMPLE", "context": "{x}", "primary_action": action})


def shown(protocol, text):
    """Return all texts that are shown while a text grows by one character at a time."""
    return [part for length in range(len(text) + 1) if (part := protocol.partial(text[:length]))]


# --- native calls in text -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
            }
        ],
        {"tool_calls": [{"name": "f", "description": "d", "parameters": {"type": "object"}}]},
        [{"name": "f", "arguments": {}}],
        [{"type": "function", "function": {"name": "f", "arguments": "{}"}}, 1],
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "custom", "function": {"name": "f"}}],
        {"tool_calls": [{"name": "f", "arguments": {}}]},
        {"tool_calls": []},
        {"tool_calls": "f"},
        {"function": {"name": "f", "arguments": {}}},
    ],
)
def test_similar_texts_are_not_native_calls(value):
    """Descriptions of functions, foreign forms and incomplete lists are not calls."""
    assert parse_encoded_calls(json.dumps(value)) is None


def test_native_calls_in_prose_do_not_run():
    """A native call within prose or in Python syntax is an example or broken, and never runs."""
    text = '[{"type": "function", "function": {"name": "f", "arguments": "{}"}}]'
    assert (
        parse_encoded_calls(text)
        == parse_encoded_calls(f"```json\n{text}\n```")
        == CallTools([ToolCall("f", {}, native=False)])
    )
    assert parse_encoded_calls(f"For example: {text}") is None
    assert parse_encoded_calls(text.replace('"type"', "'type'")) is None


ADD, SUB = (ToolCall(name, {"a": 1}, native=False) for name in ("add", "sub"))
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
DEEPSEEK = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (HERMES, [ADD]),
        (f"{HERMES}\n{HERMES.replace('add', 'sub')}", [ADD, SUB]),
        (f"<think>I add: <tool_call></think>\n{HERMES}", [ADD]),
        (DEEPSEEK, [ADD]),
        (
            f"<｜tool▁calls▁begin｜>{DEEPSEEK}\n{DEEPSEEK.replace('add', 'sub')}<｜tool▁calls▁end｜>",
            [ADD, SUB],
        ),
    ],
)
@pytest.mark.parametrize(
    "protocol", [Bare(), Simple(), ReAct(), Router()], ids=lambda protocol: protocol.name
)
def test_calls_in_server_markers_run(protocol, text, calls):
    """Marked calls run in every protocol, as if the server had parsed them."""
    assert read(protocol, text) == [CallTools(calls)]


@pytest.mark.parametrize(
    "text",
    [
        f"For example: {HERMES}",
        f"{HERMES} is an example.",
        HERMES.removesuffix("</tool_call>"),
        HERMES.replace('{"a": 1}', '{"a": 1'),
        HERMES.replace('"a"', "'a'"),
        HERMES.replace('{"a": 1}', "[1]"),
        HERMES.replace('"add"', '" "'),
        HERMES.replace('"name"', '"id": 1, "name"'),
        f"{HERMES}<tool_call>",
        "<tool_call></tool_call>",
        DEEPSEEK.replace("}", ""),
        DEEPSEEK.removesuffix("<｜tool▁call▁end｜>"),
        f"<｜tool▁calls▁begin｜>{DEEPSEEK.replace('function', 'code')}<｜tool▁calls▁end｜>",
        "<tool_call>{" * 20_000,
    ],
)
def test_incomplete_marked_calls_never_run(text):
    """Examples and broken or cut calls never run."""
    assert parse_encoded_calls(text) is None


# --- bare -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[1] says so",
        "{braces} begin it",
        "`code` begins it",
        '"So," he said.',
        "nothing",
        "<b>bold</b>",
        "```python\nx = {}\n```",
    ],
)
def test_bare_keeps_text(text):
    """Text with a JSON-like beginning is returned completely as text."""
    assert read(Bare(), text) == [SendReply(text=text, message_type="greeting")]


def test_bare_without_types_has_no_type():
    """The message type is the name of the first type, or None without types."""
    assert read(Bare(), "hi", profile=Profile()) == [SendReply(text="hi")]


def test_bare_reply_contains_no_thoughts():
    """Thoughts in tags are not part of the reply and not of its tokens."""
    assert read(Bare(), "<think>hm</think>\n\nhi") == [SendReply(text="hi", message_type="greeting")]
    assert read(Bare(), "hm\n</think>\n\nhi") == [SendReply(text="hi", message_type="greeting")]
    assert shown(Bare(), "<think>hm</think>hi")[-2:] == ["h", "hi"]


def test_bare_answer_of_thoughts_only_is_empty():
    """An answer of thoughts only is empty. An empty text in JSON is returned as an empty text."""
    with pytest.raises(EmptyAnswer):
        read(Bare(), "<think>so many")
    assert read(Bare(), '{"text": ""}') == [SendReply(text="", data={"text": ""}, message_type="greeting")]


def test_bare_shows_partial_text_unchanged():
    assert shown(Bare(), "hey") == ["h", "he", "hey"]


# --- simple ---------------------------------------------------------------------------------------


def test_simple_direct_response_is_a_conversation():
    assert read(Simple(), simple("DIRECT_RESPONSE", "hi")) == [
        SendReply(text="hi", message_type="DIRECT_RESPONSE")
    ]
    with pytest.raises(ParseError, match="must be text"):
        read(Simple(), simple("DIRECT_RESPONSE", {"a": 1}))


@pytest.mark.parametrize("text", [simple("creation", CREATION), simple("creation", "making it", **CREATION)])
def test_simple_valid_structure_runs_its_tool(text):
    """A valid structure runs the instruction's tool, whether it is the content or next to the content."""
    event, *_, tools = read(Simple(), text)
    (call,) = tools.calls
    assert (event.name, call.name, call.mapped, call.native) == ("creation", "AgentGenerator", True, False)
    assert event.data == call.arguments
    assert call.arguments.items() >= CREATION.items()


def test_simple_invalid_structure_is_rejected():
    """A structure of a known type must be valid. The reason contains the path."""
    with pytest.raises(ParseError, match="content of 'creation': /caps: must be a list"):
        read(Simple(), simple("creation", CREATION | {"caps": []}))


def test_simple_instruction_without_a_schema_accepts_any_content():
    """An instruction without a schema accepts any content. Text becomes the argument `content`."""
    profile = Profile(types=[ClassificationType(name="note", tool="save")])
    event, reply, tools = read(Simple(), simple("note", "buy milk"), profile=profile)
    assert (event, reply.text) == (Event(name="note", data="buy milk"), "buy milk")
    assert tools.calls == [ToolCall("save", {"content": "buy milk"}, native=False, mapped=True)]


def test_simple_structure_without_text_is_an_event():
    """A structure without a tool and without text is an event, so raw JSON is never shown."""
    profile = Profile(types=[ClassificationType(name="mood", schema={"joy": "<0 to 1>"})])
    assert read(Simple(), simple("mood", {"joy": 1}), profile=profile) == [
        Event(name="mood", data={"joy": 1})
    ]


@pytest.mark.parametrize(
    "content", [{}, {"name": ""}, {"name": 1}, {"name": "f", "parameters": "{}"}, [], "f", [1]]
)
def test_simple_invalid_tool_calls_are_retried(content):
    """A tool call without a name, or with parameters that are not an object, is retried."""
    with pytest.raises(ParseError):
        read(Simple(), simple("TOOL_INVOCATION", content))


def test_simple_rejects_two_different_answers():
    """Prose around one answer is accepted. Two different answers are rejected."""
    text = simple("greeting", "hi")
    assert read(Simple(), f"Sure {{so}}: {text} done") == read(Simple(), text)
    with pytest.raises(ParseError, match="different"):
        read(Simple(), f"{text} or {simple('greeting', 'bye')}")


def test_simple_shows_growing_content():
    """Only the content of a known type other than a tool call is shown. JSON is never shown."""
    assert shown(Simple(), simple("greeting", "hi\nyou"))[-1] == "hi\nyou"
    assert all(not part.startswith("{") for part in shown(Simple(), simple("greeting", "hi")))
    assert shown(Simple(), simple("TOOL_INVOCATION", {"name": "f", "parameters": {"content": "x"}})) == []
    assert shown(Simple(), '{"content": "hidden", "messageType": "TOOL_INVOCATION"}') == []
    assert shown(Simple(), "plain words with content") == []
    assert shown(Simple(), f"```json\n{simple('greeting', 'hi')}\n```")[-1] == "hi"


# --- react ----------------------------------------------------------------------------------------


def test_react_content_alone_may_be_the_text():
    """Without a description, text content is the reply. A structure without a description is rejected."""
    assert read(ReAct(), direct(None, "hi")) == [SendReply(text="hi", reasoning=REASONED)]
    with pytest.raises(ParseError, match="response_description"):
        read(ReAct(), direct(None, {"a": 1}))
    with pytest.raises(ParseError, match="response_purpose"):
        read(ReAct(), direct("d", "c", purpose="THINK"))


def test_react_empty_form_matches_nothing():
    """A type without a schema matches no data."""
    profile = Profile(types=[ClassificationType(name="any", tool="danger")])
    assert read(ReAct(), direct("d", {"a": 1}), profile=profile) == [
        SendReply(text="d", data={"a": 1}, reasoning=REASONED)
    ]


def test_react_reads_lines_of_the_paper():
    """The lines of the ReAct paper have the same outcomes as the object."""
    text = 'Thought: sum\nAction: add\nAction Input: {"a": 1}'
    assert read(ReAct(), text) == [CallTools([ToolCall("add", {"a": 1}, native=False)])]
    assert read(ReAct(), f"{text}\nObservation: 3\nFinal Answer: 3") == read(ReAct(), text)
    assert read(ReAct(), "Thought: easy\nFinal Answer: it is 3\nindeed") == [
        SendReply(text="it is 3\nindeed")
    ]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("```\nThought: easy\nFinal Answer: it is 3\n```", "it is 3"),
        ("```\nFinal Answer: so:\n```py\n3\n```\n```", "so:\n```py\n3\n```"),
        ("```\nFinal Answer: so:\n```py\n3\n```", "so:\n```py\n3\n```"),
        ("Final Answer: a block begins with ```", "a block begins with ```"),
    ],
)
def test_outer_fence_is_not_part_of_a_react_answer(text, answer):
    """The end of an outer fence is not part of the final answer. A fence inside the answer is part of it."""
    assert read(ReAct(), text) == [SendReply(text=answer)]


@pytest.mark.parametrize(
    "text",
    [
        'Action: add\nAction Input: {"a": 1',
        "Action: add\nAction Input: 1 and 2",
        "Action: add\nAction Input: {'a': 1}",
        'Action: add\nAction Input: {"a": 1} or {"a": 2}',
        "Action: add",
        'Action: \nAction Input: {"a": 1}',
        'Action: add\nAction Input: {"a": 1}\nFinal Answer: 3',
        'Action: add\nAction Input: {"a": 1}\nAction: sub\nAction Input: {}',
        "Thought: hm",
        'Final Answer: {"a": 1}',
        "Final Answer:",
        '{"primary_action": 1}\nFinal Answer: x',
    ],
)
def test_react_retries_ambiguous_lines(text):
    """A cut or ambiguous input, or an input that is not an object, never runs and is never shown."""
    with pytest.raises(ParseError):
        read(ReAct(), text)


def test_react_shows_growing_text():
    """The description of a direct response or a final answer is shown after its type is known."""
    assert shown(ReAct(), direct("hello you"))[-1] == "hello you"
    assert all("hello you".startswith(part) for part in shown(ReAct(), direct("hello you")))
    assert shown(ReAct(), direct("calling f", {"name": "f"}, purpose="TOOL_INVOCATION")) == []
    assert shown(ReAct(), "Thought: easy\nFinal Answer: it is 3")[-1] == "it is 3"
    assert shown(ReAct(), "Action: f\nAction Input: {}\nObservation: 3\nFinal Answer: 3") == []
    assert shown(ReAct(), "hello") == []


# --- router ---------------------------------------------------------------------------------------


def test_router_action_gets_its_data():
    """The action gets `data`, or all other members."""
    base = {"top_level_intent": "Action", "second_level_intent": "book"}
    assert read(Router(), json.dumps(base | {"data": {"a": 1}})) == [Route(action="book", data={"a": 1})]
    assert read(Router(), json.dumps(base | {"city": "Oslo"})) == [
        Route(action="book", data={"city": "Oslo"})
    ]


@pytest.mark.parametrize(
    "text", ['"Hello" is a greeting', "see [1]", "use {this}", "```python\nx\n```", "in 2024."]
)
def test_router_accepts_prose(text):
    """Plain text is a reply, with all of its punctuation."""
    assert read(Router(), text) == [SendReply(text=text)]


@pytest.mark.parametrize(
    "text", ['So: {"foo": 1}', '{"foo": 1}', "{foo}", 'Well, {"top_level_intent": "ACT', "true"]
)
def test_router_never_shows_json(text):
    """An object in the wrong form is retried and not shown."""
    with pytest.raises(ParseError):
        read(Router(), text)


def test_router_validates_a_mapped_type():
    """A typed answer with a tool is validated as in `simple`."""
    event, tools = read(Router(), simple("creation", CREATION))
    assert event == Event(name="creation", data=CREATION)
    assert tools.calls == [ToolCall("AgentGenerator", CREATION, native=False, mapped=True)]
    with pytest.raises(ParseError, match="/caps"):
        read(Router(), simple("creation", CREATION | {"caps": []}))


def test_router_shows_growing_response():
    """The partial response of a conversation is shown. The text of an action is shown after its end."""
    assert shown(Router(), '{"top_level_intent": "CONVERSATION", "response": "hey"}')[-1] == "hey"
    assert (
        shown(Router(), '{"top_level_intent": "ACTION", "second_level_intent": "x", "response": "hey"}') == []
    )


@pytest.mark.parametrize(
    "text",
    [
        "[1234, 5678",
        '["a" 2]',
        "['book', {'artist': 'Eminem'}]",
        '[get_stats(player="LeBron")]',
        'get_stats(player="LeBron")',
        'Sure: [get_stats(player="LeBron")]',
        "```python\n[{'a': 1}]\n```\nThis books it.",
        '```json\n["a", "b',
        "```json\nbook(",
        'The call is {"a": 1',
        "Here: {'a': 1}",
        'simple": "json"}',
        '["a", "b"] is the output.',
        "callback({}",
        "((1, 2), (3, 4))",
        '"hello',
        "[105,12",
        "4,",
        "None",
        "{ a: 1 }",
        "{",
        "[",
    ],
)
def test_router_never_shows_raw_or_cut_data(text):
    """Calls, literals and pieces of JSON are retried, at any position in the text."""
    with pytest.raises(ParseError):
        read(Router(), text)


@pytest.mark.parametrize(
    "text",
    [
        "[1] says so",
        "[Note] it is late",
        "[here](https://example.com) it stands",
        "[1]: see there",
        "see [1, 2] and x[0]",
        "use x['key'] for it",
        '"Hello," she said, "come in"',
        "(perhaps) it is so",
        "call f(x) with 2, please",
        "it costs 5 {euros}",
        "42 is the answer",
    ],
)
def test_router_accepts_prose_with_punctuation(text):
    """Citations, quotes and function names within prose are accepted."""
    assert read(Router(), text) == [SendReply(text=text)]


@pytest.mark.parametrize("content", [{"a": 1}, [1], 3])
def test_type_without_a_schema_accepts_any_content(content):
    """The content is the event's data."""
    profile = Profile(types=(ClassificationType(name="note", description="a note"),))
    said = json.dumps({"messageType": "note", "content": content})
    (event,) = read(Simple(), said, profile=profile)
    assert (event.name, event.data) == ("note", content)
