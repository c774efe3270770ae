"""Tools: functions that a model may call. Their schemas come from signatures and docstrings.

Calls of pure tools in one answer run concurrently. If a tool fails, the model receives the error, and no exception is
raised. The script plays a model that calls three tools in one answer, and then reports the results.
"""

import math

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, ToolResult, tool


@tool(effect="pure")
def square_root(number: float) -> float:
    """Compute the square root of a number.

    Args:
        number: At least 0.
    """
    return math.sqrt(number)


@tool(timeout=5, effect="pure")
async def population(city: str) -> int:
    """Return the number of people who live in a city."""
    await trio.sleep(0.1)  # stands for a request to a service
    return {"Oslo": 718_000, "Lima": 10_092_000}[city]


def scripted_model() -> ScriptedLLM:
    calls = [
        ToolCall("square_root", {"number": 1764}),
        ToolCall("population", {"city": "Oslo"}),
        ToolCall("square_root", {"number": -1}),
    ]
    return ScriptedLLM([calls, "The root of 1764 is 42, Oslo has 718,000 people, and -1 has no real root."])


async def main() -> None:
    agent = BareAgent("clerk", llm=scripted_model(), tools=[square_root, population])
    async with agent:
        session = await agent.create_session("ada")

        @session.on_tool_result
        def show(result: ToolResult) -> None:
            print(f"{result.tool_name}: {result.status}: {result.error or result.content}")

        print(await agent.run("Roots of 1764 and -1, and how big is Oslo?", session=session))


if __name__ == "__main__":
    trio.run(main)
