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
        received = listen(session)
        await session.wait_idle()
    assert kinds(received) == ["Route", "Reply"]
    assert (received[0].action, received[0].data, str(received[1])) == ("billing", {"id": 7}, "ok")


async def test_a_route_lets_another_agent_answer(listen):
    """The routed agent's reply follows the router's own text in this session, and is part of the history."""
    clerk_llm = ScriptedLLM(["It is 5 euros.", "Still 5."])
    clerk = BareAgent("clerk", llm=clerk_llm)
    desk_llm = ScriptedLLM([action("billing", response="One moment."), action("billing")])
    async with RouterAgent("desk", llm=desk_llm, routes={"billing": clerk}) as agent:
        session = await agent.create_session("ada", "my bill?")
        received = listen(session)
        await session.wait_idle()
        assert kinds(received) == ["Route", "Reply", "Reply"]
        assert [str(item) for item in received[1:]] == ["One moment.", "It is 5 euros."]
        assert (session.history[-1].sender.name, session.history[-1].text) == ("clerk", "It is 5 euros.")
        assert str(await agent.run("sure?", session=session)) == "Still 5."
    assert [m.parts[0].text for m in clerk_llm.chats[1].messages] == ["my bill?", "It is 5 euros.", "sure?"]
    assert any(
        m.parts[0].text == "It is 5 euros." and m.role == "assistant" for m in desk_llm.chats[1].messages
    )
    for chat in (*desk_llm.chats, *clerk_llm.chats):
        assert_valid_transcript(chat)


async def test_run_returns_the_reply_of_the_routed_agent():
    """The reply is not the router's own text. Both sessions are closed."""
    clerk = BareAgent("clerk", llm=ScriptedLLM(["It is 5 euros."]))
    llm = ScriptedLLM([action("billing", response="One moment.")])
    async with RouterAgent("desk", llm=llm, routes={"billing": clerk}) as agent:
        assert str(await agent.run("my bill?")) == "It is 5 euros."
        assert agent._opener.running.sessions == clerk._opener.running.sessions == {}


async def test_closing_a_session_closes_its_routes(listen):
    """The session of the routed agent stays open as long as the router's session."""
    clerk = BareAgent("clerk", llm=ScriptedLLM(["5"]))
    async with RouterAgent("desk", llm=ScriptedLLM([action("billing")]), routes={"billing": clerk}) as agent:
        session = await agent.create_session("ada", "my bill?")
        await session.wait_idle()
        assert len(clerk._opener.running.sessions) == 1
        await session.aclose()
        assert clerk._opener.running.sessions == {}


async def test_error_of_a_routed_agent_fails_the_turn(listen):
    """The failure has the error of the routed agent."""
    error = NotAuthorized("no")
    clerk = BareAgent("clerk", llm=ScriptedLLM([error, "fine"]))
    llm = ScriptedLLM([action("billing"), action("billing")])
    async with RouterAgent("desk", llm=llm, routes={"billing": clerk}) as agent:
        session = await agent.create_session("ada", "my bill?")
        received = listen(session)
        await session.wait_idle()
        await session.chat("again")
        await session.wait_idle()
    assert kinds(received) == ["Route", "model", "Route", "Reply"]
    assert received[1].error is error


async def test_routers_may_route_to_each_other(listen):
    """A chain of routes ends at the agent that answers."""
    clerk = BareAgent("clerk", llm=ScriptedLLM(["5"]))
    middle = RouterAgent("middle", llm=ScriptedLLM([action("money")]), routes={"money": clerk})
    async with RouterAgent("desk", llm=ScriptedLLM([action("office")]), routes={"office": middle}) as agent:
        assert str(await agent.run("my bill?")) == "5"


async def test_agent_as_a_tool_returns_its_answer(listen):
    """The agent starts with the calling agent, gets a task as text, and its answer is the tool result."""
    helper_llm = ScriptedLLM(["Paris"])
    helper = BareAgent("geo helper", llm=helper_llm, goal="know places")
    tool = helper.as_tool()
    assert tool.name == "geo_helper"
    assert "know places" in tool.description
    llm = ScriptedLLM([ToolCall("geo_helper", {"task": "Capital of France?"}), "It is Paris."])
    async with BareAgent("a", llm=llm, tools=[tool]) as agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
        assert helper._opener.running.sessions == {}
    assert isinstance(received[0], ToolResult)
    assert (received[0].content, str(received[1])) == ("Paris", "It is Paris.")
    assert helper_llm.chats[0].messages[0].parts[0].text == "Capital of France?"


async def test_an_agent_as_a_tool_that_fails_is_a_failed_tool(listen):
    """The model reads the error."""
    helper = BareAgent("helper", llm=ScriptedLLM([NotAuthorized("wrong key")]))
    llm = ScriptedLLM([ToolCall("ask", {"task": "x"}), "sorry"])
    async with BareAgent("a", llm=llm, tools=[helper.as_tool("ask", "Ask it.")]) as agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
    assert (received[0].status, "wrong key" in received[0].error) == ("error", True)


async def test_agent_ref_supports_ask_and_tell(listen):
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
    """The deadline is 30 seconds by default; then the turn is stopped."""
    async with BareAgent("a", llm=ScriptedLLM(lambda _: "x", delay=100), grace=0) as agent:
        with pytest.raises(DeadlineExceeded):
            await agent.ref.ask("hello")
        assert trio.current_time() == pytest.approx(30)
        with pytest.raises(DeadlineExceeded):
            await agent.ref.ask("hello", deadline=1)
        assert trio.current_time() == pytest.approx(31)
        await trio.testing.wait_all_tasks_blocked()
        assert agent._opener.running.sessions == {}


async def test_draining_turn_can_still_ask_its_helper(autojump_clock, listen):
    """Leaving the block drains accepted messages, and helpers answer them."""
    helper = BareAgent("helper", llm=ScriptedLLM(["Paris"], delay=1))
    llm = ScriptedLLM([ToolCall("helper", {"task": "x"}), "It is Paris."], delay=1)
    async with BareAgent("a", llm=llm, tools=[helper.as_tool()]) as agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
    assert kinds(received) == ["ToolResult", "Reply"]
    assert received[0].status == "success"


@pytest.mark.parametrize("how", ["interrupt", "close", "urgent"])
async def test_stopping_a_session_stops_its_routed_agent(autojump_clock, listen, how):
    """At any point the turn ends at once, as one failure."""
    clerk_llm = ScriptedLLM(["late", "urgent answer"], delay=100)
    clerk = BareAgent("clerk", llm=clerk_llm)
    desk_llm = ScriptedLLM([action("billing"), '{"top_level_intent": "CONVERSATION", "response": "yes?"}'])
    async with RouterAgent("desk", llm=desk_llm, routes={"billing": clerk}) as agent:
        session = await agent.create_session("ada", "my bill?")
        received = listen(session)
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
    assert kinds(received) == ["Route", "interrupted", *["Reply"] * (how == "urgent")]


def test_routes_without_instructions_are_described_to_the_model():
    """The description comes from the agent of the route. An instruction for the same route takes precedence."""
    agents = {
        "BILLING": BareAgent("billing", goal="answer questions about invoices", llm=ScriptedLLM(["x"])),
        "REPAIRS": BareAgent("repairs", role="the repair shop", llm=ScriptedLLM(["x"])),
    }
    received = [Instruction("BILLING", "what is paid and what is not")]
    prompt = RouterAgent("desk", llm=ScriptedLLM(["x"]), instructions=received, routes=agents).system_prompt
    assert "- BILLING: what is paid and what is not" in prompt
    assert "- REPAIRS: the repair shop" in prompt
    assert "invoices" not in prompt
