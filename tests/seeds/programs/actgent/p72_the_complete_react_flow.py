"""The complete ReAct flow: chat, inbox, prompt, TOOL_INVOCATION, tool, the result back to the model, DIRECT_RESPONSE, handlers.

Document: ReAct Message Flow Deep Dive, Complete Flow Example.
"""

import json

import trio

from actgent import OpenAI, ReActAgent, tool
from actgent.testing import open_provider

FLOW = []


@tool(thread=False)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    FLOW.append("tool runs")
    return a + b


def action(purpose: str, content: object) -> str:
    FLOW.append(f"model answers {purpose}")
    nature = {"question_nature": "COMPLEX"}
    return json.dumps(
        {**nature, "primary_action": {"response_purpose": purpose, "response_content": content}}
    )


def model(request) -> str:
    if "5" in str(request.json["messages"][2:]):
        return action("DIRECT_RESPONSE", {"message": "2 + 3 = 5"})
    return action("TOOL_INVOCATION", {"name": "add", "parameters": {"a": 2, "b": 3}})


async def main() -> None:
    async with open_provider(model) as provider:
        llm = OpenAI("gpt-4", base_url=provider.openai_url, api_key="any")
        async with ReActAgent("tutor", llm=llm, tools=[add]) as agent:
            session = await agent.create_session("ada")
            session.on_tool_result(lambda result: FLOW.append(f"tool result {result.content}"))
            session.on_conversation(lambda reply: FLOW.append(f"reply {reply}"))
            await session.chat("What is 2 plus 3?")
            FLOW.insert(0, "chat returned")
            await session.wait_idle()
        await llm.aclose()
    assert FLOW == [
        "chat returned",
        "model answers TOOL_INVOCATION",
        "tool runs",
        "tool result 5",
        "model answers DIRECT_RESPONSE",
        "reply 2 + 3 = 5",
    ], FLOW


trio.run(main)
