"""`getAssistantPrompt()` generates assistant-level prompts, and `getUserPrompt()` formats user messages.

Document: Core Architecture, PromptManager.

Differs: The model receives the user's message without a change. The text of the template `user_prompt=` follows the
message in each request. The history does not store this text.
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    llm = ScriptedLLM(["Good morning.", "Good night."])
    agent = BareAgent(
        "host",
        llm=llm,
        role="a host",
        assistant_prompt="I am {{ profile.role }}, and talk with {{ session.owner }}.",
        user_prompt="Guests in the house: {{ state.get('guests', 0) }}",
    )
    async with agent:
        session = await agent.create_session("ada")
        assert agent.prompts.assistant_prompt(session) == "I am a host, and talk with ada."
        await agent.run("Hello", session=session)
        session.state.dispatch(("guests", 2))
        await agent.run("Bye", session=session)
    for chat, guests in zip(llm.chats, (0, 2), strict=True):
        first, last = chat.messages[0], chat.messages[-1]
        assert (first.role, first.parts[0].text) == ("assistant", "I am a host, and talk with ada.")
        assert last.role == "user"
        assert f"Guests in the house: {guests}" in last.parts[-1].text
    assert not any("Guests" in message.text for message in session.history)


trio.run(main)
