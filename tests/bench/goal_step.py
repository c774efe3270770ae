"""What a step of the goal loop costs, against a step of react with as many model calls: `python tests/bench/goal_step.py`.

The bar is a ratio of 1.5. Both run the same inline tool, and take the best of some rounds in turn.
"""

import json
import time

import trio

from actgent import Agent, GoalAgent, ReActAgent, ScriptedLLM, tool

CALLS = (6, 18)
"""Model calls a turn."""
ROUNDS, TURNS = 5, 100


@tool(thread=False)
def give(n: int) -> int:
    """Give n."""
    return n


def decision(action: str, **params: object) -> str:
    return json.dumps({"action": action, "params": params, "reasoning": "as planned"})


def goal_script(calls: int) -> list[str]:
    middle = [decision("execute", tool="give", args={"n": n}) for n in range(calls - 3)]
    end = [
        decision("summarize", summary="All is given."),
        decision("evaluate", achieved=True, feedback="yes"),
    ]
    return [decision("plan", steps=["give"]), *middle, *end]


def react_answer(purpose: str, content: object) -> str:
    context = {"understanding": "give", "approach": "use the tool", "considerations": ["none"]}
    action = {"response_purpose": purpose, "response_description": "as asked", "response_content": content}
    return json.dumps({"question_nature": "COMPLEX", "context": context, "primary_action": action})


def react_script(calls: int) -> list[str]:
    uses = [{"name": "give", "parameters": {"n": n}} for n in range(calls - 1)]
    return [
        *(react_answer("TOOL_INVOCATION", use) for use in uses),
        react_answer("DIRECT_RESPONSE", "Given."),
    ]


async def step_us(kind: type[Agent], script: list[str]) -> float:
    """Microseconds for a step, the mean of some turns."""
    llm = ScriptedLLM(script, repeat=True, keep=0)
    async with kind("bench", llm=llm, tools=[give]) as agent:
        started = time.perf_counter()
        for _ in range(TURNS):
            await agent.run("go")
        return (time.perf_counter() - started) / TURNS / len(script) * 1e6


async def main() -> None:
    for calls in CALLS:
        react, goal = [], []
        for _ in range(ROUNDS):
            react.append(await step_us(ReActAgent, react_script(calls)))
            goal.append(await step_us(GoalAgent, goal_script(calls)))
        ratio = min(goal) / min(react)
        print(
            f"{calls} model calls: react {min(react):.0f} us, goal {min(goal):.0f} us a step, ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    trio.run(main)
