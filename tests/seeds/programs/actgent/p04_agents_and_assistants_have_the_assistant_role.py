"""The senders "agent" and "assistant" get the role "assistant" in a request to the model. The user and all other senders
get "user".

Document: Message Flow Overview, Message Senders; Implementation Details, Role Determination.
"""

import trio

from actgent import BareAgent, OpenAI
from actgent.testing import open_provider


async def main() -> None:
    async with open_provider(["one", "two", "three", "four", "five"]) as provider:
        llm = OpenAI("gpt-4", base_url=provider.openai_url, api_key="any")
        async with BareAgent("clerk", llm=llm) as agent:
            session = await agent.create_session("ada")
            for text, sender in (
                ("a", "agent"),
                ("b", "Assistant"),
                ("c", None),
                ("d", "bob"),
                ("e", "guest"),
            ):
                await session.chat(text, sender)
                await session.wait_idle()
        await llm.aclose()
    roles = {
        message["content"]: message["role"]
        for request in provider.requests
        for message in request.json["messages"]
        if len(message["content"]) == 1
    }
    assert roles == {"a": "assistant", "b": "assistant", "c": "user", "d": "user", "e": "user"}, roles


trio.run(main)
