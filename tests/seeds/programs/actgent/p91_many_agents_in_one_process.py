"""Many agents run in one process, each with its inbox, sessions and handlers.

Document: Introduction; Core Architecture.
"""

import trio

from actgent import ReActAgent, ScriptedLLM, open_runtime, tool

ANSWERS = [
    '{"primary_action": {"response_purpose": "TOOL_INVOCATION", "response_content": {"name": "add", "parameters": {"a": 2, "b": 3}}}}',
    '{"primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_content": "It is 5."}}',
]


@tool(thread=False)
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def main() -> None:
    replies, results = [], []
    llm = ScriptedLLM(lambda chat: ANSWERS[chat.messages[-1].role != "user" or len(chat.messages) > 2])
    async with open_runtime() as runtime:
        for number in range(100):
            agent = await runtime.start(ReActAgent(f"tutor-{number}", llm=llm, tools=[add]))
            for owner in ("ada", "bob"):
                session = await agent.create_session(owner, "What is 2 + 3?")
                session.on_conversation(lambda reply: replies.append(str(reply)))
                session.on_tool_result(lambda result: results.append(result.content))
    assert replies == ["It is 5."] * 200
    assert results == ["5"] * 200


trio.run(main)
