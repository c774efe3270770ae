"""Agents as tools report their shortfalls to the calling agent, as `process` and `run_agent` report them to programs."""

import json

import pytest
import trio

from actgent import (
    BareAgent,
    GoalAgent,
    PlanAgent,
    ScriptedLLM,
    StepsAgent,
    ToolCall,
    ToolContext,
    delegation_tools,
    open_runtime,
    tool,
)

PLAN = json.dumps({"intent": "know", "plan": "look", "todoList": [{"id": "step_1", "description": "look"}]})
LOOK = json.dumps({"toolCalls": [{"toolName": "offline", "arguments": {"query": "x"}}]})


def act(action, **params):
    return json.dumps({"action": action, "params": params, "reasoning": "because"})


@tool(effect="pure")
def offline(query: str) -> str:
    """Search a service that is offline."""
    raise ConnectionError("no net")


@tool(effect="pure")
def online(query: str) -> str:
    """Search."""
    return "found"


def planner(*, works):
    content = json.dumps({"content": "looked"})
    if works:
        return PlanAgent("worker", llm=ScriptedLLM([PLAN, content, "It is 42."]))
    items = [
        {"id": "step_1", "description": "look", "requiredTools": ["offline"]},
        {"id": "step_2", "description": "look", "requiredTools": ["online"]},
    ]
    script = [json.dumps({"todoList": items}), LOOK, *[content] * 3, LOOK.replace("off", "on"), content]
    return PlanAgent("worker", llm=ScriptedLLM([*script, "It is 42."]), tools=[offline, online])


def lost():
    """Return a planner whose only tool call fails."""
    script = [PLAN, LOOK, json.dumps({"content": "looked"}), "I could not look."]
    return PlanAgent("worker", llm=ScriptedLLM(script), tools=[offline])


def goal(*, achieved):
    judged = {"achieved": achieved, "feedback": "so it is"}
    script = [
        act("plan", steps=["look"]),
        act("execute", tool="online", args={"query": "x"}),
        act("summarize", summary="It is 42."),
        act("evaluate", **judged),
    ]
    limit = 20 if achieved else 4
    return GoalAgent("worker", llm=ScriptedLLM(script), tools=[online], max_iterations=limit)


def steps(*, works):
    final = json.dumps({"final_answer": "It is 42.", "thought": "so it is"})
    script = [final] if works else lambda _: json.dumps({"plan": "think again"})
    return StepsAgent("worker", llm=ScriptedLLM(script), max_iterations=3)


async def result_of(worker):
    """Return the result of the worker, its only tool, that a lead's model reads."""
    lead = BareAgent(
        "lead", llm=ScriptedLLM([ToolCall("worker", {"task": "look"}), "done"]), tools=[worker.as_tool()]
    )
    async with lead:
        session = await lead.create_session("ada")
        await lead.run("go", session=session)
        [result] = [result for message in session.history for result in message.tool_results]
    return result


@pytest.mark.parametrize("worker", [planner(works=True), goal(achieved=True), steps(works=True)], ids=repr)
async def test_complete_task_reports_only_its_answer(worker):
    """A success has no status line."""
    result = await result_of(worker)
    assert (result.status, result.content) == ("success", "It is 42.")


async def test_a_partial_plan_is_reported():
    """The tool result and `process` both report the status partial."""
    result = await result_of(planner(works=False))
    assert result.content == "Status: partial (not all that was asked for was done)\n\nIt is 42."
    async with planner(works=False) as agent:
        assert (await agent.process("look")).status == "partial"


async def test_a_plan_with_only_failed_tools_is_reported():
    """The tool result and `process` both report the status error."""
    result = await result_of(lost())
    assert result.content == "Status: error (not all that was asked for was done)\n\nI could not look."
    async with lost() as agent:
        assert (await agent.process("look")).status == "error"


async def test_a_missed_goal_is_reported():
    """The tool result has the status that `run_agent` returns."""
    result = await result_of(goal(achieved=False))
    assert result.content.startswith("Status: completed_with_summary_fallback (not all")
    assert "The goal was not achieved" in result.content


async def test_steps_without_an_answer_are_an_error():
    """The error names the reached limit and has no other content."""
    result = await result_of(steps(works=False))
    assert result.status == "error"
    assert "limit" in result.error


async def test_shortfall_is_reported_outside_of_a_session():
    """A program calls the tool itself."""
    async with planner(works=False) as worker:
        content = await worker.as_tool().execute({"task": "look"}, ToolContext())
    assert content.startswith("Status: partial")


async def test_delayed_report_states_a_partial_result(autojump_clock):
    """The outcome of a partially completed task has the status, also in the journal."""
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(planner(works=False))
        lead = await runtime.start(
            BareAgent("lead", llm=ScriptedLLM(lambda _: "ok"), tools=delegation_tools())
        )
        session = await lead.create_session("ada")
        task = await session.delegate("worker", "look", task_id="t")
        while not session.history:
            await session.wait_idle()
            await trio.sleep(0.01)
        await session.wait_idle()
        text = session.history[0].text
    assert text == (
        f"Task {task}, given to agent 'worker', has ended. "
        "Status: partial (not all that was asked for was done)\n\nIt is 42."
    )
