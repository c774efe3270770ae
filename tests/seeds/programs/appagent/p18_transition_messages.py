"""When the mode changes, a transition message is injected into the conversation, which names the active mode.

Document: Unified System Prompt Architecture, Mode Transitions via Conversation.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM


async def main() -> None:
    llm = ScriptedLLM(["Hello."], repeat=True)
    async with BareAgent("app", llm=llm, modes=Modes(initial="plan")) as app:
        session = await app.create_session("ada", "Hello")
        await session.wait_idle()
        await session.set_mode("act", by="user")
        await session.chat("Go on.")
        await session.wait_idle()
    before, after = (str(chat.messages) for chat in llm.chats)
    assert "The mode is now act" not in before
    assert after.count("The mode is now act") == 1
    notes = [message for message in session.history if message.sender.kind == "system"]
    assert [note.text.splitlines()[0][:19] for note in notes] == ["The mode is now act"]
    places = [message.text[:8] for message in session.history]
    assert places == ["Hello", "Hello.", "The mode", "Go on.", "Hello."], places


trio.run(main)
