"""Conversion of messages, events, steps and results to JSON and back."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
import pytest
from pydantic import BaseModel

import actgent
from actgent import (
    Approval,
    GoalAgent,
    Message,
    ParseError,
    PlanAgent,
    Reply,
    ScriptedLLM,
    Sender,
    StepsAgent,
    Text,
    ToolCall,
    ToolResult,
    WireError,
    open_runtime,
    tool,
)
from actgent.agents.goal import GoalResult
from actgent.agents.single_turn_run import ProcessResult
from actgent.agents.steps.stream_events import StepsEvent
from actgent.agents.steps.streamed_run_state import AgentAnswer, StepState, ToolExecution
from actgent.approvals import Approve, Edit, Expire, Reject, Respond, Withdraw
from actgent.events import Observation
from actgent.messages import (
    CallProgress,
    ChatMessage,
    Event,
    Failure,
    File,
    Image,
    Opaque,
    Route,
    Thinking,
    Token,
    ToolSpec,
    Usage,
)

PARTS = (
    Text("a café \ud83d"),
    Image(media_type="image/png", data=b"\x00\xff"),
    File(media_type="application/pdf", url="https://example.org/a.pdf", name="a.pdf"),
    Thinking("hm", "openai", {"signature": "x"}),
    Opaque("anthropic", {"type": "server_tool_use", "input": {"q": [1, None]}}),
    ToolCall("add", {"a": 1, "b": [1.5, True]}, id="c1"),
    ToolCall("add", "{broken", id="c2", native=False),
    ToolResult(call_id="c1", tool_name="add", media=(Image(media_type="image/png", data=b"x"),)),
)
VALUES = [
    *PARTS,
    Usage(input_tokens=3, cost=None, children=Usage(output_tokens=2)),
    Sender("ada"),
    Message(session_id="s", sender=Sender("ada"), parts=PARTS, priority="urgent", metadata={"a": [1]}),
    ChatMessage("user", PARTS),
    ToolSpec("add", "Adds.", {"type": "object", "properties": {}}),
    Reply(id="r", text="hi", data={"a": 1}, reasoning={"context": "x"}, usage=Usage(cost=0.5)),
    Event(id="e", name="greeting", data=["a", {"type": "greeting"}]),
    Route(action="sales", data=None),
    Token("he", "r", 1),
    CallProgress(call_id="c", tool_name="add", done=1, total=2.0),
    Approval(id="x.s", session_id="s", agent="a", call_id="c", tool_name="pay", arguments={"n": 1}),
    Approval(
        id="x.s", session_id="s", agent="a", call_id="c", tool_name="pay", arguments={}, deadline=math.inf
    ),
    Approve(),
    Reject("no"),
    Edit({"n": 2}),
    Respond("42"),
    Expire(),
    Withdraw(),
    ToolExecution("c", "add", {"a": 1}, "failed", error="no"),
    StepState("m", 2, "execution", tool_executions=[ToolExecution("c", "add", "{broken")]),
]


def again(value):
    """Return the value that its JSON is parsed to."""
    return type(value).from_dict(json.loads(json.dumps(value.to_dict(), allow_nan=False)))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_is_equal_after_a_json_round_trip(value):
    """Every field is restored, and the JSON names the class."""
    assert again(value) == value
    assert type(again(value)) is type(value)
    assert isinstance(value.to_dict()["type"], str)


def concrete(cls):
    """Yield all event classes below a base class."""
    for each in cls.__subclasses__():
        if "__attrs_attrs__" in vars(each):
            yield each
        yield from concrete(each)


def sample(kind) -> Any:  # noqa: PLR0911 - a row for each kind of type
    """Return a value of the type of a field."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return sample(next(each for each in args if each is not NoneType))
    if origin is Literal:
        return args[0]
    if origin is tuple:
        return (sample(args[0]),)
    if origin is Mapping:
        return {"a": [1, "x"]}
    if isinstance(kind, TypeVar) or kind is Any:
        return {"a": [1, "x"]}
    if attrs.has(kind):
        return made(kind)
    if issubclass(kind, Enum):
        return next(iter(kind))
    return {str: "text", int: 3, float: 2.5, bool: True, bytes: b"x"}[kind]


def made(cls):
    attrs.resolve_types(cls)
    left_out = {"children", "url"}
    fields = [field for field in attrs.fields(cls) if field.name not in left_out]
    return cls(**{field.name: sample(field.type) for field in fields})


EVENTS = sorted({*concrete(Observation), *concrete(StepsEvent)}, key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.__name__)
def test_every_event_class_can_be_parsed_from_json(cls):
    """The class itself and the base class of the stream can parse the JSON."""
    event = made(cls)
    assert again(event) == event
    base = Observation if issubclass(cls, Observation) else StepsEvent
    assert base.from_dict(event.to_dict()) == event


def test_every_public_event_class_is_tested():
    """The tests above include every public class that streams deliver."""
    public = {getattr(actgent, name) for name in actgent.__all__}
    delivered = {type(value) for value in VALUES} | {Failure}
    events = {each for each in public if isinstance(each, type) and hasattr(each, "to_dict")}
    assert events <= {*delivered, *EVENTS, GoalResult, ProcessResult, AgentAnswer, *RESULTS}


RESULTS = {getattr(actgent, name) for name in ("PipelineResult",)}


def test_event_types_are_unique():
    """No two events of a stream have the same `type`."""
    for base in (Observation, StepsEvent):
        tags = [made(cls).to_dict()["type"] for cls in concrete(base)]
        assert len(set(tags)) == len(tags)


def test_a_failure_keeps_the_class_words_and_fields_of_its_error():
    """An error of actgent is restored as an object. Of another exception, only the class name and the text are restored."""
    failure = Failure(kind="parse", error=ParseError("no JSON", "raw"), message_id="m", raw="raw")
    read = again(failure)
    assert (type(read.error), str(read.error), read.error.raw) == (ParseError, "no JSON", "raw")
    assert (read.kind, read.message_id, read.user_message) == ("parse", "m", failure.user_message)
    foreign = again(Failure(kind="internal", error=KeyError("x"), message_id="m"))
    assert str(foreign.error) == "KeyError: 'x'"


class Offer(BaseModel):
    price: float
    until: datetime


@attrs.frozen
class Point:
    x: int


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (Offer(price=1.5, until=datetime(2026, 1, 2, tzinfo=UTC)), {"price": 1.5, "until": "2026-01-02T00:00:00Z"}),
        (Point(3), {"x": 3}),
        ((1, {2}), [1, [2]]),
        (math.nan, "nan"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
    ],
    ids=["pydantic", "attrs", "tuple", "nan", "date"],
)  # fmt: skip
def test_data_of_any_type_becomes_plain(data, plain):
    """The restored data is plain, because the JSON does not name its type."""
    assert again(Reply(text="x", data=data)).data == plain


@pytest.mark.parametrize(
    "data",
    [
        3,
        {"type": "reply"},
        {"type": "message", "text": "x"},
        {"type": "reply", "text": "x", "colour": "red"},
        {"type": "reply", "text": 3},
        {"type": "reply", "text": "x", "usage": {"input_tokens": "many"}},
    ],
)
def test_invalid_serialized_data_is_rejected(data):
    """The error states the expected type. No value is converted."""
    with pytest.raises(WireError):
        Reply.from_dict(data)


def test_changing_the_json_does_not_change_the_object():
    """A change of the JSON does not change the object."""
    call = ToolCall("add", {"a": [1]})
    form = call.to_dict()
    form["arguments"]["a"].append(2)
    read = ToolCall.from_dict(form)
    form["arguments"]["a"].append(3)
    assert (call.arguments, read.arguments) == ({"a": [1]}, {"a": [1, 2]})


@tool(thread=False, effect="pure")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_all_results_of_runs_can_be_converted_to_json():
    """The test runs each kind of agent and converts streams, histories, states, results and observations."""
    step = '{"tool_thought": "t", "tool_calls": [{"id": "1", "tool_name": "add", "parameters": {"a": 1, "b": 2}}]}'
    steps = StepsAgent("s", llm=ScriptedLLM([step, '{"final_answer": "3"}'] * 2, chunk=4), tools=[add])
    goal_llm = ScriptedLLM(
        [ToolCall("add", {"a": 1, "b": 2}), '{"action": "evaluate", "params": {"achieved": true}}']
    )
    goal = GoalAgent("g", llm=goal_llm, tools=[add])
    plan = PlanAgent("p", llm=ScriptedLLM(["no plan", "no plan"] * 3))
    async with open_runtime() as runtime, runtime.events() as events:
        for agent in (steps, goal, plan):
            await runtime.start(agent)
        async with steps.stream("1 + 2?") as stream:
            delivered = [each async for each in stream]
        async with steps.stream_state("1 + 2?") as states:
            state = [each async for each in states][-1]
        session = await goal.create_session("ada")
        result = await goal.run_goal("add", session=session)
        planned = await plan.process("go")
        seen = [events.receive_nowait() for _ in range(10)]
    for each in (*delivered, *session.history, *seen):
        assert again(each) == each
    assert again(state) == state
    assert isinstance(again(state).steps[0], StepState)
    assert isinstance(again(state).steps[0].tool_executions[0], ToolExecution)
    assert again(result) == attrs.evolve(result, failure=None)
    assert (again(result).history, again(result).metrics) == (result.history, result.metrics)
    read = again(planned)
    assert (read.status, type(read.error), read.plan) == (planned.status, type(planned.error), planned.plan)
