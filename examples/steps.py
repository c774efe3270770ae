"""Steps: an agent plans, calls tools and answers. The program receives the partial answer as one object.

The model is a script that streams a few characters at a time, as JSON. The program receives a plan, tool executions and
an answer. Each object is marked as incomplete until its last update.
"""

import trio

from actgent import AgentAnswer, ScriptedLLM, StepsAgent, StepState, ToolError, ToolExecution, tool


@tool(effect="pure")
def distance(start: str, end: str) -> str:
    """Return the distance between two cities in kilometres."""
    return {("Oslo", "Bergen"): "463 km", ("Oslo", "Bodø"): "1,190 km"}[start, end]


@tool(effect="pure")
def ferry(harbour: str) -> str:
    """Return the time at which the next ferry leaves a harbour."""
    raise ToolError(f"the timetable of {harbour} is not available today")


SCRIPT = [
    '{"plan": ["Look up the distance", "Look up the ferry", "Tell both"]}',
    (
        '{"tool_thought": "Both can be looked up at once.", "tool_calls": ['
        '{"id": "1", "tool_name": "distance", "parameters": {"start": "Oslo", "end": "Bergen"}}, '
        '{"id": "2", "tool_name": "ferry", "parameters": {"harbour": "Bergen"}}]}'
    ),
    '{"final_answer": "Bergen is 463 km away. I could not find out about the ferry.", "thought": "One failed."}',
]


def told(execution: ToolExecution) -> str:
    return f"{execution.tool_name} {execution.status} {execution.result or execution.error or ''}".strip()


def seen(step: StepState) -> str:
    """Return a step as one line, with an ellipsis while it is incomplete."""
    match step.step_type:
        case "plan":
            words = step.plan.replace("\n", " / ")
        case "execution":
            words = ", ".join(map(told, step.tool_executions))
        case _:
            words = step.answer
    return f"{step.step_number}. {step.step_type}: {words}" + ("" if step.is_complete else " ...")


async def show(agent: StepsAgent, question: str) -> AgentAnswer:
    async with agent.stream_state(question) as answers:
        async for answer in answers:
            if answer.steps:
                print(seen(answer.steps[-1]))
    return answer


async def main() -> None:
    model = ScriptedLLM(SCRIPT, chunk=20)
    guide = StepsAgent(
        "guide",
        role="a travel guide",
        llm=model,
        tools=[distance, ferry],
        timezone="Europe/Oslo",
        max_iterations=5,
    )
    async with guide:
        answer = await show(guide, "How far is Bergen from Oslo, and when does the ferry leave?")
    print(f"after {len(answer.steps)} steps: {answer.text}")


if __name__ == "__main__":
    trio.run(main)
