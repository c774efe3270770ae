"""ReAct handles multi-step reasoning: several tools in succession. Each tool gets the result of the previous tool.

Document: ReAct Message Flow ("Handles multi-step reasoning"); Complex Reasoning Agent.
"""

import json

import trio

from actgent import ReActAgent, ScriptedLLM, tool


@tool(thread=False, effect="pure")
def orders(user: int) -> list[str]:
    """List the orders of a user."""
    return ["tea", "milk"]


@tool(thread=False, effect="pure")
def price(item: str) -> int:
    """Tell the price of an item in cents."""
    return {"tea": 310, "milk": 120}[item]


def act(*calls: dict) -> str:
    content = list(calls) if len(calls) > 1 else calls[0]
    nature = {"question_nature": "COMPLEX"}
    return json.dumps(
        {**nature, "primary_action": {"response_purpose": "TOOL_INVOCATION", "response_content": content}}
    )


SCRIPT = [
    act({"name": "orders", "parameters": {"user": 7}}),
    act({"name": "price", "parameters": {"item": "tea"}}, {"name": "price", "parameters": {"item": "milk"}}),
    json.dumps(
        {"primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_content": "4.30 euros."}}
    ),
]


async def main() -> None:
    llm, results = ScriptedLLM(SCRIPT), []
    async with ReActAgent("clerk", llm=llm, tools=[orders, price]) as agent:
        session = await agent.create_session("ada", "What do my orders cost?")
        session.on_tool_result(lambda result: results.append(result.content))
        answers = []
        session.on_conversation(lambda reply: answers.append(str(reply)))
        await session.wait_idle()
    assert results == ['["tea", "milk"]', "310", "120"], results
    assert answers == ["4.30 euros."]
    assert len(llm.chats) == 3
    for chat, known in zip(llm.chats[1:], ("milk", "310"), strict=True):
        assert known in str(chat.messages)


trio.run(main)
