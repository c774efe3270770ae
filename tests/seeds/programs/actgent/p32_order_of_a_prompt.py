"""The messages to the model are the system prompt, the assistant prompt, the history, and the user's message, in this order.

Document: Prompt Construction and LLM Interaction, promptLLM.
"""

import trio

from actgent import BareAgent, OpenAI
from actgent.testing import open_provider


async def main() -> None:
    async with open_provider(["Good morning.", "Good night."]) as provider:
        llm = OpenAI("gpt-4", base_url=provider.openai_url, api_key="any")
        async with BareAgent("host", llm=llm, role="a host", assistant_prompt="I am the host.") as agent:
            session = await agent.create_session("ada", "Hello")
            await session.wait_idle()
            await session.chat("Bye")
            await session.wait_idle()
        await llm.aclose()
        sent = provider.requests[-1].json
    assert sent["model"] == "gpt-4"
    assert [(message["role"], message["content"]) for message in sent["messages"][1:]] == [
        ("assistant", "I am the host."),
        ("user", "Hello"),
        ("assistant", "Good morning."),
        ("user", "Bye"),
    ], sent["messages"]
    assert sent["messages"][0]["role"] == "system"
    assert "a host" in sent["messages"][0]["content"]


trio.run(main)
