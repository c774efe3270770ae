"""`new BareAgent({instructions: ["greeting", "farewell"], tools: [new SimpleTool()]})` is an agent with direct responses.

Document: Appendix, Basic Agent Implementation; Common Use Cases, Simple Chat Agent.
"""

import trio

from actgent import BareAgent, ScriptedLLM, Tool, ToolCall


class SimpleTool(Tool):
    """Tells the time."""

    def get_schema(self):
        return {"type": "object", "properties": {}}

    async def execute(self, parameters):
        return "noon"


async def main() -> None:
    llm = ScriptedLLM(["Hello, Ada.", ToolCall("SimpleTool", {}), "It is noon."])
    basic_agent = BareAgent("basic", llm=llm, instructions=["greeting", "farewell"], tools=[SimpleTool()])
    async with basic_agent:
        session = await basic_agent.create_session("ada", "Hello")
        answers = []
        session.on_conversation(lambda reply: answers.append((reply.message_type, str(reply))))
        await session.wait_idle()
        await session.chat("What time is it?")
        await session.wait_idle()
    assert answers == [("greeting", "Hello, Ada."), ("greeting", "It is noon.")], answers


trio.run(main)
