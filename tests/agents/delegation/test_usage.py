"""Usage of an answer: its own, and with all child sessions."""

import trio

from actgent import BareAgent, PlanAgent, ScriptedLLM, Text, ToolCall, Usage, open_runtime
from actgent.llm.model_interface import ModelResponse


def took(tokens, cost=0.0, calls=1, children=None):
    return Usage(input_tokens=tokens, output_tokens=calls, cost=cost, children=children)


def said(what, tokens, cost=0.0):
    part = Text(what) if isinstance(what, str) else what
    return ModelResponse(parts=(part,), usage=took(tokens, cost))


def team(*, inner_cost=0.5):
    """Return an agent whose tool is an agent whose tool is an agent."""
    last = BareAgent("last", llm=ScriptedLLM([said("three", 100, inner_cost)] * 9))
    middle_script = [said(ToolCall("last", {"task": "?"}), 10, 0.25), said("two", 10, 0.25)]
    middle = BareAgent("middle", llm=ScriptedLLM(middle_script * 9), tools=[last.as_tool()])
    script = [said(ToolCall("middle", {"task": "?"}), 1, 0.125), said("one", 1, 0.125)]
    return BareAgent("first", llm=ScriptedLLM(script * 9), tools=[middle.as_tool()])


def test_usage_counts_add_up():
    """Own usage and usage of children are separate. An unknown price makes only the total price unknown."""
    both = took(1, 1.0).with_child(took(5, 2.0)).with_child(took(7, None))
    assert (both.input_tokens, both.cost, both.children) == (1, 1.0, took(12, None, 2))
    assert both.total == took(13, None, 3)
    assert took(1).total is not None
    assert took(1).total == took(1)
    assert (both + took(2)).children == both.children
    assert both + took(1) - took(1) == both
    assert (both + both).total == took(26, None, 6)
    assert both - both == Usage(children=Usage(cost=None))


async def test_reply_has_own_and_total_usage():
    """With two levels of agent tools. The total includes the cost."""
    async with team() as agent:
        session = await agent.create_session("ada")
        reply = await agent.run("?", session=session)
        assert reply.usage == took(2, 0.25, 2, children=took(120, 1.0, 3))
        assert reply.usage.total == took(122, 1.25, 5)
        again = await agent.run("?", session=session)
        assert again.usage == reply.usage
        assert session.usage.total == took(244, 2.5, 10)


async def test_an_unknown_price_is_reported():
    """The total has no cost then, and the own cost stays."""
    async with team(inner_cost=None) as agent:
        usage = (await agent.run("?")).usage
    assert (usage.cost, usage.total.cost, usage.total.input_tokens) == (0.25, None, 122)


async def test_run_in_a_handler_counts_for_the_session():
    """The session of the run is a child of the session of the handler."""
    target = BareAgent("target", llm=ScriptedLLM([said("routed", 50)]))
    async with BareAgent("outer", llm=ScriptedLLM([said("asked", 1)])) as outer, target:
        session = await outer.create_session("ada")
        replies = []

        @session.on_conversation
        async def ask(reply):
            replies.append(await target.run("and you?"))

        await session.chat("?")
        await session.wait_idle()
        assert replies[0].usage == took(50)
        assert session.usage == took(1, children=took(50))


async def test_a_restart_keeps_the_total(tmp_path):
    """The usage of children is stored with their results."""
    address = f"sqlite:///{tmp_path}/agents.db"
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(team())
        session = await agent.create_session("ada", session_id="ada")
        usage = (await agent.run("?", session=session)).usage
    async with open_runtime(journal=address) as runtime:
        agent = await runtime.start(team())
        session = await agent.open_session("ada")
        assert session.usage == usage
        assert session.usage.total.input_tokens == 122


async def test_a_failed_plan_reports_its_usage():
    """The usage has only the invalid answers of the plan."""
    script = ScriptedLLM([said("no plan", 10)] * 6)
    async with PlanAgent("planner", llm=script) as agent:
        session = await agent.create_session("ada")
        results = [await agent.process("?", session=session) for _ in range(2)]
    assert [result.status for result in results] == ["error", "error"]
    assert [result.usage for result in results] == [took(30, 0.0, 3)] * 2
    assert session.usage == took(60, 0.0, 6)


async def test_usage_of_a_delegated_task_counts_on_its_report():
    """The answer of the task is a later message."""
    async with open_runtime() as runtime:
        await runtime.start(BareAgent("helper", llm=ScriptedLLM([said("done", 30)])))
        agent = await runtime.start(BareAgent("lead", llm=ScriptedLLM([said("noted", 1)])))
        session = await agent.create_session("ada")
        answered = trio.Event()
        session.on_conversation(lambda _: answered.set())
        await session.delegate("helper", "?")
        await answered.wait()
        assert session.usage == took(1, children=took(30))
