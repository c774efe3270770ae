"""Answers of other agents carry their labels, also if another process or a later call reads them."""

import json

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    Label,
    Policy,
    Route,
    RouterAgent,
    ScriptedLLM,
    ToolCall,
    hand_back,
    handoff,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.testing import CrashingJournal
from actgent.tools import Batch, ToolRegistry

from .outer_tool import OuterTool
from .test_boundaries import PAY, page, reader, sink  # noqa: F401 - sink is a fixture

ANSWER = "It was read."
"""Answer of the agent `other`, which repeats no word of the page."""
ROUTE = json.dumps({"top_level_intent": "ACTION", "second_level_intent": "READ"})


def other_agent(has_origin, *, hands_back=False):
    """Return an agent `other` that reads the page itself or calls an agent that does, and the helper that `other` calls."""
    helper = reader()

    @tool
    async def consult() -> int:
        """Consult the reader."""
        return len((await helper.run("read")).text)

    script = [ToolCall("page" if has_origin else "consult", {}), ANSWER]
    if hands_back:
        script.insert(1, ToolCall("hand_back", {}))
    llm = ScriptedLLM(script, repeat=True)
    return BareAgent("other", llm=llm, tools=[page, consult, hand_back()]), helper


@pytest.mark.parametrize("has_origin", [True, False])
async def test_a_route_over_a_restart(has_origin):
    """The session keeps the sources of the answer of a routed agent."""
    async with MemoryJournal().running() as journal:
        for is_first in (True, False):
            other, helper = other_agent(has_origin)
            async with open_runtime(journal=journal) as runtime:
                for each in (helper, other):
                    await runtime.start(each)
                desk = await runtime.start(
                    RouterAgent("desk", llm=ScriptedLLM([ROUTE]), routes={"READ": other})
                )
                session = await desk.ensure_session("ada", "s")
                if is_first:
                    await session.chat("go")
                    await session.wait_idle()
                    assert session.history[-1].text == ANSWER
                assert session.label == Label({"page"})


@pytest.mark.parametrize("has_origin", [True, False])
@pytest.mark.parametrize("by", ["handoff", "route"])
async def test_an_answer_over_a_crash_at_any_write(by, has_origin, autojump_clock):
    """After a crash, the answer of the other agent and the session have the sources of that agent."""
    texts = []
    for writes in range(1, 50):
        replies = []
        async with MemoryJournal().running() as inner:
            journal = CrashingJournal(inner, writes)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_let_answer, journal, by, has_origin, lambda _: None)
                with trio.move_on_after(10):
                    await journal.died.wait()
                nursery.cancel_scope.cancel()
            label, text = await _let_answer(inner, by, has_origin, replies.append)
        texts.append(text)
        replies = [each for each in replies if each.text == ANSWER]
        assert [each.label for each in replies] == [Label({"page"})] * len(replies)
        if text == ANSWER:
            assert label == Label({"page"}), f"after write {writes}"
        if not journal.is_dead:
            break
    assert len(texts) > 5


async def _let_answer(journal, by, has_origin, on_reply):
    """Let the agent `other` answer in a session of the agent `desk`. Return the label and the last text of the session."""
    calls = iter([ToolCall("handoff_to_other", {}), *["unused"] * 5])
    other, helper = other_agent(has_origin, hands_back=by == "hand back")
    async with open_runtime(journal=journal) as runtime:
        for each in (helper, other):
            await runtime.start(each)
        if by != "route":
            desk = BareAgent("desk", llm=ScriptedLLM(lambda _: next(calls)), tools=[handoff(to=other)])
        else:
            desk = RouterAgent("desk", llm=ScriptedLLM([ROUTE]), routes={"READ": other})
        desk.on_session(lambda session: session.on_conversation(on_reply))
        await runtime.start(desk)
        session = await desk.ensure_session("ada", "s")
        if not session.history:
            await session.chat("go", message_id="m")
        await session.wait_idle()
        return session.label, session.history[-1].text


async def test_an_answer_after_an_approval(sink):  # noqa: F811
    """A tool that resumes a suspended session gets the sources that this session read after the approval."""
    script = [ToolCall("wait", {}), ToolCall("page", {}), "It was read."]

    @tool(approval=True)
    async def wait() -> str:
        """Wait."""
        return "waited"

    helper = BareAgent("helper", llm=ScriptedLLM(script), tools=[wait, page])
    sessions = []

    @tool
    async def ask() -> int:
        """Ask the helper."""
        sessions.append(await helper.create_session("ada"))
        await sessions[0].chat("read")
        await sessions[0].wait_idle()
        return len(sessions[0].approvals)

    @tool
    async def approve() -> int:
        """Approve the call of the helper."""
        decisions = {each.id: Approve() for each in sessions[0].approvals}
        return len((await helper.resume(decisions)).text)

    script = [ToolCall("ask", {}), ToolCall("approve", {}), PAY, "ok"]
    async with helper, sink.agent(script, tools=[ask, approve]) as agent:
        await agent.run("go", session=await agent.create_session("ada"))
    sink.assert_asked("page")


async def test_a_labelled_message_of_an_untrusted_turn(sink):  # noqa: F811
    """A message has the label that the program gave, and the sources of the turn that sends it."""
    payer = sink.agent([PAY, "ok"], name="payer")

    @tool(sinks=())
    async def forward() -> str:
        """Forward a mail."""
        session = await payer.create_session("ada")
        await session.chat("pay", label=Label({"mail:bob"}))
        await session.wait_idle()
        return "sent"

    script = [ToolCall("page", {}), ToolCall("forward", {}), "ok"]
    async with payer, BareAgent("first", llm=ScriptedLLM(script), tools=[page, forward]) as first:
        await first.run("go")
    sink.assert_asked("page", "mail:bob")


async def test_withheld_values_in_answers(sink):  # noqa: F811
    """A caller gets the sources of the withheld values in the answers of an isolating agent."""

    @tool(untrusted=True, effect="pure")
    async def mail() -> str:
        """Read a mail."""
        return "hello"

    script = [ToolCall("page", {}), "It says: @r1", ToolCall("mail", {}), "It says: @r2"]
    helper = BareAgent(
        "helper", llm=ScriptedLLM(script), tools=[page, mail], policy=Policy(untrusted="isolate")
    )
    held = []

    @tool
    async def consult() -> int:
        """Consult the helper."""
        return len((await helper.run("read", session=held[0])).text)

    script = [ToolCall("consult", {}), PAY, "ok"]
    async with open_runtime() as runtime:
        await runtime.start(helper)
        held.append(await helper.create_session("ada"))
        for name in ("first", "second"):
            agent = await runtime.start(sink.agent(script, name=name, tools=[consult]))
            await agent.run("go", session=await agent.create_session("ada"))
    assert sink.asked == [{"to": {"page"}}, {"to": {"page", "mail"}}]
    assert held[0].label.is_trusted


async def test_the_label_of_a_message_with_results():
    """The message with the results of an answer has the sources of all results."""

    @tool(untrusted=True, effect="pure")
    async def mail() -> str:
        """Read a mail."""
        return "hello"

    script = [[ToolCall("page", {}), ToolCall("mail", {})], "ok"]
    async with BareAgent("clerk", llm=ScriptedLLM(script), tools=[page, mail]) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        (results,) = [each for each in session.history if each.tool_results]
    assert results.label == Label({"page", "mail"})


@pytest.mark.parametrize("has_origin", [True, False])
async def test_a_batch_without_a_session(has_origin):
    """The answer of an agent is delimited as data if it may repeat untrusted text."""
    other, helper = other_agent(has_origin)
    async with open_runtime() as runtime:
        for each in (helper, other):
            await runtime.start(each)
        batch = Batch((ToolCall("other", {"task": "read"}),), ToolRegistry([other.as_tool()]))
        await batch.run()
    (result,) = batch.results()
    assert result.origin == ("page" if has_origin else "")


@pytest.mark.parametrize("has_origin", [True, False])
@pytest.mark.parametrize("by", ["handoff", "hand back", "route"])
async def test_an_answer_that_is_delivered_again(by, has_origin, autojump_clock):
    """A handler that did not end before a crash gets the answer again, with its sources."""
    replies = []

    async def hang(reply):
        await trio.sleep_forever()

    async with MemoryJournal().running() as journal:
        with trio.move_on_after(5):
            await _let_answer(journal, by, has_origin, hang)
        await _let_answer(journal, by, has_origin, replies.append)
    assert [(each.text == ANSWER, each.label) for each in replies] == [(True, Label({"page"}))]


EVENT = json.dumps({"messageType": "note", "content": "It was read."})
"""Answer of a model that becomes an event, without a reply."""


def event_agent():
    """An agent that has read the page and answers with an event."""
    llm = ScriptedLLM([ToolCall("page", {}), EVENT], repeat=True)
    return RouterAgent("other", llm=llm, tools=[page])


@pytest.mark.parametrize("method", ["run", "process"])
async def test_an_answer_that_is_an_event(method):
    """The reply made from an event has the sources of the turn, and so has the event."""
    events = []
    async with event_agent() as agent:
        session = await agent.create_session("ada")
        session.on_event(events.append)
        reply = await getattr(agent, method)("read", session=session)
        if method == "process":
            reply = reply.reply
    assert (reply.message_type, reply.label) == ("note", Label({"page"}))
    assert [each.label for each in events] == [Label({"page"})]


async def test_a_trusted_answer_that_is_an_event():
    """The reply made from an event of a trusted turn is trusted."""
    async with RouterAgent("other", llm=ScriptedLLM([EVENT])) as agent:
        reply = await agent.run("go")
    assert (reply.message_type, reply.label.is_trusted) == ("note", True)


async def test_a_routed_event_over_a_restart():
    """The session keeps the sources of a routed agent that answered with an event."""
    labels = []
    async with MemoryJournal().running() as journal:
        for is_first in (True, False):
            other = event_agent()
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(other)
                desk = await runtime.start(
                    RouterAgent("desk", llm=ScriptedLLM([ROUTE]), routes={"READ": other})
                )
                session = await desk.ensure_session("ada", "s")
                if is_first:
                    await session.chat("go")
                    await session.wait_idle()
                labels += [session.label, session.history[-1].label]
    assert labels == [Label({"page"})] * 4


async def test_an_event_that_is_delivered_again(autojump_clock):
    """A handler that did not end before a restart gets the event again, with its sources."""
    events = []

    async def hang(event):
        await trio.sleep_forever()

    async def answer(journal, on_event):
        agent = event_agent()
        agent.on_session(lambda session: session.on_event(on_event))
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            session = await agent.ensure_session("ada", "s")
            if on_event is hang:
                await session.chat("read")
            await session.wait_idle()

    async with MemoryJournal().running() as journal:
        with trio.move_on_after(5):
            await answer(journal, hang)
        await answer(journal, events.append)
    assert [each.label for each in events] == [Label({"page"})]


async def test_an_event_of_a_turn_that_was_suspended_before_a_restart():
    """The caller that resumes the turn gets the sources that the session had read before the restart."""

    @tool(approval=True)
    async def wait() -> str:
        """Wait."""
        return "waited"

    async with MemoryJournal().running() as journal:
        for script in ([ToolCall("page", {}), ToolCall("wait", {})], [EVENT]):
            agent = RouterAgent("other", llm=ScriptedLLM(script), tools=[page, wait])
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(agent)
                session = await agent.ensure_session("ada", "s")
                if not session.approvals:
                    await session.chat("read")
                    await session.wait_idle()
                    assert session.approvals
                else:
                    reply = await agent.resume({each.id: Approve() for each in session.approvals})
    assert (reply.message_type, reply.label) == ("note", Label({"page"}))


async def test_a_route_of_an_untrusted_turn():
    """The route has the sources of the text that its model has read."""
    desk = RouterAgent("desk", llm=ScriptedLLM([ToolCall("page", {}), ROUTE]), tools=[page])
    async with desk, desk.stream("go") as deliveries:
        found = [each async for each in deliveries]
    assert [each.label for each in found if isinstance(each, Route)] == [Label({"page"})]


async def test_a_route_of_a_turn_with_an_untrusted_message():
    """The route has the sources of the message that led to it."""
    routes = []
    async with RouterAgent("desk", llm=ScriptedLLM([ROUTE])) as desk:
        session = await desk.create_session("ada")
        session.on_routing(routes.append)
        await session.chat("go", label=Label({"mail:bob"}))
        await session.wait_idle()
    assert [each.label for each in routes] == [Label({"mail:bob"})]


async def test_a_nested_result_from_before_an_approval():
    """A call that an approval interrupts has the sources of its finished nested calls."""

    class Outer(OuterTool):
        async def execute(self, arguments, context):
            await context.tools.call("page", {})
            await context.tools.call("confirm", {})
            return "ok"

    @tool(approval=True, sinks=())
    async def confirm() -> str:
        """Confirm."""
        return "ok"

    llm = ScriptedLLM([ToolCall("outer", {}), "done"])
    async with BareAgent("clerk", llm=llm, tools=[page, confirm, Outer()]) as agent:
        session = await agent.create_session("ada")
        await session.chat("go")
        await session.wait_idle()
        await session.answer(session.approvals[0], Approve())
        await session.wait_idle()
        results = [each for message in session.history for each in message.tool_results]
        assert ([each.label for each in results], session.label) == ([Label({"page"})], Label({"page"}))
