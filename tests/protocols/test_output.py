"""`output=`: a type or a schema of the value at the end of each turn."""

import dataclasses
import json
from typing import Literal, TypedDict

import attrs
import pydantic
import pytest

from actgent import BareAgent, ScriptedLLM
from actgent.errors import ConfigurationError, ParseError
from actgent.messages import ToolCall
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.protocol_interface import CallTools, Event, SendReply, WithOutput
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.simple_protocol import Simple
from actgent.protocols.steps_protocol import Steps
from actgent.structured_output.output_type import output_of

from .conftest import read, view


@attrs.frozen
class Town:
    name: str
    people: int


@dataclasses.dataclass
class Village:
    name: str
    people: int


class Place(TypedDict):
    name: str
    people: int


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
}
JSON = '{"name": "Oslo", "people": 700000}'


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (Town, Town("Oslo", 700_000)),
        (Village, Village("Oslo", 700_000)),
        (Place, {"name": "Oslo", "people": 700_000}),
        (SCHEMA, {"name": "Oslo", "people": 700_000}),
        ({"name": "<a town>", "people": "<a number>"}, {"name": "Oslo", "people": 700_000}),
        ({}, {"name": "Oslo", "people": 700_000}),
        (dict[str, str | int], {"name": "Oslo", "people": 700_000}),
    ],
)
@pytest.mark.parametrize("text", [JSON, f"```json\n{JSON}\n```", f"Here: {JSON}.", JSON.replace('"', "'")])
def test_bare_output_has_the_declared_type(output, expected, text):
    """The value is found in the text and has the declared type."""
    (reply,) = read(WithOutput(Bare(), output), text)
    assert reply.data == expected
    assert type(reply.data) is type(expected)


@pytest.mark.parametrize(
    ("output", "text", "expected"),
    [
        (int, "42", 42),
        (str, "hello [1] you", "hello [1] you"),
        (list[int], "So [1, 2].", [1, 2]),
        (bool, "true", True),
    ],
)
def test_builtin_types_are_valid_outputs(output, text, expected):
    """Built-in types are valid outputs. Plain text is a `str`."""
    (reply,) = read(WithOutput(Bare(), output), text)
    assert reply.data == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"name": "Oslo", "people": "many"}', "people"),
        ('{"name": "Oslo"}', "people"),
        ('{"name": "Oslo", "people": 7', "truncated"),
        ("Oslo has many", "no JSON"),
    ],
)
@pytest.mark.parametrize("output", [Town, SCHEMA])
def test_invalid_output_is_retried(text, reason, output):
    """An invalid value is a ParseError with its path."""
    with pytest.raises(ParseError, match=reason):
        read(WithOutput(Bare(), output), text)


def test_cut_json_is_not_a_text_output():
    """An output that accepts any value does not accept a cut object as text."""
    for text in ('{"a": 1', '```json\n{"a": [1'):
        with pytest.raises(ParseError, match="truncated"):
            read(WithOutput(Bare(), {}), text)
    assert read(WithOutput(Bare(), str), "f(x is open")[0].data == "f(x is open"


def test_inside_other_protocols():
    """The value is the content of a JSON protocol, as a structure or as text, or the whole answer."""
    town = json.loads(JSON)
    action = {
        "response_purpose": "DIRECT_RESPONSE",
        "response_description": "a town",
        "response_content": town,
    }
    for protocol, text in [
        (Simple(), json.dumps({"messageType": "DIRECT_RESPONSE", "content": JSON})),
        (Simple(), json.dumps({"messageType": "DIRECT_RESPONSE", "content": town})),
        (Simple(), JSON),
        (ReAct(), json.dumps({"primary_action": action})),
        (ReAct(), json.dumps({"primary_action": action | {"response_description": None}})),
        (ReAct(), JSON),
    ]:
        (reply,) = read(WithOutput(protocol, Town), text)
        assert reply.data == Town("Oslo", 700_000)


def test_only_the_end_of_a_turn_needs_a_value():
    """Calls and events need no value. Text next to a mapped call is not a final answer."""
    protocol = WithOutput(Simple(), Town)
    call = '{"messageType": "TOOL_INVOCATION", "content": {"name": "f"}}'
    assert isinstance(read(protocol, call)[0], CallTools)
    event, said, _ = read(protocol, '{"messageType": "creation", "content": "x"}')
    assert isinstance(event, Event)
    assert said == SendReply(text="x", message_type="creation")


def test_request_contains_the_output_schema():
    """The provider gets the schema if it is a JSON Schema. The end of the prompt always contains it."""
    request = WithOutput(ReAct(), Town).request(view())
    assert request.response_format.name == "Town"
    assert request.response_format.schema["required"] == ["name", "people"]
    assert request.tail.startswith("Answer this directly")
    assert '"people"' in request.tail
    assert WithOutput(Bare(), {"a": "<b>"}).request(view()).response_format is None
    assert output_of({"title": "A town, or so", "type": "object"}).name == "A_town_or_so"


def test_output_protocol_delegates_to_the_inner_protocol():
    """Name, template, limits and partial text are those of the inner protocol."""
    protocol = WithOutput(Simple(), Town)
    assert (protocol.name, protocol.max_iterations) == ("simple", None)
    assert (
        PromptManager(protocol, view().profile).system_prompt()
        == PromptManager(Simple(), view().profile).system_prompt()
    )
    assert protocol.partial('{"messageType": "greeting", "content": "he') == "he"


def test_unusable_output_types_are_rejected():
    """A type that JSON Schema cannot express, or an invalid schema, is a ConfigurationError."""
    with pytest.raises(ConfigurationError):
        WithOutput(Bare(), {"type": "object", "required": "x"})
    with pytest.raises(ConfigurationError):
        WithOutput(Bare(), type("Opaque", (), {}))


@pytest.mark.parametrize("inner", [Simple(), ReAct()], ids=["simple", "react"])
@pytest.mark.parametrize("text", ['{"plan": null}', '{"messageType": "greeting"', "no form at all", "[1, 2"])
def test_malformed_answer_is_not_a_text_output(inner, text):
    """`output=str` accepts the text of an answer, and rejects an answer that the inner protocol cannot read."""
    with pytest.raises(ParseError):
        read(WithOutput(inner, str), text)


def test_output_protocol_keeps_stages_and_required_calls():
    """Stages and required calls are those of the inner protocol."""

    class Staged(Bare):
        def stage_name(self, view):
            return f"at {view.stage}"

        def shortfall(self, message_type):
            return message_type and f"only {message_type}"

    protocol = WithOutput(Staged(), Town)
    assert protocol.stage_name(view(stage="work")) == "at work"
    assert [protocol.shortfall(kind) for kind in (None, "half")] == [None, "only half"]


@pytest.mark.parametrize("inner", [Bare, Simple, ReAct, Steps])
def test_scripted_model_writes_a_typed_value(inner):
    """A scripted model writes a value in the form of the inner protocol, and the turn returns the value."""
    protocol = WithOutput(inner(), Town)
    (text,) = protocol.script(JSON)
    (texts,) = [outcome for outcome in read(protocol, text) if isinstance(outcome, SendReply)]
    assert texts.data == Town("Oslo", 700_000)
    call = ToolCall("look", {"n": 1})
    assert list(protocol.script(JSON, call)) == list(inner().script(JSON, call))


# --- unions of classes -----------------------------------------------------------------------------


class Named(pydantic.BaseModel):
    name: str


class Renamed(pydantic.BaseModel):
    name: str
    new: str


class Nicknamed(pydantic.BaseModel):
    name: str
    nick: str | None = None


@attrs.frozen
class Creation:
    name: str
    kind: Literal["creation"] = "creation"


@attrs.frozen
class Deletion:
    name: str
    kind: Literal["deletion"]


@pytest.mark.parametrize("output", [Town | Village, Village | Place, list[Town | Village], Named | Nicknamed])
def test_ambiguous_union_of_classes_is_rejected(output):
    """The error names both classes and the remedy, for an agent and for one call."""
    with pytest.raises(ConfigurationError, match=r"could match both \w+ and \w+: give each class a field"):
        output_of(output)
    with pytest.raises(ConfigurationError, match="could match both"):
        BareAgent("a", llm=ScriptedLLM([]), output=output)


@pytest.mark.parametrize("output", [Named | Renamed, Renamed | Named])
def test_keys_of_an_answer_select_its_class(output):
    """The order of the classes has no effect. An unknown key is rejected if several classes match."""
    convert = output_of(output).convert
    assert convert({"name": "a"}) == Named(name="a")
    assert convert({"name": "a", "new": "b"}) == Renamed(name="a", new="b")
    with pytest.raises(ValueError, match=r"the value matches \w+ and \w+, but has keys"):
        convert({"name": "a", "new": "b", "other": 1})


@pytest.mark.parametrize("output", [Creation | Deletion, Deletion | Creation])
def test_constant_field_discriminates_a_union(output):
    """A constant field in one of the classes is sufficient."""
    convert = output_of(output).convert
    assert convert({"name": "a"}) == Creation("a")
    assert convert({"name": "a", "kind": "deletion"}) == Deletion("a", "deletion")
