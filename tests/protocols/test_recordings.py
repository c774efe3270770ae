"""Real and published model outputs of ../shared/data, read by each protocol."""

import collections
import json

import pytest

from actgent.errors import AnswerError, ParseError
from actgent.messages import ToolSpec
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.protocol_interface import CallTools, SendReply
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.router_protocol import Router
from actgent.protocols.simple_protocol import Simple
from actgent.structured_output.answer_type_schemas import schema_check
from actgent.structured_output.extract_json import extract, extract_only

from .conftest import TYPES, read

NEVER_A_CALL = ("broken", "fragment_trap", "reject", "truncated", "partial")
READ_RIGHT = ("strict", "extract", "repair")


def outcome_of(text):
    """Return the value of a text, or its ParseError."""
    try:
        return extract(text)
    except ParseError as error:
        return error


@pytest.mark.parametrize(
    "protocol", [Bare(), Simple(), ReAct(), Router()], ids=lambda protocol: protocol.name
)
def test_no_bad_output_becomes_a_call(protocol, recorded_rows):
    """No broken, cut, rejected or fragmentary text runs a tool in any protocol."""
    rows = [row for row in recorded_rows("json_outputs.jsonl") if row["tier"] in NEVER_A_CALL]
    called = []
    for row in rows:
        try:
            outcomes = read(protocol, row["raw"])
        except AnswerError:
            continue
        called += [row["id"] for outcome in outcomes if isinstance(outcome, CallTools)]
    assert rows
    assert called == [], f"{len(called)} of {len(rows)} became a call"


def test_real_outputs_are_read_correctly(recorded_rows):
    """At least 96 % of the real outputs with a value are read as that value."""
    rows = [
        row
        for row in recorded_rows("json_outputs.jsonl")
        if row["tier"] in READ_RIGHT and row["origin"] == "real_llm"
    ]
    wrong = {
        row["id"]: outcome_of(row["raw"]) for row in rows if outcome_of(row["raw"]) != row["expect"]["value"]
    }
    assert len(rows) >= 60
    assert len(wrong) <= 0.04 * len(rows), f"{len(rows) - len(wrong)} of {len(rows)} right: {wrong}"
    misread = {key: value for key, value in wrong.items() if not isinstance(value, ParseError)}
    assert misread == {}, "a miss is an error, never another value"


def test_truncated_is_never_completed(recorded_rows):
    """A truncated or partial output has no value."""
    rows = [row for row in recorded_rows("json_outputs.jsonl") if row["tier"] in ("truncated", "partial")]
    completed = {row["id"]: row["raw"] for row in rows if not isinstance(outcome_of(row["raw"]), ParseError)}
    assert rows
    assert completed == {}, f"{len(completed)} of {len(rows)} were completed"


def test_cases_of_other_libraries_are_read(recorded_rows):
    """Cases of other libraries: all strict cases are read, and most cases with prose. Repairs that guess are rejected."""
    counts = collections.Counter()
    for row in recorded_rows("json_outputs.jsonl"):
        if row["origin"] == "library_test" and row["tier"] in READ_RIGHT:
            counts[row["tier"], outcome_of(row["raw"]) == row["expect"]["value"]] += 1
    assert counts["strict", False] == 0, counts
    assert counts["extract", True] >= 0.8 * (counts["extract", True] + counts["extract", False]), counts
    assert counts["repair", True] >= 0.3 * (counts["repair", True] + counts["repair", False]), counts


def test_first_of_several_values_is_read(recorded_rows):
    """The first of several values is read. Code that would act on a value rejects several values."""
    rows = [row for row in recorded_rows("json_outputs.jsonl") if "all_of" in row["expect"]]
    for row in rows:
        first, value = row["expect"]["all_of"][0], outcome_of(row["raw"])
        if isinstance(value, list):
            assert value[0] == first, "a list of them, read whole"
            continue
        assert value == first
        with pytest.raises(ParseError, match="different JSON objects"):
            extract_only(row["raw"])
    assert rows


def react(text):
    try:
        (outcome,) = read(ReAct(), text)
    except ParseError:
        return None
    return outcome


def test_react_reads_lines_of_real_models(recorded_rows):
    """Each real `Action` with a JSON object is read as that call. Each real `Final Answer` is read as that text."""
    rows = [row for row in recorded_rows("react_outputs.jsonl") if "derived" in row]
    misread = []
    for row in rows:
        derived, outcome = row["derived"], react(row["raw"])
        if derived["actions"]:
            (call,) = outcome.calls if isinstance(outcome, CallTools) else (None,)
            right = call and (call.name, call.arguments) == (
                derived["actions"][0],
                derived["action_input_json"],
            )
        elif derived["has_final"]:
            right = (
                isinstance(outcome, SendReply)
                and outcome.text == derived["final"].removesuffix("```").rstrip()
            )
        else:
            right = isinstance(outcome, SendReply)  # `Answer:` instead of `Final Answer:`
        misread += [] if right else [row["id"]]
    assert rows
    assert misread == [], f"{len(misread)} of {len(rows)} misread"


def test_react_reads_lines_of_other_libraries(recorded_rows):
    """Final answers are read. An input that is not a JSON object, or two inputs, are retried."""
    rows = [row for row in recorded_rows("react_outputs.jsonl") if "expect" in row]
    for row in rows:
        outcome = react(row["raw"])
        if "output" in row["expect"]:
            assert outcome.text == row["expect"]["output"], row["id"]
        else:
            assert outcome is None, row["id"]
    assert rows


def expected_calls(row):
    """Return each expected call with the first listed value of each argument."""
    for call in row["expected"] or ():  # None: any call is correct
        for name, arguments in call.items():
            yield (
                name,
                {key: _first(values) for key, values in arguments.items() if values and values[0] != ""},
            )


def _first(values):
    """Return the first choice. The members of an object also list choices."""
    value = values[0]
    if isinstance(value, dict):
        return {
            key: _first(inner) if isinstance(inner, list) and inner else inner for key, inner in value.items()
        }
    return value


def test_published_calls_are_read_in_each_protocol(recorded_rows):
    """A published call in each protocol's form is read as that call and matches its function."""
    read_calls = 0
    for row in recorded_rows("function_calls.jsonl"):
        schemas = {item["name"]: item["parameters"] for item in row["functions_json_schema"]}
        assert all(ToolSpec(name, "", schema).name == name for name, schema in schemas.items())
        expected = list(expected_calls(row))
        for protocol, text in written(expected):
            (outcome,) = read(protocol, text)
            assert [(call.name, call.arguments) for call in outcome.calls] == expected, row["id"]
        for name, arguments in expected:
            assert schema_check(schemas[name])(arguments) is None, (row["id"], arguments)
            read_calls += 1
    assert read_calls > 60, f"{read_calls} calls were read"


def written(expected):
    """Return the same calls in the forms of the protocols."""
    if not expected:
        return
    content = [{"name": name, "parameters": arguments} for name, arguments in expected]
    action = {"response_purpose": "TOOL_INVOCATION", "response_content": content}
    native = [
        {"id": "x", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in expected
    ]
    yield Simple(), json.dumps({"messageType": "TOOL_INVOCATION", "content": content})
    yield ReAct(), f"```json\n{json.dumps({'primary_action': action}, indent=2)}\n```"
    yield Bare(), json.dumps(native)
    yield Router(), json.dumps({"tool_calls": native})


def test_types_of_the_table_match_no_foreign_object(recorded_rows):
    """No foreign object of the recordings matches the form of an instruction."""
    check = schema_check(TYPES[1].schema)
    values = [row["expect"].get("value") for row in recorded_rows("json_outputs.jsonl")]
    assert [value for value in values if check(value) is None] == []


def test_router_shows_no_json_or_calls(recorded_rows):
    """The router shows no text that contains JSON, a call, or a piece of either."""
    shown = []
    for row in recorded_rows("json_outputs.jsonl"):
        try:
            outcomes = read(Router(), row["raw"])
        except AnswerError:
            continue
        shown += [outcome.text for outcome in outcomes if isinstance(outcome, SendReply)]
    assert [
        text for text in shown if any(mark in text for mark in ('{"', "{'", "[{", '["', "['", "({", "```"))
    ] == []
    assert [text for text in shown if text.lstrip().startswith(("[", "{"))] == []
