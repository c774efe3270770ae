"""`getSystemPrompt(sessionContext, memory)` incorporates the context of the session and of memory into the prompt.

Document: Prompt Construction and LLM Interaction, Context Integration.
"""

import trio

from actgent import BareAgent, ChatMessage, Memory, ModelView, ScriptedLLM, Text
from actgent.protocols.prompt_layers import PromptLayer


class Counting(ModelView):
    def __init__(self):
        self.texts = []

    def add(self, message, *, answered=False):
        self.texts.append(message.text)

    def messages(self):
        return [ChatMessage("user", (Text(self.texts[-1]),))]

    def context(self):
        return f"{len(self.texts)} messages so far"


class CountingMemory(Memory):
    def open_view(self):
        return Counting()


async def main() -> None:
    llm = ScriptedLLM(["Noted."], repeat=True)
    prompt = "You talk with {{ session.owner }} about {{ session.description }}. {{ memory }}."
    async with BareAgent(
        "clerk", llm=llm, memory=CountingMemory(), prompt=PromptLayer(prompt, variables={})
    ) as agent:
        session = await agent.create_session("ada", "the garden")
        await session.wait_idle()
        await session.chat("Sow spinach.")
        await session.wait_idle()
    assert "You talk with ada about the garden. 1 messages so far." in llm.chats[0].system, llm.chats[
        0
    ].system
    assert "3 messages so far" in llm.chats[1].system


trio.run(main)
