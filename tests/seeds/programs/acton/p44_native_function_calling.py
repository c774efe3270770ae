"""Native tool calls of a model work in the same loop as calls in its text.

Document: Future Extensibility, 5. Function Calling API.
"""

import json

import trio

from actgent import FunctionTool, OpenAI, StepsAgent, ToolCall
from actgent.testing import open_provider


def weather(city: str) -> str:
    return f"Sunny in {city}"


async def main() -> None:
    script = [ToolCall("weather", {"city": "Turin"}), json.dumps({"final_answer": "It is sunny."})]
    async with open_provider(script) as provider:
        llm = OpenAI("gpt-4o", base_url=provider.openai_url, api_key="k")
        tools = [FunctionTool("weather", "Tells the weather.", weather)]
        async with StepsAgent("clerk", llm=llm, tools=tools) as agent:
            assert str(await agent.run("How is it?")) == "It is sunny."
        await llm.aclose()
        first, second = (json.loads(request.body) for request in provider.requests)
    assert next(each["function"]["name"] for each in first["tools"]) == "weather"
    assert any(each["role"] == "tool" and each["content"] == "Sunny in Turin" for each in second["messages"])


trio.run(main)
