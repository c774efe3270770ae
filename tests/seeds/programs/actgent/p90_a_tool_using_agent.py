"""A SimpleAgent is for basic tool integration, with its tools registered directly.

Document: Common Use Cases, Tool-Using Agent.
"""

import trio

from actgent import ScriptedLLM, SimpleAgent, tool


@tool(thread=False)
def convert(amount: float, to: str) -> str:
    """Convert euros."""
    return f"{amount * 2:.2f} {to}"


SCRIPT = [
    '{"messageType": "TOOL_INVOCATION", "content": {"name": "convert", "parameters": {"amount": 10, "to": "lira"}}}',
    '{"messageType": "DIRECT_RESPONSE", "content": "20 lira."}',
]


async def main() -> None:
    llm, results = ScriptedLLM(SCRIPT), []
    agent = SimpleAgent("bank", llm=llm)
    agent.tools.add(convert)
    async with agent:
        session = await agent.create_session("ada", "What are 10 euros in lira?")
        answers = []
        session.on_tool_result(lambda result: results.append(result.content))
        session.on_conversation(lambda reply: answers.append(str(reply)))
        await session.wait_idle()
    assert results == ["20.00 lira"]
    assert answers == ["20 lira."]


trio.run(main)
