"""If an answer of an instruction has a mapped tool and a text for the user, event handlers and conversation handlers
receive the answer. Then the tool runs.

Document: Tool Registration and Instruction Mapping, Design Rationale ("Results are properly handled through instruction flow").
"""

import json

import trio

from actgent import ScriptedLLM, SimpleAgent, tool


@tool(thread=False)
def deliver(item: str, content: str) -> str:
    """Deliver an item."""
    return f"{item} is on its way"


async def main() -> None:
    order = {"name": "order", "schemaTemplate": {"item": "<what>", "content": "<text>"}, "tool": "deliver"}
    script = [
        json.dumps({"messageType": "order", "content": {"item": "tea", "content": "I order tea."}}),
        json.dumps({"messageType": "DIRECT_RESPONSE", "content": "It comes today."}),
    ]
    llm, called = ScriptedLLM(script), []
    async with SimpleAgent("shop", llm=llm, instructions=[order], tools=[deliver]) as agent:
        session = await agent.create_session("ada", "Tea, please.")
        session.on_event(lambda event: called.append(("event", event.name, event.data["item"])))
        session.on_conversation(lambda reply: called.append(("conversation", str(reply))))
        session.on_tool_result(lambda result: called.append(("tool", result.content)))
        await session.wait_idle()
    assert called == [
        ("event", "order", "tea"),
        ("conversation", "I order tea."),
        ("tool", "tea is on its way"),
        ("conversation", "It comes today."),
    ], called
    assert "tea is on its way" in str(llm.chats[1].messages)


trio.run(main)
