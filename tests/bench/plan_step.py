"""What a step of a plan costs, against a step of react with as many model calls: `python tests/bench/plan_step.py`.

The bar is a ratio of 1.5. Each item of the plan takes one round with a tool and one for its content; the best of some
rounds in turn counts.
"""

import json
import time

import trio

from actgent import Agent, PlanAgent, ReActAgent, ScriptedLLM, tool

ITEMS = (2, 5, 10)
ROUNDS, TURNS = 5, 100


@tool(thread=False)
def give(n: int) -> int:
    """Give n."""
    return n


def plan_script(items: int) -> list[str]:
    todo = [{"id": f"step_{n}", "description": "give a number"} for n in range(items)]
    rounds = [
        ({"toolCalls": [{"toolName": "give", "arguments": {"n": n}}]}, {"content": "given"})
        for n in range(items)
    ]
    answers = [
        {"intent": "numbers", "plan": "give them", "todoList": todo},
        *(a for pair in rounds for a in pair),
    ]
    return [*map(json.dumps, answers), "Given."]


def react_script(calls: int) -> list[str]:
    contents = [{"name": "give", "parameters": {"n": n}} for n in range(calls - 1)]
    return [
        *(react_answer("TOOL_INVOCATION", content) for content in contents),
        react_answer("DIRECT_RESPONSE", "Given."),
    ]


def react_answer(purpose: str, content: object) -> str:
    action = {"response_purpose": purpose, "response_description": "as asked", "response_content": content}
    return json.dumps({"question_nature": "COMPLEX", "context": {}, "primary_action": action})


async def step_us(kind: type[Agent], script: list[str]) -> float:
    """Microseconds for a model call and what it leads to, the mean of some turns."""
    agent = kind("bench", llm=ScriptedLLM(script, repeat=True, keep=0), tools=[give])
    async with agent:
        started = time.perf_counter()
        for _ in range(TURNS):
            await agent.run("go")
        return (time.perf_counter() - started) / TURNS / len(script) * 1e6


async def main() -> None:
    for items in ITEMS:
        script = plan_script(items)
        plan, react = [], []
        for _ in range(ROUNDS):
            plan.append(await step_us(PlanAgent, script))
            react.append(await step_us(ReActAgent, react_script(len(script))))
        best = min(react), min(plan)
        print(
            f"{items} items: react {best[0]:.0f} us, plan {best[1]:.0f} us a step, ratio {best[1] / best[0]:.2f}"
        )


if __name__ == "__main__":
    trio.run(main)
