"""`state=`: a session's state that a type describes."""

import dataclasses
import json
from typing import NotRequired, TypedDict

import attrs
import pytest
from pydantic import BaseModel, model_validator

from actgent import (
    BareAgent,
    ConfigurationError,
    GoalAgent,
    InvalidState,
    PlanAgent,
    ScriptedLLM,
    StepsAgent,
    open_runtime,
    run_agent,
)
from actgent.agents.session_state_type_check import state_check_of
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.protocols.goal.goal_decision_parsing import CustomAction
from actgent.state.reducers import append
from actgent.state.session_state import Store


class PydanticState(BaseModel):
    count: int = 0
    names: list[str] = []
    limit: int | None = None

    @model_validator(mode="after")
    def check_limit(self):
        if self.limit is not None and self.count > self.limit:
            raise ValueError("count is above limit")
        return self


@attrs.define
class AttrsState:
    count: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    names: list[str] = attrs.field(factory=list)
    limit: int | None = None


@dataclasses.dataclass
class DataclassState:
    count: int = 0
    names: list[str] = dataclasses.field(default_factory=list)
    limit: int | None = None


class DictState(TypedDict):
    count: NotRequired[int]
    names: NotRequired[list[str]]
    limit: NotRequired[int | None]


KINDS = (PydanticState, AttrsState, DataclassState, DictState)


def put(state, args):
    """Set a key."""
    return (args["key"], args["value"])


def execute(key, value):
    return json.dumps({"action": "execute", "params": {"tool": "put", "args": {"key": key, "value": value}}})


EVALUATE = json.dumps({"action": "evaluate", "params": {"achieved": True, "answer": "done"}})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_invalid_update_is_an_error_for_the_model(kind):
    """The state does not change, the model reads the reason, and the run continues."""
    llm = ScriptedLLM([execute("count", 1), execute("count", "many"), execute("cuont", 3), execute("names", ["a"]), EVALUATE])  # fmt: skip
    result = await run_agent("count", llm, tools={"put": put}, state=kind)
    assert (result.status, result.raw_data) == ("completed", {"count": 1, "names": ["a"]})
    good, wrong, unknown, _ = result.tool_results
    assert good.error is None
    assert f"does not fit {kind.__name__}: " in wrong.error
    assert "count" in wrong.error
    assert "did you mean 'count'?" in unknown.error


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_dispatch_of_an_invalid_update_raises(kind):
    """All changes of an action apply or none. Results of reducers are checked."""
    agent = BareAgent("a", llm=ScriptedLLM([]), state=kind, reducers={"names": append})
    async with agent:
        session = await agent.create_session("ada")
        session.state.dispatch(("names", "a"))
        with pytest.raises(InvalidState) as caught:
            session.state.dispatch([("count", 1), ("names", 3)])
        assert caught.value.type_name == kind.__name__
        assert dict(session.state) == {"names": ["a"]}
        session.state.dispatch([("count", 1), ("names", "b")])
        assert dict(session.state) == {"names": ["a", "b"], "count": 1}
        with pytest.raises(InvalidState):
            session.state.fork().dispatch(("count", None))


async def test_validators_of_the_class_see_the_whole_state():
    """Two keys that fit alone may not fit together."""
    async with BareAgent("a", llm=ScriptedLLM([]), state=PydanticState) as agent:
        session = await agent.create_session("ada")
        session.state.dispatch([("count", 3), ("limit", 5)])
        with pytest.raises(InvalidState, match="count is above limit"):
            session.state.dispatch(("count", 9))
        assert session.state["count"] == 3
    async with BareAgent("a", llm=ScriptedLLM([]), state=AttrsState) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(InvalidState, match="count"):
            session.state.dispatch(("count", -1))


async def test_the_model_gets_the_error_of_an_invalid_custom_action():
    """The next request states the error; a model that repeats it ends as for malformed answers."""
    act = json.dumps({"action": "set", "params": {"n": "many"}})
    right = json.dumps({"action": "set", "params": {"n": 2}})
    own = CustomAction("set", "Set the count.", lambda _, params: ("count", params["n"]))
    llm = ScriptedLLM([execute("count", 1), act, right, EVALUATE])
    result = await run_agent("count", llm, tools={"put": put}, actions=[own], state=AttrsState)
    assert (result.status, result.raw_data) == ("completed", {"count": 2})
    assert any(
        "does not fit AttrsState" in part.text for message in llm.chats[2].messages for part in message.parts
    )
    llm = ScriptedLLM([execute("count", 1), *[act] * 9])
    result = await run_agent("count", llm, tools={"put": put}, actions=[own], state=AttrsState)
    assert (result.status, result.raw_data, len(llm.chats)) == ("error", {"count": 1}, 4)


@pytest.mark.parametrize("kind", [StepsAgent, PlanAgent, GoalAgent])
async def test_state_type_ignores_keys_of_protocols(kind):
    """Actgent stores plans in the state."""
    llm = ScriptedLLM(['{"plan": "x"}', '{"final_answer": "y"}', *["z"] * 9])
    async with kind("a", llm=llm, state=DictState) as agent:
        session = await agent.create_session("ada")
        failures = []
        session.on_exception(failures.append)
        await session.chat("go")
        await session.wait_idle()
    assert not [each for each in failures if isinstance(each.error, InvalidState)]


async def test_stored_state_is_not_checked_again():
    """The type may have changed since."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM([])))
            session = await agent.create_session("ada", session_id="s")
            session.state.dispatch(("other", 1))
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM([]), state=DictState))
            session = await agent.open_session("s")
            assert dict(session.state) == {"other": 1}
            with pytest.raises(InvalidState):
                session.state.dispatch(("other", 2))


def test_store_accepts_a_type_check():
    """The store is for states outside of agents."""
    store = Store({"count": 1}, check=state_check_of(AttrsState))
    with pytest.raises(InvalidState):
        store.dispatch(("count", "x"))
    assert dict(store) == {"count": 1}


@pytest.mark.parametrize("wrong", [int, dict, {"count": int}, "AttrsState", AttrsState()])
def test_state_class_without_fields_is_rejected(wrong):
    """The error is raised when the agent is created."""
    with pytest.raises(ConfigurationError, match=r"state=|JSON Schema"):
        BareAgent("a", llm=ScriptedLLM([]), state=wrong)
