"""A call of the model has the system prompt, the schemas of the tools, the conversation history and the input of the user.

Document: Data Flow, Standard Agent Run, Build Messages.
"""

import json

import trio

from actgent import FunctionTool, StepsAgent


class Client:
    def call(self, messages, **kwargs) -> str:
        seen.append(messages)
        return json.dumps({"final_answer": "Noted."})


def weather(city: str) -> str:
    return f"Sunny in {city}"


seen = []


async def main() -> None:
    tools = [FunctionTool("weather", "Tells the weather.", weather)]
    async with StepsAgent("clerk", llm=Client(), system_prompt="You are brief.", tools=tools) as agent:
        talk = await agent.open_conversation()
        await talk.run("I am Ada.")
        await talk.run("Who am I?")
    system, *rest = seen[1]
    assert system.role == "system"
    for part in ("You are brief.", "weather", "Tells the weather.", "city", "final_answer", "tool_calls"):
        assert part in system.content, part
    assert "I am Ada." in rest[0].content
    assert rest[1].role == "assistant"
    assert any(message.role == "user" and "Who am I?" in message.content for message in rest[2:])


trio.run(main)
