"""A custom memory processes each message (`memory.processMessage`) and creates the context for the model (`memory.generateContext`).

Document: Message Processing; promptLLM; Extension Points (Custom Memory implementations).

Differs: The memory keeps the context between calls, and does not build it again. Write `ModelView.add(message)` and
`ModelView.messages()`. A plain function of the history is also a memory.
"""

import trio

from actgent import BareAgent, ChatMessage, Memory, ModelView, ScriptedLLM, Text


class Questions(ModelView):
    """Shows the last two messages of the user."""

    def __init__(self):
        self.shown = []

    def add(self, message, *, answered=False):
        if message.sender.kind == "user":
            self.shown.append(ChatMessage("user", (Text(message.text),)))

    def messages(self):
        return self.shown[-2:]


class QuestionMemory(Memory):
    def open_view(self):
        return Questions()


def manage_history(history):
    return [message for message in history if message.sender.kind == "user"][-2:]


async def main() -> None:
    for memory in (QuestionMemory(), manage_history):
        llm = ScriptedLLM(["Noted."], repeat=True)
        async with BareAgent("clerk", llm=llm, memory=memory) as agent:
            session = await agent.create_session("ada")
            for text in ("one", "two", "three"):
                await session.chat(text)
                await session.wait_idle()
        shown = [[message.parts[0].text for message in chat.messages] for chat in llm.chats]
        assert shown == [["one"], ["one", "two"], ["two", "three"]], shown
        assert len(session.history) == 6


trio.run(main)
