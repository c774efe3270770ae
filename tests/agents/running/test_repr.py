"""Representations of sessions, turns, agents and inboxes: their state in one line, without message texts."""

import trio

from actgent import Approve, BareAgent, ScriptedLLM, ToolCall, open_runtime, tool

SECRET = "hunter2"
LONG = "n" * 200


@tool
def pay() -> str:
    """Pay."""
    return SECRET


async def test_repr_of_a_session(autojump_clock):
    """It shows its agent, its id, its status, and the length of its record."""
    seen = []

    def answer(chat):
        seen.append(repr(session._context))
        return SECRET

    async with BareAgent("clerk", llm=ScriptedLLM(answer)) as agent:
        session = await agent.create_session("ada", session_id="s1")
        context = session._context
        context.set_system(SECRET)
        assert repr(context) == "<SessionContext clerk/s1 idle, 0 messages>"
        await session.chat(SECRET)
        await session.wait_idle()
        assert seen == ["<SessionContext clerk/s1 working, 1 message>"]
        assert repr(context) == "<SessionContext clerk/s1 idle, 2 messages>"
        await session.aclose()
        assert repr(context) == "<SessionContext clerk/s1 closed, 2 messages>"


async def test_repr_of_a_turn(autojump_clock):
    """It shows its message, its session, its state, and the number of its model calls."""
    seen = []

    async def answer(chat):
        turn = session._context.turn
        if turn.message.id == "m2":
            turn.interrupt(SECRET)
        seen.append(repr(turn))
        return ToolCall("pay", {}, "c1") if len(seen) == 1 else SECRET

    llm = ScriptedLLM(answer, keep=0)
    async with BareAgent("clerk", llm=llm, tools=[pay], approval=lambda *_: True) as agent:
        session = await agent.create_session("ada", session_id="s1")
        await session.chat(SECRET, message_id="m1")
        await session.wait_idle()
        assert repr(session._context) == "<SessionContext clerk/s1 suspended, 2 messages>"
        turn = session._context.suspension.turn
        assert repr(turn) == "<Turn of m1 in s1, suspended, 1 model call>"
        await session.answer(session.approvals[0], Approve())
        await session.wait_idle()
        assert repr(turn) == "<Turn of m1 in s1, over, 2 model calls>"
        await session.chat(SECRET, message_id="m2")
        await session.wait_idle()
    assert seen.pop() == "<Turn of m2 in s1, ending, 1 model call>"
    assert seen == ["<Turn of m1 in s1, running, 1 model call>", "<Turn of m1 in s1, running, 2 model calls>"]


async def test_repr_of_an_agent_and_its_inbox(autojump_clock):
    """It shows the state of the agent, its number of sessions and running turns, and the number of queued messages."""

    async def answer(chat):
        await trio.sleep(5)
        return SECRET

    async with open_runtime() as runtime:
        agent = await runtime.start(
            BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), max_concurrent_sessions=1)
        )
        running = runtime.agents.opener("clerk").running
        await trio.testing.wait_all_tasks_blocked()
        assert repr(running) == "<AgentActor clerk running, 0 sessions, 0 working, 0 messages queued>"
        for name in ("s1", "s2", "s3"):
            await agent.create_session("ada", SECRET, session_id=name)
        assert repr(running) == "<AgentActor clerk running, 3 sessions, 1 working, 2 messages queued>"
        assert repr(running.inbox) == "<PriorityInbox agent clerk, 2 of 1,000 waiting, 0 urgent, 1 claimed>"
    assert repr(running) == "<AgentActor clerk stopped, 3 sessions, 0 working, 0 messages queued>"


async def test_long_ids_are_truncated_in_reprs(autojump_clock):
    """A repr is one line at most, with any names of agents, sessions and messages."""
    async with BareAgent(LONG, llm=ScriptedLLM(["hi"], repeat=True)) as agent:
        parent = await agent.create_session("ada", session_id="p" + LONG[1:])
        child = await agent.create_session("ada", parent=parent, session_id=LONG)
        await child.chat("hello", message_id=LONG)
        running = agent._opener.running
        for each in (parent._context, child._context, child._context.turn, running, running.inbox):
            assert len(repr(each)) <= 300
