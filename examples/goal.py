"""Goal: the agent plans, acts and summarizes until an evaluation finds the goal achieved. Here this takes three attempts.

The tools are functions of the session's state, and return their changes of the state. One tool fails, and the model
receives the error. The last run reaches its limit, and its result is not a success.
"""

import json
from collections.abc import Mapping
from typing import Any

import trio

from actgent import ScriptedLLM, run_agent

DEPTHS = {"baikal": 1642, "tanganyika": 1470}


Values = Mapping[str, Any]


def depth(_state: Values, args: Values) -> tuple[str, int]:
    """Look up how deep a lake is, in metres. Args: lake."""
    return (f"depth_{args['lake']}", DEPTHS[args["lake"]])


def compare(state: Values, _args: Values) -> tuple[str, int]:
    """Compare the depths that the other tool has found."""
    depths = [value for key, value in state.items() if key.startswith("depth_")]
    if len(depths) != len(DEPTHS):
        raise ValueError("there must be two depths")
    return ("difference", max(depths) - min(depths))


def act(action: str, **params: object) -> str:
    return json.dumps({"action": action, "params": params, "reasoning": "as planned"})


PLAN = act("plan", steps=["look up both lakes", "compare them"])
BAIKAL = act("execute", tool="depth", args={"lake": "baikal"})
FIRST_SUMMARY = act("summarize", summary="Baikal is 1642 m deep.")
SCRIPT = [
    PLAN,
    act("execute", tool="compare", args={}),  # too early: the tool returns an error
    BAIKAL,
    FIRST_SUMMARY,
    act("evaluate", achieved=False, feedback="only one lake", missing_items=["the depth of Tanganyika"]),
    act("execute", tool="depth", args={"lake": "tanganyika"}),
    act("summarize", summary="Baikal is 1642 m deep, Tanganyika 1470 m."),
    act("evaluate", achieved=False, feedback="nothing compares them", suggestions=["use compare"]),
    act("execute", tool="compare", args={}),
    act("summarize", summary="Baikal is deeper than Tanganyika, by 172 m."),
    act("evaluate", achieved=True, feedback="both depths and the difference are there"),
]
AT_THE_LIMIT = [
    BAIKAL,
    act(
        "evaluate", achieved=False, answer="Baikal is 1642 m deep.", missing_items=["the depth of Tanganyika"]
    ),
]


async def main() -> None:
    goal = "Which lake is deeper, Baikal or Tanganyika, and by how much?"
    result = await run_agent(goal, ScriptedLLM(SCRIPT), tools=[depth, compare])
    for tool_result in result.tool_results:
        print(f"{tool_result.tool_name}: {tool_result.text}")
    print(f"{result.status} after {result.iterations} iterations: {result}")
    print(result.raw_data)

    cut = await run_agent(goal, ScriptedLLM(AT_THE_LIMIT), tools=[depth, compare], max_iterations=2)
    print(f"\nachieved: {cut.achieved}\n{cut}")


if __name__ == "__main__":
    trio.run(main)
