"""CPU of a step of each autonomous loop, against a step of react with as many model calls."""

import json
from collections.abc import Mapping
from typing import Any

from measure import Figures, Stopwatch, expect

from actgent import Agent, GoalAgent, PlanAgent, ReActAgent, ScriptedLLM, StepsAgent, tool

ROUNDS = 5
"""Alternating rounds for each loop; the best one counts."""
ITEMS = 5
"""Items of the plan. Each needs a round with a tool and a round for its content."""
CALLS = 2 + 2 * ITEMS
"""Model calls per turn in each loop."""


@tool(thread=False)
def give(n: int) -> int:
    """Return n."""
    return n


def _react() -> list[object]:
    def answer(purpose: str, content: object) -> object:
        action = {"response_purpose": purpose, "response_description": "Given.", "response_content": content}
        context = {"understanding": "give", "approach": "use the tool", "considerations": ["none"]}
        return {"question_nature": "COMPLEX", "context": context, "primary_action": action}

    uses = [{"name": "give", "parameters": {"n": n}} for n in range(CALLS - 1)]
    return [*(answer("TOOL_INVOCATION", use) for use in uses), answer("DIRECT_RESPONSE", "Given.")]


def _steps() -> list[object]:
    calls = [{"id": f"c{n}", "tool_name": "give", "parameters": {"n": n}} for n in range(CALLS - 2)]
    taken = [{"tool_thought": "as planned", "tool_calls": [call]} for call in calls]
    return [{"plan": "give the numbers"}, *taken, {"final_answer": "Given.", "thought": "all is given"}]


def _plan() -> list[object]:
    todo = [{"id": f"step_{n}", "description": "give a number"} for n in range(ITEMS)]
    rounds = [
        answer
        for n in range(ITEMS)
        for answer in ({"toolCalls": [{"toolName": "give", "arguments": {"n": n}}]}, {"content": "given"})
    ]
    return [{"intent": "numbers", "plan": "give them", "todoList": todo}, *rounds, "Given."]


def _goal() -> list[object]:
    def decision(action: str, **params: object) -> object:
        return {"action": action, "params": params, "reasoning": "as planned"}

    return [
        decision("plan", steps=["give"]),
        *(decision("execute", tool="give", args={"n": n}) for n in range(CALLS - 3)),
        decision("summarize", summary="Given."),
        decision("evaluate", achieved=True, feedback="yes"),
    ]


def _script(answers: list[object]) -> list[str]:
    expect(seen=len(answers), wanted=CALLS, what="answers in the script of a turn")
    return [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]


LOOPS: Mapping[str, tuple[Any, list[str]]] = {
    "react": (ReActAgent, _script(_react())),
    "steps": (lambda name, **options: StepsAgent(name, max_iterations=CALLS, **options), _script(_steps())),
    "plan": (PlanAgent, _script(_plan())),
    "goal": (GoalAgent, _script(_goal())),
}


async def measure_loops(turns: int) -> Figures:
    """Return CPU microseconds of a step of react, and the additional CPU of a step of each other loop."""
    best = dict.fromkeys(LOOPS, float("inf"))
    for _ in range(ROUNDS):
        for name, (kind, script) in LOOPS.items():
            best[name] = min(best[name], await _step_us(kind, script, turns))
    ratios = {f"{name}_ratio": best[name] / best["react"] for name in LOOPS if name != "react"}
    return {"step_us": best["react"], **ratios}


async def _step_us(kind: Any, script: list[str], turns: int) -> float:
    llm = ScriptedLLM(script, repeat=True, keep=0)
    agent: Agent = kind("bench", llm=llm, tools=[give])
    async with agent:
        watch = Stopwatch()
        for _ in range(turns):
            text = (await agent.run("go")).text
            expect(seen=text, wanted="Given.", what="the answer")
        return watch.cpu_us(turns * CALLS)
