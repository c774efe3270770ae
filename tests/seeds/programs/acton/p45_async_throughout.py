"""Everything is available with async and await: the run, the client, the tools, the memory's conversation, the stream.

Document: Future Extensibility, 6. Async Support.
"""

import json

import trio

from actgent import FunctionTool, StepsAgent


class Client:
    async def call(self, messages, **kwargs) -> str:
        await trio.lowlevel.checkpoint()
        if "Sunny in Turin" in str(messages):
            return json.dumps({"final_answer": "It is sunny."})
        return json.dumps(
            {"tool_calls": [{"id": "1", "tool_name": "weather", "parameters": {"city": "Turin"}}]}
        )


async def weather(city: str) -> str:
    await trio.lowlevel.checkpoint()
    return f"Sunny in {city}"


async def endless(messages) -> str:
    await trio.sleep_forever()
    return "never"


async def main() -> None:
    tools = [FunctionTool("weather", "Tells the weather.", weather)]
    async with StepsAgent("clerk", llm=Client(), tools=tools) as agent:
        assert str(await agent.run("How is it?")) == "It is sunny."
        async with agent.stream("How is it?") as events:
            last = [event async for event in events][-1]
    assert last.text == "It is sunny."
    with trio.move_on_after(0.02) as scope:
        async with StepsAgent("slow", llm=endless) as slow:
            await slow.run("Hello?")
    assert scope.cancelled_caught


trio.run(main)
