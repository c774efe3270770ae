"""Agents among each other: routes, agents as tools, and addresses."""

import json

import pytest
import trio

from actgent import (
    BareAgent,
    DeadlineExceeded,
    Instruction,
    NotAuthorized,
    RouterAgent,
    ScriptedLLM,
    ToolCall,
    ToolResult,
    open_runtime,
)
from actgent.testing import assert_valid_transcript


def action(name, **more):
    return json.dumps({"top_level_intent": "ACTION", "second_level_intent": name, **more})


def kinds(heard):
    return [getattr(item, "kind", type(item).__name__) for item in heard]


async def test_router_without_a_route_emits_routing_and_reply(listen):
    """Handlers receive the route first, then the text of the same answer."""
    llm = ScriptedLLM([action("billing", data={"id": 7}, response="ok")])
    async with RouterAgent("desk", llm=llm) as agent:
        session = await agent.create_session("ada", "my bill?")
        heard = listen(session)
        await session.wait_idle()
    assert kinds(heard) == ["Route", "Reply"]
    assert (heard[0].action, heard[0].data, str(heard[1])) == ("billing", {"id": 7}, "ok")


async def test_a_route_lets_another_agent_answer(listen):
    """Its reply is a conversation of this session after the router's own text, and is part of the history."""
    clerk_llm = ScriptedLLM(["It is 5 euros.", "Still 5."])
    clerk = BareAgent("clerk", llm=clerk_llm)
    desk_llm = ScriptedLLM([action("billing", response="One moment."), action("billing")])
    async with RouterAgent("desk", llm=desk_llm, routes={"billing": clerk}) as agent:
        session = await agent.create_session("ada", "my bill?")
        heard = listen(session)
        await session.wait_idle()
        assert kinds(heard) == ["Route", "Reply", "Reply"]
        assert [str(item) for item in heard[1:]] == ["One moment.", "It is 5 euros."]
        assert (session.history[-1].sender.name, session.history[-1].text) == ("clerk", "It is 5 euros.")
        assert str(await agent.run("sure?", session=session)) == "Still 5."
    assert [m.parts[0].text for m in clerk_llm.chats[1].messages] == ["my bill?", "It is 5 euros.", "sure?"]
    assert any(
        m.parts[0].text == "It is 5 euros." and m.role == "assistant" for m in desk_llm.chats[1].messages
    )
    for chat in (*desk_llm.chats, *clerk_llm.chats):
        assert_valid_transcript(chat)


async def test_run_gives_the_answer_of_the_agent_that_answered():
    """It is not the router's own text; nothing of either session remains."""
    clerk = BareAgent("clerk", llm=ScriptedLLM(["It is 5 euros."]))
    llm = ScriptedLLM([action("billing", response="One moment.")])
    async with RouterAgent("desk", llm=llm, routes={"billing": clerk}) as agent:
        assert str(await agent.run("my bill?")) == "It is 5 euros."
        assert agent._opener.running.sessions == clerk._opener.running.sessions == {}


async def test_closing_a_session_closes_its_routes(listen):
    """The other agent's session lasts as long as this one."""
    clerk = BareAgent("clerk", llm=ScriptedLLM(["5"]))
    async with RouterAgent("desk", llm=ScriptedLLM([action("billing")]), routes={"billing": clerk}) as agent:
        session = await agent.create_session("ada", "my bill?")
        await session.wait_idle()
        assert len(clerk._opener.running.sessions) == 1
        await session.aclose()
        assert clerk._opener.running.sessions == {}


async def test_error_of_a_routed_agent_fails_the_turn(listen):
    """The failure has the error of the other agent."""
    error = NotAuthorized("no")
    clerk = BareAgent("clerk", llm=ScriptedLLM([error, "fine"]))
    llm = ScriptedLLM([action("billing"), action("billing")])
    async with RouterAgent("desk", llm=llm, routes={"billing": clerk}) as agent:
        session = await agent.create_session("ada", "my bill?")
        heard = listen(session)
        await session.wait_idle()
        await session.chat("again")
        await session.wait_idle()
    assert kinds(heard) == ["Route", "model", "Route", "Reply"]
    assert heard[1].error is error


async def test_routers_may_route_to_each_other(listen):
    """A chain of routes ends at the agent that answers."""
    clerk = BareAgent("clerk", llm=ScriptedLLM(["5"]))
    middle = RouterAgent("middle", llm=ScriptedLLM([action("money")]), routes={"money": clerk})
    async with RouterAgent("desk", llm=ScriptedLLM([action("office")]), routes={"office": middle}) as agent:
        assert str(await agent.run("my bill?")) == "5"


async def test_an_agent_is_a_tool_of_another(listen):
    """It starts with the other agent, gets a task as text, and its answer is the result."""
    helper_llm = ScriptedLLM(["Paris"])
    helper = BareAgent("geo helper", llm=helper_llm, goal="know places")
    tool = helper.as_tool()
    assert tool.name == "geo_helper"
    assert "know places" in tool.description
    llm = ScriptedLLM([ToolCall("geo_helper", {"task": "Capital of France?"}), "It is Paris."])
    async with BareAgent("a", llm=llm, tools=[tool]) as agent:
        session = await agent.create_session("ada", "hi")
        heard = listen(session)
        await session.wait_idle()
        assert helper._opener.running.sessions == {}
    assert isinstance(heard[0], ToolResult)
    assert (heard[0].content, str(heard[1])) == ("Paris", "It is Paris.")
    assert helper_llm.chats[0].messages[0].parts[0].text == "Capital of France?"


async def test_an_agent_as_a_tool_that_fails_is_a_failed_tool(listen):
    """The model reads the error."""
    helper = BareAgent("helper", llm=ScriptedLLM([NotAuthorized("wrong key")]))
    llm = ScriptedLLM([ToolCall("ask", {"task": "x"}), "sorry"])
    async with BareAgent("a", llm=llm, tools=[helper.as_tool("ask", "Ask it.")]) as agent:
        session = await agent.create_session("ada", "hi")
        heard = listen(session)
        await session.wait_idle()
    assert (heard[0].status, "wrong key" in heard[0].error) == ("error", True)


async def test_agent_ref_asks_and_tells(listen):
    """`ask` waits for the answer, `tell` only until the inbox has accepted the message."""
    llm = ScriptedLLM(lambda chat: chat.messages[-1].parts[0].text.upper())
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=llm))
        assert str(await agent.ref.ask("hello")) == "HELLO"
        await agent.ref.tell("bye")
        await trio.testing.wait_all_tasks_blocked()
        assert agent._opener.running.sessions == {}
    assert len(llm.chats) == 2


async def test_an_ask_has_a_deadline(autojump_clock):
    """30 seconds by default; then the turn is stopped."""
    async with BareAgent("a", llm=ScriptedLLM(lambda _: "x", delay=100), grace=0) as agent:
        with pytest.raises(DeadlineExceeded):
            await agent.ref.ask("hello")
        assert trio.current_time() == pytest.approx(30)
        with pytest.raises(DeadlineExceeded):
            await agent.ref.ask("hello", deadline=1)
        assert trio.current_time() == pytest.approx(31)
        await trio.testing.wait_all_tasks_blocked()
        assert agent._opener.running.sessions == {}


async def test_leaving_the_block_lets_a_turn_ask_its_helper_still(autojump_clock, listen):
    """Accepted messages are drained, and helpers answer them."""
    helper = BareAgent("helper", llm=ScriptedLLM(["Paris"], delay=1))
    llm = ScriptedLLM([ToolCall("helper", {"task": "x"}), "It is Paris."], delay=1)
    async with BareAgent("a", llm=llm, tools=[helper.as_tool()]) as agent:
        session = await agent.create_session("ada", "hi")
        heard = listen(session)
    assert kinds(heard) == ["ToolResult", "Reply"]
    assert heard[0].status == "success"


@pytest.mark.parametrize("how", ["interrupt", "close", "urgent"])
async def test_stopping_a_session_stops_the_agent_that_answers_for_it(autojump_clock, listen, how):
    """At any point the turn ends at once, as one failure."""
    clerk_llm = ScriptedLLM(["late", "urgent answer"], delay=100)
    clerk = BareAgent("clerk", llm=clerk_llm)
    desk_llm = ScriptedLLM([action("billing"), '{"top_level_intent": "CONVERSATION", "response": "yes?"}'])
    async with RouterAgent("desk", llm=desk_llm, routes={"billing": clerk}) as agent:
        session = await agent.create_session("ada", "my bill?")
        heard = listen(session)
        await trio.sleep(1)
        if how == "interrupt":
            await session.interrupt("enough")
        elif how == "close":
            await session.aclose()
        else:
            await session.chat("now!", priority="urgent")
            await session.wait_idle()
        assert trio.current_time() < 2
        await trio.testing.wait_all_tasks_blocked()
        assert all(context.turn is None for context in clerk._opener.running.sessions.values())
        assert len(clerk._opener.running.sessions) == (how != "close")
    assert kinds(heard) == ["Route", "interrupted", *["Reply"] * (how == "urgent")]


def test_routes_without_instructions_are_described_to_the_model():
    """The description comes from the agent of the route. An instruction for the same route takes precedence."""
    agents = {
        "BILLING": BareAgent("billing", goal="answer questions about invoices", llm=ScriptedLLM(["x"])),
        "REPAIRS": BareAgent("repairs", role="the repair shop", llm=ScriptedLLM(["x"])),
    }
    told = [Instruction("BILLING", "what is paid and what is not")]
    prompt = RouterAgent("desk", llm=ScriptedLLM(["x"]), instructions=told, routes=agents).system_prompt
    assert "- BILLING: what is paid and what is not" in prompt
    assert "- REPAIRS: the repair shop" in prompt
    assert "invoices" not in prompt
