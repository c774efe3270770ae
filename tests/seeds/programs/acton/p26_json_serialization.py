"""Data models are serialized as JSON and read again: messages, stream events, steps.

Document: Design Patterns, 3. Structured Data with Pydantic (JSON serialization).
"""

import json

import trio

from actgent import AgentAnswer, FunctionTool, Message, ScriptedLLM, StepsAgent


def weather(city: str) -> str:
    return f"Sunny in {city}"


ANSWERS = [
    {"plan": "Look."},
    {"tool_calls": [{"id": "1", "tool_name": "weather", "parameters": {"city": "Turin"}}]},
    {"final_answer": "It is sunny."},
]


def check(value) -> None:
    written = json.loads(json.dumps(value.to_dict()))
    assert type(value).from_dict(written) == value, written


async def main() -> None:
    llm = ScriptedLLM([json.dumps(answer) for answer in ANSWERS] * 2)
    tools = [FunctionTool("weather", "Tells the weather.", weather)]
    async with StepsAgent("clerk", llm=llm, tools=tools) as agent:
        talk = await agent.open_conversation()
        async with talk.stream("How is it?") as events:
            async for event in events:
                check(event)
        history = [message.to_dict() for message in talk.history]
        assert tuple(map(Message.from_dict, json.loads(json.dumps(history)))) == talk.history
        async with agent.stream_state("How is it?") as states:
            async for state in states:
                last = state
    assert isinstance(last, AgentAnswer)
    check(last)


trio.run(main)
