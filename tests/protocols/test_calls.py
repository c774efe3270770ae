"""Tool calls in the text of an answer: each argument is read under each key, or the answer is rejected."""

import itertools
import json

import pytest
from hypothesis import given, strategies as st

from actgent.errors import AnswerError, ParseError
from actgent.protocols.answer_content_parsing import parse_encoded_calls
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.goal.goal_decision_parsing import CustomAction, DecisionReader
from actgent.protocols.plan.plan_answer_parsing import parse_item_answer, parse_planning_answer
from actgent.protocols.protocol_interface import CallTools, ClassificationType, Profile
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.router_protocol import Router
from actgent.protocols.simple_protocol import Simple
from actgent.protocols.steps_protocol import Steps
from actgent.protocols.text_tool_calls import ARGUMENTS, IDS

from .conftest import read

USUAL = ("arguments", "args", "input", "parameters", "params")
TO = {"to": ["ann@x.org"], "n": 1}


def of(protocol, text):
    return [c for o in read(protocol, text) if isinstance(o, CallTools) for c in o.calls]


def simple(call, **beside):
    answer = {"messageType": "TOOL_INVOCATION", "content": {"name": "send", **call}, **beside}
    return of(Simple(), json.dumps(answer))


def react(call, **beside):
    content = {"name": "send", **call}
    action = {"response_purpose": "TOOL_INVOCATION", "response_content": content, **beside}
    return of(ReAct(), json.dumps({"question_nature": "SIMPLE", "context": {}, "primary_action": action}))


def react_outside(call, **beside):
    action = {"response_purpose": "TOOL_INVOCATION", "response_content": {"name": "send", **call}}
    return of(ReAct(), json.dumps({"primary_action": action, **beside}))


def steps(call, **beside):
    return of(Steps(), json.dumps({"tool_calls": [{"id": "1", "tool_name": "send", **call}], **beside}))


def planning(call, **beside):
    answer = {"intent": "i", "toolCalls": [{"toolName": "send", **call}], **beside}
    return list(parse_planning_answer(json.dumps(answer), now=0).calls)


def executing(call, **beside):
    return list(
        parse_item_answer(json.dumps({"toolCalls": [{"toolName": "send", **call}], **beside}), now=0).calls
    )


def goal(call, **beside):
    return _decided({"tool": "send", **call, **beside})


def goal_list(call, **beside):
    return _decided({"calls": [{"tool": "send", **call}], **beside})


def _decided(params):
    text = json.dumps({"action": "execute", "params": params, "reasoning": "r"})
    return list(DecisionReader({}).read(text, needs_params=True).calls)


def encoded(call, **beside):
    item = {"id": "x", "type": "function", "function": {"name": "send", **call}, **beside}
    found = parse_encoded_calls(json.dumps([item]))
    if found is None:
        raise ParseError("no call")
    return list(found.calls)


def marked(call, **beside):
    text = json.dumps({"name": "send", **call, **beside})
    found = parse_encoded_calls(f"<tool_call>{text}</tool_call>")
    if found is None:
        raise ParseError("no call")
    return list(found.calls)


FORMS = (simple, react, react_outside, steps, planning, executing, goal, goal_list, encoded, marked)
ASKING = FORMS[:8]
"""Forms of the protocols. The other two forms are markup that servers left in the text."""


@pytest.mark.parametrize("key", USUAL)
@pytest.mark.parametrize("form", ASKING)
def test_all_usual_keys_are_read(form, key):
    """Arguments under another provider's key are the call's arguments."""
    (call,) = form({key: TO})
    assert (call.name, call.arguments) == ("send", TO)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_no_arguments(text):
    """An empty text is read as no arguments, because servers send it for a tool without parameters."""
    assert [call.arguments for call in planning({"arguments": text})] == [{}]


@pytest.mark.parametrize("key", ARGUMENTS)
@pytest.mark.parametrize("form", FORMS)
def test_no_argument_key_is_ignored(form, key):
    """For each key, the call has its arguments, or the answer is rejected."""
    try:
        calls = form({key: TO})
    except AnswerError:
        return
    assert [call.arguments for call in calls] == [TO]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(USUAL, 2)))
@pytest.mark.parametrize("form", FORMS)
def test_two_different_argument_objects_are_an_error(form, one, other):
    """Two equal objects are read as one."""
    for different in ({"to": ["bob@x.org"], "n": 1}, {"to": ["ann@x.org"], "n": True}, {}, {**TO, "n": 1.0}):
        with pytest.raises(ParseError):
            form({one: TO, other: different})
    if form in ASKING:
        assert [call.arguments for call in form({one: TO, other: dict(reversed(TO.items()))})] == [TO]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["pattern", "Arguments", "payload", "to", "argument", "reasoning"])
def test_unknown_key_next_to_a_call_is_an_error(form, key):
    """The key can be an argument. If it were ignored, the tool would run with defaults."""
    for call in ({key: "x"}, {key: TO}, {key: "x", "arguments": TO}):
        with pytest.raises(ParseError):
            form(call)


@pytest.mark.parametrize("key", USUAL)
@pytest.mark.parametrize("form", [form for form in FORMS if form not in (goal, marked)])
def test_arguments_outside_of_the_call_object_are_not_ignored(form, key):
    """Arguments one level too high are an error."""
    with pytest.raises(ParseError):
        form({}, **{key: TO})


def simple_list(call, **beside):
    """Read a list of two calls. Only the first call has arguments of its own; `call` is the second one."""
    content = [{"name": "send", "args": TO}, {"name": "send", **call}]
    return of(Simple(), json.dumps({"messageType": "TOOL_INVOCATION", "content": content, **beside}))


def goal_outside(call, **beside):
    """Read a decision with more keys outside of its params."""
    text = json.dumps({"action": "execute", "params": {"tool": "send", **call}, **beside})
    return list(DecisionReader({}).read(text, needs_params=True).calls)


ROUND = (*(form for form in ASKING if form is not goal), simple_list, goal_outside)
"""Forms in which another object contains the call."""


@pytest.mark.parametrize(
    "key", ["Arguments", "ARGS", "tool-input", "toolParams", "functionArguments", "argument"]
)
@pytest.mark.parametrize("form", ROUND)
def test_keys_like_those_of_arguments_are_not_passed_over(form, key):
    """Another case or spelling is an error that names the key, also next to other arguments."""
    for call in ({}, {"args": None}, {"args": {"n": 2}}):
        with pytest.raises(ParseError, match=key):
            form(call, **{key: TO})


@pytest.mark.parametrize("key", ["to", "payload", "data", "options"])
@pytest.mark.parametrize("form", ROUND)
def test_stray_keys_of_a_call_without_arguments_are_an_error(form, key):
    """An unknown key is an error if the call has no arguments. Otherwise it is read as a remark."""
    for call in ({}, {"args": {}}, {"parameters": None}):
        for value in (TO, "ann@x.org", 5, False):
            with pytest.raises(ParseError, match=key):
                form(call, **{key: value})
    assert form({"args": TO}, **{key: TO})[-1].arguments == TO


@pytest.mark.parametrize("form", ROUND)
def test_remarks_are_no_arguments(form):
    """A remark next to a call without arguments is ignored, because models add reasons there."""
    for beside in ({"reasoning": "it is asked for"}, {"Thoughts": ["now"]}, {"extra": None}):
        assert form({}, **beside)[-1].arguments == {}


def message(function, beside):
    """Read a provider's message that was written as text. Return its calls."""
    call = {"type": "function", "function": {"name": "send", **function}}
    text = json.dumps({"role": "assistant", "content": None, "tool_calls": [call], **beside})
    return [c for o in read(Bare(), text) if isinstance(o, CallTools) for c in o.calls]


@pytest.mark.parametrize("key", ["arguments", "ARGS", "tool-input", "to", "payload"])
def test_a_message_round_encoded_calls_holds_no_arguments(key):
    """A message with arguments outside of the call runs nothing. Remarks and the known keys of a provider's message are accepted."""
    assert message({}, {key: TO}) == message({"arguments": "{}"}, {key: TO}) == []
    assert message({}, {"content": TO}) == []
    for beside in (
        {"content": "I send it"},
        {"reasoning": "asked"},
        {"refusal": None},
        {"id": "m", key: None},
    ):
        assert [call.arguments for call in message({}, beside)] == [{}]
    told = message({"arguments": TO}, {"to": TO, "payload": 1})
    assert [call.arguments for call in told] == [TO]


SEND = Profile(
    types=(
        ClassificationType(
            name="SEND",
            description="send it",
            schema={"type": "object", "properties": {"to": {"type": "array"}}},
            tool="send",
        ),
    )
)


def instructed(protocol, answer):
    outcomes = read(protocol, json.dumps(answer), profile=SEND)
    return [call.arguments for each in outcomes if isinstance(each, CallTools) for call in each.calls]


def simple_typed(content, **beside):
    return instructed(Simple(), {"messageType": "SEND", "content": content, **beside})


def router_typed(content, **beside):
    return instructed(Router(), {"messageType": "SEND", "content": content, **beside})


def react_typed(content, **beside):
    action = {"response_purpose": "DIRECT_RESPONSE", "response_content": content, "response_description": "x"}
    return instructed(ReAct(), {"primary_action": {**action, **beside}})


def react_typed_outside(content, **beside):
    action = {"response_purpose": "DIRECT_RESPONSE", "response_content": content, "response_description": "x"}
    return instructed(ReAct(), {"context": {}, "primary_action": action, **beside})


@pytest.mark.parametrize("form", [simple_typed, router_typed, react_typed, react_typed_outside])
def test_arguments_outside_of_the_content_are_rejected(form):
    """The tool of an instruction runs only with the content."""
    for key in ("parameters", "ARGS", "tool-input", "payload", "data"):
        with pytest.raises(ParseError, match=key):
            form({}, **{key: TO})
    with pytest.raises(ParseError, match="arguments"):
        form({"to": ["bob@x.org"]}, arguments=TO)
    assert form({}, reasoning="asked", parameters=None) == [{}]
    assert form({"to": ["bob@x.org"]}, confidence=0.9) == [{"to": ["bob@x.org"]}]


def test_answer_without_content_is_the_arguments():
    """All members of the answer are passed to the tool."""
    assert instructed(Router(), {"messageType": "SEND", "to": ["a"], "args": TO}) == [
        {"to": ["a"], "args": TO}
    ]


@pytest.mark.parametrize("key", ["Arguments", "parameters", "To", "**Payload**"])
def test_argument_line_between_action_lines_is_an_error(key):
    """An argument line between the action and its empty input is an error. A thought line is accepted."""
    lines = "Thought: t\nAction: send\n{}: {}\nAction Input: {}"
    with pytest.raises(ParseError, match=key.strip("*")):
        of(ReAct(), lines.format(key, json.dumps(TO), "{}"))
    for thought in ("Reason", "I send it to learn this"):
        (call,) = of(ReAct(), lines.format(thought, "it is asked for", "{}"))
        assert call.arguments == {}


def test_action_line_may_end_with_a_carriage_return():
    """A carriage return at the end of the line is not part of the tool's name."""
    (call,) = of(ReAct(), 'Thought: t\r\nAction: `send`\r\nAction Input: {"a": 1}\r\n')
    assert (call.name, call.arguments) == ("send", {"a": 1})


@pytest.mark.parametrize("key", IDS)
def test_id_next_to_a_call_is_accepted(key):
    """All forms accept an id next to a call."""
    assert [call.provider_id for call in steps({"id": None, key: "c1", "args": TO})] == ["c1"]
    (call,) = simple({key: "c1", "args": TO})
    assert call.arguments == TO
    assert all(call.provider_id != 5 for call in steps({key: 5, "args": TO}))  # an id must be text


@pytest.mark.parametrize("form", ASKING)
@pytest.mark.parametrize("arguments", [[1], "x", 5, True])
def test_arguments_that_are_no_object_run_nothing(form, arguments):
    """The answer is rejected, or the arguments stay text, which the argument check rejects."""
    try:
        calls = form({"args": arguments})
    except ParseError:
        return
    assert [isinstance(call.arguments, str) for call in calls] == [True]


@pytest.mark.parametrize("form", FORMS)
def test_tool_names_are_not_corrected(form):
    """A name with a trailing space is not corrected, so it matches no tool."""
    for key in ("name", "tool_name", "toolName", "tool"):
        try:
            calls = form({key: "send ", "arguments": TO})
        except ParseError:
            continue
        assert [call.name for call in calls] == ["send "]


def test_a_custom_action_keeps_its_params():
    """Params are read under the usual keys. A key outside of the params is an error."""
    reader = DecisionReader({"note": CustomAction("note", "keep it", lambda *_: None)})
    for key in USUAL:
        assert reader.read(json.dumps({"action": "note", key: TO}), needs_params=False).params == TO
    with pytest.raises(ParseError, match="'text'"):
        reader.read('{"action": "note", "text": "milk"}', needs_params=False)


def test_two_lists_of_calls_in_two_spellings_are_an_error():
    """Two different lists under two spellings of the key are an error."""
    one, other = [{"toolName": "a"}], [{"toolName": "b"}]
    with pytest.raises(ParseError, match="two spellings"):
        parse_item_answer(json.dumps({"toolCalls": one, "tool_calls": other}), now=0)


@given(
    st.sampled_from(FORMS),
    st.dictionaries(
        st.sampled_from([*ARGUMENTS, *IDS, "type", "x", "to"]), st.sampled_from([TO, {}, "s", None])
    ),
)
def test_call_has_all_of_its_arguments_or_is_rejected(form, call):
    """For each combination of keys, a call has all of its arguments, or the answer is rejected."""
    given_objects = [value for key, value in call.items() if key not in (*IDS, "type") and value]
    try:
        calls = form(call)
    except AnswerError:
        return
    for made in calls:
        assert all(made.arguments in (value, json.dumps(value)) for value in given_objects)


@pytest.mark.parametrize("nothing", ["", None, {}])
def test_missing_arguments_are_an_empty_object(nothing):
    """Missing arguments are read as an empty object, which a tool without parameters accepts."""
    assert [call.arguments for call in encoded({"arguments": nothing})] == [{}]
