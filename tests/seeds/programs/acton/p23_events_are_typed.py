"""Stream events are typed: each has its class, and fields such as the step, the plan, the calls, the status and the result.

Document: Design Patterns, 5. Event-Driven Streaming (Type-safe events).
"""

import json

import trio

from actgent import (
    FinalEvent,
    FunctionTool,
    PlanEvent,
    ScriptedLLM,
    StepEvent,
    StepsAgent,
    ToolExecutionEvent,
    ToolResultsEvent,
)


def weather(city: str) -> str:
    return {"Turin": "Sunny"}[city]


CALLS = [{"id": city, "tool_name": "weather", "parameters": {"city": city}} for city in ("Turin", "Oslo")]
ANSWERS = [
    {"plan": "Look."},
    {"thought": "I look.", "tool_calls": CALLS},
    {"final_answer": "Sunny in Turin."},
]


async def main() -> None:
    llm = ScriptedLLM([json.dumps(answer) for answer in ANSWERS])
    tools = [FunctionTool("weather", "Tells the weather.", weather)]
    found = {}
    async with StepsAgent("clerk", llm=llm, tools=tools) as agent, agent.stream("How is it?") as events:
        async for event in events:
            found.setdefault(type(event), []).append(event)
    assert found[PlanEvent][-1].plan == "Look."
    step = found[StepEvent][-1]
    assert step.thought == "I look."
    assert [(call.name, call.arguments) for call in step.calls] == [
        ("weather", {"city": "Turin"}),
        ("weather", {"city": "Oslo"}),
    ]
    statuses = [(each.tool_name, each.status) for each in found[ToolExecutionEvent]]
    assert sorted(statuses) == sorted(
        [("weather", "started")] * 2 + [("weather", "completed"), ("weather", "failed")]
    )
    assert [each.status for each in found[ToolResultsEvent][-1].results] == ["success", "error"]
    assert found[FinalEvent][-1].text == "Sunny in Turin."
    assert {each.step_id for each in found[ToolExecutionEvent]} == {step.step_id}


trio.run(main)
