"""The `steps` protocol: the outcomes of each answer. Numbers are the cases of its specification."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from actgent.errors import ConfigurationError, EmptyAnswer, ParseError
from actgent.messages import Message, Sender, Text, ToolCall
from actgent.protocols.protocol_interface import CallTools, Continue, SendReply, UpdateState
from actgent.protocols.steps_protocol import PLAN_KEY, STEP, Steps, parse_partial_step

from .conftest import read, view

ADD = {"id": "call_1", "tool_name": "add", "parameters": {"a": 5, "b": 3}}
CALL = ToolCall("add", {"a": 5, "b": 3}, provider_id="call_1", native=False)
STEP_TEXT = json.dumps({"tool_thought": "sum", "tool_calls": [ADD]})
FINAL = '{"final_answer": "The answer is 42"}'
SAID = [SendReply(text="The answer is 42")]


def outcomes(text, **fields):
    return read(Steps(), text, **fields)


def planned(found):
    """Return the plan that outcomes write to the state, or None."""
    changes = [outcome for outcome in found if isinstance(outcome, UpdateState)]
    return changes[0].action({})[1] if changes else None


# --- final answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{FINAL}\n```",  # 1
        FINAL,  # 4
        f"```\n{FINAL}\n```",  # 6
        f"```json {FINAL}```",
        f"Here it is:\n\n```json\n{FINAL}\n```\nGood luck!",  # 7
        f"Here it is: ```json {FINAL}```",  # 8
        f"Here it is: {FINAL}",
        "{'final_answer': 'The answer is 42'}",  # 10
        '{"final_answer": "The answer is 42",}',
        f"<think>{STEP_TEXT}</think>{FINAL}",
        f"{FINAL}\n{FINAL}",
        f'In an example {{"a": 1}} was the question. {FINAL}',
        '{"final_answer": "The answer is 42", "tool_calls": [], "plan": null, "mood": "good"}',
    ],
)
def test_final_answer_is_found_and_ends_the_turn(text):
    """1, 4, 6, 7, 8, 10: a final answer is found in fences, prose and thoughts, and ends the turn."""
    assert outcomes(text) == SAID


@pytest.mark.parametrize(
    "text", ["This is not JSON at all", "It lies at [1, 2], says `f(x)`.", "I plan: nothing"]
)
def test_prose_is_a_final_answer(text):
    """5: text without JSON is a reply to the user."""
    assert outcomes(f"\n{text} ") == [SendReply(text=text)]


def test_nested_fence_is_kept():
    """22: a fence inside the answer's text is part of the text."""
    answer = "Do this:\n```python\nprint({})\n```"
    text = json.dumps({"final_answer": answer})
    assert outcomes(text) == outcomes(f"```json\n{text}\n```") == [SendReply(text=answer)]


@pytest.mark.parametrize("value", [{"sum": 8}, 8, [1, 2], True, {"é": "ß"}])
def test_structured_final_answer_is_shown_as_json(value):
    """14: an answer that is not text is shown as JSON, and is the reply's data."""
    (said,) = outcomes(json.dumps({"final_answer": value}))
    assert json.loads(said.text) == said.data == value
    assert "\\u" not in said.text  # a reply is shown to a user


# --- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "kept"),
    [("Step 1: Do this\nStep 2: Say it", "Step 1: Do this\nStep 2: Say it"), (["Do", "Say"], "Do\nSay")],
)
def test_plan_is_stored_and_the_turn_continues(plan, kept):
    """2, 13: a plan is stored in the session's state, and the turn continues."""
    found = outcomes(f"```json\n{json.dumps({'plan': plan})}\n```")
    assert found[1:] == [Continue(STEP)]
    assert found[0].action({}) == (PLAN_KEY, kept)


def test_plan_precedes_a_step_in_one_answer():
    """20: if an answer has a plan and a step, the plan is read. The step can be taken next."""
    found = outcomes(f'```json\n{{"plan": "add"}}\n```\nThen:\n```json\n{STEP_TEXT}\n```')
    assert (planned(found), found[1:]) == ("add", [Continue(STEP)])


# --- steps ---------------------------------------------------------------------------------------


def test_step_runs_its_calls():
    """3: a step with calls runs the calls."""
    assert outcomes(f"```json\n{STEP_TEXT}\n```") == [CallTools((CALL,), STEP)]


@pytest.mark.parametrize(
    "more",
    [
        {"final_answer": None},  # 19
        {"thought": "sum"},  # 21
        {"final_answer": "It is 8"},  # 18: it was written before the result
    ],
)
def test_additional_content_drops_no_call(more):
    """18, 19, 21: additional content in the answer drops no call."""
    assert outcomes(json.dumps({"tool_calls": [ADD]} | more)) == [CallTools((CALL,), STEP)]


def test_step_with_its_plan_reads_both():
    """17: a plan and calls in one object are both read."""
    found = outcomes(json.dumps({"plan": "add them", "tool_calls": [ADD]}))
    assert (planned(found), found[1:]) == ("add them", [CallTools((CALL,), STEP)])


def test_final_answer_with_its_plan_stores_the_plan():
    """A plan next to the answer is stored. The answer ends the turn."""
    found = outcomes(json.dumps({"plan": "say it", "final_answer": "The answer is 42"}))
    assert (planned(found), found[1:]) == ("say it", SAID)


def test_answer_after_a_step_is_ignored():
    """A final answer after a step in the same text is ignored, because the model wrote it without the step's results."""
    assert outcomes(f"{STEP_TEXT}\n{FINAL}") == [CallTools((CALL,), STEP)]


@pytest.mark.parametrize(
    ("call", "read_as"),
    [
        ({"tool_name": "add", "parameters": {}}, ToolCall("add", {}, native=False)),
        ({"tool_name": "add"}, ToolCall("add", {}, native=False)),
        ({"tool_name": " add ", "id": 7, "parameters": [5]}, ToolCall(" add ", "[5]", native=False)),
        ({"tool_name": "add", "parameters": []}, ToolCall("add", "[]", native=False)),
        ({"tool_name": "add", "parameters": "a=5"}, ToolCall("add", '"a=5"', native=False)),
    ],
)
def test_calls_with_invalid_parameters_never_run(call, read_as):
    """16: an id is optional. Parameters that are not an object stay text, and text never runs."""
    assert outcomes(json.dumps({"tool_calls": [call]})) == [CallTools((read_as,), STEP)]


def test_provider_calls_in_text_are_read():
    """Native calls that the model wrote as text are read as calls."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 5, "b": 3}'}}
    assert (
        outcomes(json.dumps([call]))
        == outcomes(json.dumps({"tool_calls": [call]}))
        == [CallTools((CALL,), STEP)]
    )


# --- malformed answers ---------------------------------------------------------------------------

WHOLE = (
    FINAL,
    STEP_TEXT,
    '{"plan": ["Find the book", "Read {it}"]}',
    '{"thought": "I know [it]", "final_answer": "Done. \\"Really\\""}',
)
CUT = [
    shaped
    for text in WHOLE
    for length in range(1, len(text), 6)
    for shaped in (
        text[:length],
        f"```json\n{text[:length]}",
        f"Here: {text[:length]}" if length > 2 else "{",
    )
]
ODD = [
    "null",  # 12
    "5",
    "true",
    '["plan"]',
    '"text"',  # 11
    "[1, 2]",
    "{}",
    '{"answer": "42"}',
    'Sure: {"answer": "42"}',
    '{"plan": null}',  # 13
    '{"plan": ""}',
    '{"plan": []}',
    '{"plan": [1, 2]}',
    '{"plan": {"1": "go"}}',
    '{"plan": 3}',
    '{"final_answer": null}',
    '{"final_answer": ""}',
    '{"final_answer": " "}',
    '{"tool_calls": []}',  # 15
    '{"tool_calls": null}',  # 16
    '{"tool_calls": {}}',
    '{"tool_calls": "add"}',
    '{"tool_calls": {"tool_name": "add"}}',
    '{"tool_calls": ["add"]}',
    '{"tool_calls": [{"name": "add", "parameters": {}}]}',
    '{"tool_calls": [{"tool_name": ""}]}',
    '{"tool_calls": [{"tool_name": null}]}',
    '{"tool_calls": [{"Tool_Name": "add"}]}',
    '{"tool_calls": [{"tool_name": "add"}, {}]}',
    '{"tool_calls": [{}], "final_answer": "Done"}',
    '{"tool_thought": "hm"}',
    '{"thought": "hm"}',
    '{"Final_Answer": "42"}',
    '{"FINAL_ANSWER": "42"}',
    '{"Plan": "go"}',
    '{"TOOL_CALLS": [{"tool_name": "add"}]}',
    '{"finalAnswer": "42"}',
    '{"step": {"final_answer": "42"}}',
    '[{"final_answer": "42"}]',
    'final_answer: "42"',
    "plan: go",
    "tool_name: add",
    "The tool_calls are add(5, 3).",
    '"final_answer": "42"',
    '{"final_answer": "42"} {"final_answer": "43"}',
    f"{FINAL}\n{STEP_TEXT}",
    STEP_TEXT + STEP_TEXT.replace("5", "6"),
    f"{FINAL} {STEP_TEXT[:30]}",
    f'{{"tool_calls": [{{"name": "add"}}]}} {FINAL}',
    f'{FINAL} {{"plan": 7}}',
    f"{STEP_TEXT} {FINAL[:12]}",
    '{"final_answer": "42"',
    '{"final_answer": 42',
    "```json\n```",
    "```",
    "```json\nfinal\n```",
    "{final_answer: }",
    'f({"final_answer": "42"})',
    '{"final_answer": NaN}',
    '{"final_answer": "a", "final_answer": "b"}',
    "<think>I am not sure",
    "Here it is: {",
    "Here it is: {}",
    "Here it is: [",
    "Here it is:\n```json",
    "Here it is:\n```json\n{final",
    "Here it is: {answer: 42",
    "",
    " \n",
]


@pytest.mark.parametrize("text", ODD)
def test_malformed_answers_are_retried(text):
    """5, 11 to 16: a malformed answer is retried, and is never read as a plan, step or answer."""
    with pytest.raises((ParseError, EmptyAnswer)):
        outcomes(text)


@pytest.mark.parametrize("text", CUT)
def test_cut_answers_are_retried(text):
    """9: a cut answer is never completed and never shown."""
    with pytest.raises(ParseError):
        outcomes(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["plan", "tool_calls", "final_answer", "tool_name", "parameters", "x"]), inner
        )
    ),
    max_leaves=8,
)


@given(JSON, st.sampled_from(["{}", "```json\n{}\n```", "Well: {} OK?"]))
def test_outcomes_are_contained_in_the_object(value, shape):
    """Each plan, call or answer is in the object. Only ParseError and EmptyAnswer are raised."""
    text = shape.replace("{}", json.dumps(value))
    try:
        found = outcomes(text)
    except (ParseError, EmptyAnswer):
        return
    if not isinstance(value, dict):
        assert found == [SendReply(text=text.strip())]
        return
    names = {call.name for outcome in found if isinstance(outcome, CallTools) for call in outcome.calls}
    assert names <= {call["tool_name"] for call in value.get("tool_calls") or []}
    assert not any(isinstance(outcome, SendReply) for outcome in found) or value["final_answer"] not in (
        None,
        "",
    )
    assert any(value.get(key) for key in ("plan", "tool_calls")) or any(
        isinstance(o, SendReply) for o in found
    )


@pytest.mark.parametrize("key", ["Plan", "TOOL_CALLS", "Final_Answer"])
def test_key_in_another_case_is_an_error(key):
    """A key in another case is an error, because its content would be lost."""
    known = {"plan": ["a"]} if key != "Plan" else {"final_answer": "yes"}
    with pytest.raises(ParseError, match=f"write '{key.lower()}', not '{key}'"):
        outcomes(json.dumps(known | {key: "x"}))


def test_there_are_a_hundred_malformed_answers():
    """The lists have at least a hundred different malformed answers."""
    assert len({*ODD, *CUT}) >= 100


def test_cut_is_called_truncated():
    """9: the model gets an error that names the truncation."""
    with pytest.raises(ParseError, match="truncated"):
        outcomes('```json\n{"final_answer": "The ans')


def test_missing_calls_are_named():
    """15: the model gets an error that names the missing calls."""
    with pytest.raises(ParseError, match="no tool calls"):
        outcomes('{"tool_calls": []}')


@pytest.mark.parametrize(
    "text",
    [
        '{"final_answer": "a\nb"}',
        '{"final_answer": "a\\nb",}',
        "{'final_answer': 'a\\nb'}",
        '{"plan": ["a", "b",],}',
        '{"plan": "a\nb"}',
        "{'plan': ['a', 'b']}",
        '{final_answer: "a\\nb"}',
        '{plan: ["a", "b"]}',
    ],
)
def test_untidy_json_is_repaired(text):
    """10: a raw newline, a trailing comma, single quotes and a bare key are repaired."""
    found = outcomes(text)
    assert found == [SendReply(text="a\nb")] if "final" in text else planned(found) == "a\nb"


# --- prompts and retries -------------------------------------------------------------------------


def at(seconds, **fields):
    message = Message(session_id="s", sender=Sender("ada"), parts=(Text("hi"),), created_at=seconds)
    return view(message=message, record=[message], **fields)


def test_time_is_at_the_end_of_the_request():
    """The time of the message in the agent's zone is in the last message, so the system prompt stays unchanged."""
    protocol = Steps(timezone="Asia/Tokyo")
    assert "Thursday, 1970-01-01 09:00 (Asia/Tokyo)" in protocol.request(at(0.0)).tail
    protocol.set_timezone("UTC")
    assert "Thursday, 1970-01-01 00:00 (UTC)" in protocol.request(at(0.0)).tail
    assert not re.search(r"\d{4}", Steps.template)


@pytest.mark.parametrize("name", ["Nope", "", "../etc/passwd", "Europe", "/etc/localtime", "a\0b"])
def test_unknown_timezone_is_rejected(name):
    """28: a ValueError names the unknown zone, and the former zone remains."""
    protocol = Steps(timezone="Asia/Tokyo")
    with pytest.raises(ValueError, match="timezone"):
        protocol.set_timezone(name)
    assert protocol.timezone == "Asia/Tokyo"


def test_tails_follow_the_stage():
    """The first call can plan, later calls continue, and the last call asks for the answer."""
    protocol = Steps(max_iterations=3, final_answer_format="a haiku")
    tails = [
        protocol.request(at(0.0, stage=stage, calls=calls)).tail
        for calls, stage in enumerate((None, STEP, STEP))
    ]
    assert len(set(tails)) == 3
    assert "last answer" in tails[2]
    assert all("a haiku" in tail for tail in tails)


def test_max_iterations_is_checked():
    """A turn needs at least one model call."""
    with pytest.raises(ConfigurationError, match="max_iterations= must be at least 1, not 0"):
        Steps(max_iterations=0)


# --- partial text --------------------------------------------------------------------------------


def shown(text):
    """Return all texts that are shown while a text grows by one character at a time."""
    return [part for length in range(len(text) + 1) if (part := Steps().partial(text[:length]))]


def test_partial_final_answer_is_shown():
    """32: each shown text begins with the previous one, and the last one is the answer."""
    parts = shown(
        '```json\n{"thought": "hm", "plan": "", "tool_calls": [], "final_answer": "The \\"answer\\" is 42"}\n```'
    )
    assert all(later.startswith(former) for former, later in pairwise(parts))
    assert parts[-1] == 'The "answer" is 42'


@pytest.mark.parametrize(
    "text", [STEP_TEXT, '{"plan": "x", "tool_calls": []}', "Prose", '{"final_answer": {"a": 1}}']
)
def test_partial_plans_and_calls_are_not_shown(text):
    """Plans, calls, structures and prose that can still become JSON are not shown to the user."""
    assert shown(text) == []


def test_thoughts_are_not_shown():
    """The model's thoughts before its answer are not shown."""
    assert shown(f'<think>Maybe {{"final_answer": "43"}}?</think>{FINAL}')[-1] == "The answer is 42"
    assert not any("43" in part for part in shown(f'<think>{{"final_answer": "43"}}</think>{FINAL}'))


@pytest.mark.parametrize("text", [*CUT, *ODD])
def test_growing_text_never_raises(text):
    """31: for each partial text, the result is a step or None."""
    step = parse_partial_step(text)
    assert step is None or step.kind in {"plan", "step", "final"}
