"""The conversation of a session as users see it, and the links from its final answers to plans, calls and results."""

import json

import pytest

from actgent import (
    BareAgent,
    Instruction,
    PlanAgent,
    ProviderUnavailable,
    ScriptedLLM,
    SimpleAgent,
    StepsAgent,
    ToolCall,
    open_runtime,
    tool,
)

ROLES = ("user", "assistant")
STEP = {"id": "step_1", "description": "look it up"}
PLAN = json.dumps({"thoughts": "One step.", "intent": "know", "plan": "look", "todoList": [STEP]})
CALLS = json.dumps(
    {
        "intent": "know",
        "plan": "look",
        "toolCalls": [{"toolName": "look", "arguments": {"what": what}} for what in ("sums", "tables")],
    }
)


@tool(effect="pure")
def look(what: str) -> str:
    """Look something up."""
    return f"found {what}"


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_conversation_does_not_contain_plans(journal):
    """It has only the user's message and the final answer. The whole record has the plan, with its stage."""
    llm = ScriptedLLM([PLAN, ToolCall("look", {"what": "sums"}), json.dumps({"content": "5"}), "It is 5."])
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(PlanAgent("tutor", llm=llm, tools=[look]))
        session = await agent.create_session("ada")
        await agent.process("What is 2+3?", session=session)
        page = await session.messages(roles=ROLES)
        assert [each.text for each in page] == ["What is 2+3?", "It is 5."]
        final = page.messages[-1]
        links = await session.message_trace(final)
        stages = [each.metadata["stage"] for each in links.steps if each.sender.kind == "assistant"]
        assert stages == ["planning", "execution", "execution"]
        assert final.metadata == {"stage": "synthesis"}
        assert links.steps[0].text == PLAN
        assert {"THOUGHTS", "INTENT", "PLAN", "TOOL_EXECUTION"} <= {each.type for each in links.observations}
        assert [each.text for each in await session.messages()][:2] == ["What is 2+3?", PLAN]


async def test_conversation_does_not_contain_plans_of_failed_turns():
    """The last message of the turn is a plan, and no answer follows it."""
    async with PlanAgent("tutor", llm=ScriptedLLM([PLAN, ProviderUnavailable("down")])) as agent:
        session = await agent.create_session("ada")
        assert (await agent.process("q", session=session)).status == "error"
        assert [each.text for each in await session.messages(roles=ROLES)] == ["q"]


async def test_conversation_pages_may_end_after_a_plan(monkeypatch):
    """A page of the record may end between a plan and the message that follows it."""
    monkeypatch.setattr("actgent.sessions.subscriptions.message_search.PAGE_SIZE", 2)
    llm = ScriptedLLM([[ToolCall("look", {"what": "sums"})], "a", [ToolCall("look", {"what": "x"})], "b"])
    async with BareAgent("tutor", llm=llm, tools=[look]) as agent:
        session = await agent.create_session("ada")
        for question in ("q1", "q2"):
            await agent.run(question, session=session)
        assert [each.text for each in await session.messages(roles=ROLES)] == ["q1", "a", "q2", "b"]
        forward = await session.messages(roles=ROLES, after=0, limit=2)
        assert [each.text for each in forward] == ["a", "q2"]
        for index in range(len(session.history)):
            before = await session.messages(roles=ROLES, before=index)
            shown = [each for each in session.history[:index] if each.text in ("q1", "a", "q2", "b")]
            assert list(before) == shown


def invoked(*what):
    """A tool call of the `simple` protocol in text."""
    calls = [{"name": "look", "parameters": {"what": each}} for each in what]
    return json.dumps({"messageType": "TOOL_INVOCATION", "content": calls})


SIMPLE = json.dumps({"messageType": "DIRECT_RESPONSE", "content": "It is 5."})
STEPS = json.dumps(
    {
        "tool_thought": "look",
        "tool_calls": [{"tool_name": "look", "tool_args": {"what": what}} for what in ("sums", "tables")],
    }
)
TEXT_CALLS = [
    (PlanAgent, [CALLS, "It is 5."]),
    (SimpleAgent, [invoked("sums", "tables"), SIMPLE]),
    (StepsAgent, [STEPS, json.dumps({"final_answer": "It is 5."})]),
]


@pytest.mark.parametrize(("kind", "script"), TEXT_CALLS, ids=[kind.__name__ for kind, _ in TEXT_CALLS])
async def test_calls_in_text_are_linked_also_after_a_restart(kind, script, tmp_path):
    """Both the answer that wrote them and the final answer have the calls and their results."""
    url = f"sqlite:///{tmp_path}/agents.db"

    async def check(session):
        final = (await session.messages(roles=ROLES)).messages[-1]
        for message in (session.history[1], final):
            links = await session.message_trace(message)
            assert [(call.name, call.arguments) for call in links.calls] == [
                ("look", {"what": "sums"}),
                ("look", {"what": "tables"}),
            ]
            assert [each.content for each in links.results] == ["found sums", "found tables"]
            assert {each.call_id for each in links.results} == {call.id for call in links.calls}

    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(kind("tutor", llm=ScriptedLLM(script), tools=[look]))
        session = await agent.ensure_session("ada", "s")
        await agent.run("q", session=session)
        await check(session)
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(kind("tutor", llm=ScriptedLLM([]), tools=[look]))
        await check(await agent.open_session("s"))


async def test_a_single_call_in_text_is_linked_after_a_restart(tmp_path):
    """The journal has one call in another field than several."""
    url = f"sqlite:///{tmp_path}/agents.db"
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(
            SimpleAgent("t", llm=ScriptedLLM([invoked("sums"), SIMPLE]), tools=[look])
        )
        await agent.run("q", session=await agent.ensure_session("ada", "s"))
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(SimpleAgent("t", llm=ScriptedLLM([]), tools=[look]))
        session = await agent.open_session("s")
        (call,) = (await session.message_trace(session.history[-1])).calls
        assert (call.name, call.arguments) == ("look", {"what": "sums"})


async def test_the_answer_of_a_mapped_tool_is_part_of_the_conversation():
    """The user received its text before the tool ran."""
    kind = Instruction(
        "Look", schema={"type": "object", "properties": {"what": {"type": "string"}}}, tool="look"
    )
    answer = json.dumps({"messageType": "Look", "content": {"what": "sums"}})
    agent = SimpleAgent("t", llm=ScriptedLLM([answer, SIMPLE]), tools=[look], instructions=[kind])
    async with agent:
        session = await agent.create_session("ada")
        await agent.run("q", session=session)
        assert [each.text for each in await session.messages(roles=ROLES)] == ["q", answer, SIMPLE]


async def test_the_models_view_has_the_plan():
    """The model is still shown the plan and its results before it answers."""
    llm = ScriptedLLM([CALLS, "It is 5.", CALLS, "It is 6."])
    async with PlanAgent("tutor", llm=llm, tools=[look]) as agent:
        session = await agent.create_session("ada")
        await agent.process("q", session=session)
        await agent.process("and 3+3?", session=session)
    shown = [message.parts[0].text for message in llm.chats[2].messages]
    assert CALLS in shown
    assert "It is 5." in shown
