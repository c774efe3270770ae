"""A sender whose name contains "agent" or "assistant" gets the role "assistant".

Document: Implementation Details, Role Determination.

Differs: A user may be named "agent-smith", so only the exact names count. Pass another agent as `Sender("MyAgent",
"agent")`.
"""

import trio

from actgent import BareAgent, ScriptedLLM, Sender


async def main() -> None:
    llm = ScriptedLLM(["one", "two"])
    async with BareAgent("clerk", llm=llm) as agent:
        session = await agent.create_session("ada")
        await session.chat("from an agent", Sender("MyAgent", "agent"))
        await session.chat("from a user", "agent-smith")
        await session.wait_idle()
    roles = {message.parts[0].text: message.role for message in llm.chats[-1].messages}
    assert roles["from an agent"] == "assistant"
    assert roles["from a user"] == "user"


trio.run(main)
