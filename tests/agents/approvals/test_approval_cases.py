"""Approval cases of the specifications: 17 of AppAgent's page, 21 to 27 of ART's."""

import json

import pytest

from actgent import (
    ApprovalNotFound,
    ApprovalRequired,
    Approve,
    BareAgent,
    NotSerializable,
    NotSuspended,
    PlanAgent,
    Reject,
    Respond,
    ScriptedLLM,
    Suspended,
    ToolCall,
    tool,
)

STEP = {"id": "step_1", "description": "deploy it", "status": "pending"}
PLAN = json.dumps({"intent": "ship", "plan": "deploy", "todoList": [STEP]})


class Prod:
    """Two tools that require approval, one normal tool, and the names of the tools that ran."""

    def __init__(self):
        self.ran = []

        @tool
        async def deploy_prod(version: int) -> str:
            """Deploy; a person says whether, and what they say is the result."""
            self.ran.append("deploy_prod")
            raise ApprovalRequired(f"Deploy version {version}?")

        @tool(approval=True)
        async def wipe() -> str:
            """Wipe everything."""
            self.ran.append("wipe")
            return "wiped"

        @tool
        async def normal() -> str:
            """Do something harmless."""
            self.ran.append("normal")
            return "fine"

        self.tools = [deploy_prod, wipe, normal]

    def agent(self, *answers, kind=BareAgent):
        self.llm = ScriptedLLM(list(answers))
        return kind("ops", llm=self.llm, tools=self.tools)


DEPLOY = ToolCall("deploy_prod", {"version": 2})


async def test_appagent_case_17():
    """A call is pending until the decision. A denied call is an error and does not run; an approved one runs once."""
    for decision, ran in ((Reject(), []), (Approve(), ["wipe"])):
        prod = Prod()
        async with prod.agent([ToolCall("wipe", {})], "so be it") as agent:
            session = await agent.create_session("ada", "wipe it")
            await session.wait_idle()
            assert (session.status, prod.ran) == ("suspended", [])
            await session.answer(session.approvals[0], decision)
            await session.wait_idle()
        assert prod.ran == ran
        (result,) = session.history[2].tool_results
        if ran:
            assert (result.status, result.content) == ("success", "wiped")
        else:
            assert result.status == "error"
            assert result.text.startswith("Error: User denied access to tool execution")


async def test_art_case_21():
    """A tool that raises `ApprovalRequired` runs once and is suspended under an id."""
    prod = Prod()
    async with prod.agent([DEPLOY], "done") as agent:
        with pytest.raises(Suspended) as waits:
            await agent.run("deploy")
        (approval,) = await agent.approvals()
        assert waits.value.ids == (approval.id,)
        assert prod.ran == ["deploy_prod"]
        await agent.resume({approval.id: Approve()})
    assert prod.ran == ["deploy_prod"]


async def test_art_case_22():
    """Of [blocking, normal] the normal call runs at once. The model is called after both have results."""
    prod = Prod()
    async with prod.agent([DEPLOY, ToolCall("normal", {})], "done") as agent:
        session = await agent.create_session("ada", "deploy")
        await session.wait_idle()
        assert sorted(prod.ran) == ["deploy_prod", "normal"]
        assert len(prod.llm.chats) == 1
        await session.answer(session.approvals[0], Respond("by hand"))
        await session.wait_idle()
    assert sorted(prod.ran) == ["deploy_prod", "normal"]
    assert [part.text for part in prod.llm.chats[1].messages[-1].parts] == ["by hand", "fine"]


async def test_art_case_23():
    """The next model request has a tool result with the decision as JSON."""
    prod = Prod()
    async with prod.agent([DEPLOY], "done") as agent:
        session = await agent.create_session("ada", "deploy")
        await session.wait_idle()
        await session.answer(session.approvals[0], Approve("ok"))
        await session.wait_idle()
    last = prod.llm.chats[1].messages[-1]
    assert (last.role, last.parts[0].tool_name) == ("tool", "deploy_prod")
    assert json.loads(last.parts[0].text) == {"approved": True, "reason": "ok"}


async def test_art_case_24():
    """The result of a rejected call has the tool name, the reason and the word IMPORTANT."""
    prod = Prod()
    async with prod.agent([DEPLOY], "done") as agent:
        session = await agent.create_session("ada", "deploy")
        await session.wait_idle()
        await session.answer(session.approvals[0], Reject("Too risky"))
        await session.wait_idle()
    text = prod.llm.chats[1].messages[-1].parts[0].text
    for expected in ("IMPORTANT: The user has REJECTED", "deploy_prod", "Too risky"):
        assert expected in text


async def test_art_case_25():
    """A decision without a suspension or with an unknown id raises a typed error."""
    prod = Prod()
    async with prod.agent([DEPLOY], "done") as agent:
        session = await agent.create_session("ada")
        with pytest.raises(NotSuspended, match="not in a suspended state"):
            await session.answer("anything", Approve())
        await session.chat("deploy")
        await session.wait_idle()
        (approval,) = session.approvals
        with pytest.raises(ApprovalNotFound, match="invalid suspension id"):
            await session.answer("wrong", Approve())
        await session.answer(approval, Approve())
        await session.wait_idle()
        with pytest.raises(NotSuspended, match="not in a suspended state"):
            await session.answer("wrong", Approve())


async def test_art_case_26():
    """A decision with a circular reference raises an error, and the session stays suspended."""
    prod = Prod()
    circle = {}
    circle["self"] = circle
    async with prod.agent([DEPLOY], "done") as agent:
        session = await agent.create_session("ada", "deploy")
        await session.wait_idle()
        (approval,) = session.approvals
        with pytest.raises(NotSerializable):
            await session.answer(approval, Respond(circle))
        assert session.status == "suspended"
        await session.answer(approval, Respond({"self": None}))
        await session.wait_idle()
    assert session.history[-1].text == "done"


async def test_art_case_27():
    """A plan is suspended with its item; after the decision the item continues and the plan ends."""
    prod = Prod()
    answers = (PLAN, [DEPLOY], json.dumps({"content": "it is out"}), "Version 2 is out.")
    async with prod.agent(*answers, kind=PlanAgent) as agent:
        result = await agent.process("ship it")
        assert (result.status, type(result.error)) == ("suspended", Suspended)
        assert [item.status for item in result.plan.items] == ["in_progress"]
        session = await agent.open_session(result.session_id)
        assert session.status == "suspended"
        reply = await agent.resume({id_: Approve() for id_ in result.error.ids})
        assert (reply.message_type, str(reply)) == ("success", "Version 2 is out.")
    assert prod.ran == ["deploy_prod"]
