"""An answer of the model is an `AgentPlan`, an `AgentStep` or a `FinalResponse`. After a plan or a step, the run
continues. A final response ends the run.

Document: Data Flow, Standard Agent Run, Parse Response.
"""

import json

import trio

from actgent import FunctionTool, ScriptedLLM, StepsAgent


def weather(city: str) -> str:
    return f"Sunny in {city}"


ANSWERS = [
    {"plan": "First look, then tell."},
    {
        "thought": "I look.",
        "tool_calls": [{"id": "1", "tool_name": "weather", "parameters": {"city": "Turin"}}],
    },
    {"thought": "I know.", "final_answer": "It is sunny."},
]


async def main() -> None:
    llm = ScriptedLLM([json.dumps(answer) for answer in ANSWERS])
    tools = [FunctionTool("weather", "Tells the weather.", weather)]
    async with StepsAgent("clerk", llm=llm, tools=tools) as agent, agent.stream_state("How is it?") as states:
        async for state in states:
            last = state
    assert [step.step_type for step in last.steps] == ["plan", "execution", "final"]
    plan, step, final = last.steps
    assert plan.plan == "First look, then tell."
    assert step.thought == "I look."
    assert [(each.tool_name, each.status, each.result) for each in step.tool_executions] == [
        ("weather", "completed", "Sunny in Turin")
    ]
    assert final.answer == last.text == "It is sunny."
    assert last.is_complete


trio.run(main)
