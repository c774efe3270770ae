"""Approvals with a form and a risk: requested by tools and by rules, checked by field, and durable."""

import json
from collections import ChainMap
from types import MappingProxyType

import pytest

from actgent import (
    ApprovalRequest,
    ApprovalRequired,
    Approve,
    BareAgent,
    ConfigurationError,
    HandlerFailed,
    InvalidArguments,
    Respond,
    ScriptedLLM,
    Suspended,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.forms import Field, fields_of

FORM = [
    Field("nights", "number", minimum=1),
    Field("from", "date"),
    Field("room", "select", options=["single", "double"], required=False),
    Field("agreed", "confirm"),
]
GOOD = {"nights": 2, "from": "2027-01-31", "agreed": True}


@tool(approval=ApprovalRequest("Which nights?", form=FORM, risk="high"))
async def book(hotel: str, context: ToolContext) -> str:
    """Book a hotel."""
    return f"{hotel}: {context.approval.content}"


@tool
async def survey(topic: str) -> str:
    """Ask a person what they think."""
    raise ApprovalRequired(f"What of {topic}?", form=Field("score", "number", maximum=10), risk="low")


def desk(*answers):
    last = lambda chat: chat.messages[-1].parts[0].text  # noqa: E731 - the last text in the model request
    return BareAgent("desk", llm=ScriptedLLM([*answers, last]), tools=[book, survey])


async def suspended(agent, session):
    with pytest.raises(Suspended):
        await agent.run("go", session=session)
    return session.approvals[0]


async def test_a_call_runs_with_the_content_of_its_form(tmp_path):
    """The approval keeps its form and risk after a restart, and the tool receives the content of the decision."""
    address = f"sqlite:///{tmp_path / 'j.db'}"
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(desk(ToolCall("book", {"hotel": "Ritz"})))
        asked = await suspended(agent, await agent.create_session("ada", session_id="s"))
        assert (asked.question, asked.risk) == ("Which nights?", "high")
        assert [each.kind for each in fields_of(asked.form)] == ["number", "date", "select", "confirm"]
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(desk())
        session = await agent.open_session("s")
        (again,) = session.approvals
        assert (again.form, again.risk, again.id) == (asked.form, "high", asked.id)
        reply = await agent.resume({again.id: Approve(content=GOOD)})
        assert reply.text == f"Ritz: {GOOD}"


@pytest.mark.parametrize(
    "decision",
    [
        Approve(),
        Approve(content={**GOOD, "nights": 0}),
        Approve(content={**GOOD, "from": "2027-02-30"}),
        Approve(content={**GOOD, "room": "suite"}),
        Approve(content={**GOOD, "agreed": False}),
    ],
)
async def test_decision_with_invalid_fields_leaves_the_approval_open(decision):
    """An approval without content or with a wrong field is rejected and stays open. A correct one resumes the call."""
    async with desk(ToolCall("book", {"hotel": "Ritz"})) as agent:
        session = await agent.create_session("ada")
        asked = await suspended(agent, session)
        with pytest.raises(InvalidArguments, match="book"):
            await session.answer(asked, decision)
        assert session.approvals == (asked,)
        assert (await agent.resume({asked.id: Approve(content=GOOD)})).text == f"Ritz: {GOOD}"


async def test_form_of_a_tool_is_checked_and_becomes_its_result():
    """The decision on a form that a tool requests is checked and becomes the tool result."""
    async with desk(ToolCall("survey", {"topic": "tea"})) as agent:
        session = await agent.create_session("ada")
        asked = await suspended(agent, session)
        assert (asked.risk, asked.again) == ("low", False)
        with pytest.raises(InvalidArguments, match="11"):
            await session.answer(asked, Respond({"score": 11}))
        assert (await agent.resume({asked.id: Respond({"score": 9})})).text == '{"score": 9}'


async def test_an_invalid_form_is_an_error_for_the_model():
    """An invalid form creates no approval, and the model reads the reason."""

    @tool
    async def odd() -> str:
        """Ask wrongly."""
        raise ApprovalRequired("What?", form=["name"])

    last = lambda chat: chat.messages[-1].parts[0].text  # noqa: E731 - as above
    async with BareAgent("desk", llm=ScriptedLLM([ToolCall("odd", {}), last]), tools=[odd]) as agent:
        assert "Field objects of actgent.forms" in (await agent.run("go")).text
    with pytest.raises(ConfigurationError, match="risk"):
        ApprovalRequest("?", risk="awful")
    with pytest.raises(ConfigurationError, match="form"):
        ApprovalRequest("?", form="name")


DEEP = {"type": "object"}
for _ in range(3_000):
    DEEP = {"properties": {"x": DEEP}}
UNUSABLE = {
    "no schema": {"type": "object", "required": 5},
    "a lost reference": {"properties": {"x": {"$ref": "#/nowhere"}}},
    "half a pair": {"properties": {"\ud800": {"type": "string"}}},
    "no number": {"default": float("nan")},
    "no JSON": {"default": object()},
    "too deep": DEEP,
    "nothing of a form": True,
}


@pytest.mark.parametrize("form", UNUSABLE.values(), ids=UNUSABLE)
async def test_forms_that_cannot_be_checked_are_rejected(form):
    """An unusable form fails the call or the guard. It could not be approved or stored in a journal."""

    @tool
    async def ask() -> str:
        """Ask."""
        raise ApprovalRequired("What?", form=form)

    @tool(approval=lambda _: ApprovalRequest("May it?", form=form))
    async def run() -> str:
        """Run."""
        return "it ran"

    calls = [ToolCall("ask", {}), ToolCall("run", {})]
    agent = BareAgent("desk", llm=ScriptedLLM([*calls, "ok", "never said"]), tools=[ask, run])
    results = []
    async with agent:
        session = await agent.create_session("ada")
        session.on_tool_result(results.append)
        assert str(await agent.run("go", session=session)) == "ok"
        assert [result.status for result in results] == ["error", "error"]
        assert all("JSON Schema" in result.error for result in results)
        agent.guard(lambda _: ApprovalRequest("May they?", form=form))
        with pytest.raises(HandlerFailed, match="JSON Schema"):
            await agent.run("go", session=session)
        assert not session.approvals


async def test_a_member_of_a_form_may_be_true():
    """A property schema may be `True`, as in JSON Schema. An approval without content is then valid."""

    @tool(approval=ApprovalRequest("May it?", form={"type": "object", "properties": {"why": True}}))
    async def run() -> str:
        """Run."""
        return "it ran"

    agent = BareAgent("desk", llm=ScriptedLLM([ToolCall("run", {}), "ok"]), tools=[run])
    async with agent:
        session = await agent.create_session("ada")
        await session.answer(await suspended(agent, session), Approve())
        await session.wait_idle()
        assert str(session.history[-1].text) == "ok"


async def test_form_of_any_mapping_type_becomes_plain_json():
    """Forms of any mapping type become plain dicts in the approval, and the decisions are checked."""
    member = MappingProxyType({"type": "string"})
    form = MappingProxyType({"properties": ChainMap({"name": member}), "required": ("name",)})

    @tool
    async def ask() -> str:
        """Ask."""
        raise ApprovalRequired("Who?", form=form)

    @tool(approval=lambda _: ApprovalRequest("May it?", form=form))
    async def run() -> str:
        """Run."""
        return "it ran"

    llm = ScriptedLLM([ToolCall("ask", {}), "done", ToolCall("run", {}), "done"])
    names = []
    async with BareAgent("desk", llm=llm, tools=[ask, run]) as agent:
        session = await agent.create_session("ada")
        for _ in range(3):
            asked = await suspended(agent, session)
            names.append(asked.tool_name)
            assert json.loads(json.dumps(asked.form)) == asked.form == PLAIN
            with pytest.raises(InvalidArguments):
                await session.answer(asked, Respond({"name": 5}))
            await session.answer(asked, Respond({"name": "Ann"}))
            await session.wait_idle()
            if "run" in names:
                agent.guard(lambda _: ApprovalRequest("May they?", form=form))
    assert names[:2] == ["ask", "run"]
    assert len(set(names)) == 3


PLAIN = {"properties": {"name": {"type": "string"}}, "required": ["name"]}
