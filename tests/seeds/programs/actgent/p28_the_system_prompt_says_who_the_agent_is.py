"""PromptManager maintains the agent's role, goal and capabilities, and `getSystemPrompt()` renders them with the template.

Document: Core Architecture, PromptManager; Prompt Construction, Prompt Assembly.
"""

import trio

from actgent import BareAgent, ReActAgent, ScriptedLLM, SimpleAgent


async def main() -> None:
    for kind in (BareAgent, SimpleAgent, ReActAgent):
        llm = ScriptedLLM(["Hello."], repeat=True)
        agent = kind(
            "host",
            llm=llm,
            role="a host of a small inn",
            goal="make guests feel at home",
            capabilities=["tell of rooms", "order taxis"],
        )
        prompt = agent.prompts.system_prompt()
        for part in (
            "host",
            "a host of a small inn",
            "make guests feel at home",
            "tell of rooms",
            "order taxis",
        ):
            assert part in prompt, (kind, part)
        if kind is BareAgent:
            async with agent:
                await agent.run("Hello")
            assert llm.chats[0].system == prompt


trio.run(main)
