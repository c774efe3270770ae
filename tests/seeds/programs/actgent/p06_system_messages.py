"""A message of the sender "system" gets the role "system" in a request to the model.

Document: Message Flow Overview, Message Senders; Implementation Details, Role Determination.

Differs: Providers cache the system prompt, so it must not change. A message of the system is a marked block in a
message with the role user. The program sends it as `session.chat(text, Sender("system", "system"))`.
"""

import trio

from actgent import BareAgent, ScriptedLLM, Sender


async def main() -> None:
    llm = ScriptedLLM(["Hello.", "Understood."])
    async with BareAgent("clerk", llm=llm) as agent:
        session = await agent.create_session("ada", "Hello")
        await session.wait_idle()
        await session.chat("The office is closed now.", Sender("system", "system"))
        await session.wait_idle()
    first, second = llm.chats
    assert second.system == first.system
    sent = second.messages[-1].parts[0].text
    assert "The office is closed now." in sent and sent != "The office is closed now.", sent
    assert session.history[2].sender.kind == "system"


trio.run(main)
