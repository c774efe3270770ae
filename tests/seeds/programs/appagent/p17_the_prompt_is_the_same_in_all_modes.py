"""One static system prompt serves all modes, so that prompt caching works: prompt and tools are byte for byte the same.

Document: Unified System Prompt Architecture, Efficient Prompt Caching.
"""

import itertools

import trio

from actgent import Anthropic, BareAgent, Modes, OpenAI, tool
from actgent.testing import open_provider


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return "deployed"


async def main() -> None:
    for kind in (OpenAI, Anthropic):
        async with open_provider(lambda _: "Hello.") as provider:
            url = provider.openai_url if kind is OpenAI else provider.anthropic_url
            llm = kind("any-model", base_url=url, api_key="any")
            async with BareAgent("app", llm=llm, modes=Modes(execution=[deploy])) as app:
                session = await app.create_session("ada")
                for mode in ("integration", "plan", "act", "onboarding"):
                    await session.set_mode(mode, by="user")
                    await session.chat("Hello")
                    await session.wait_idle()
            await llm.aclose()
            requests = [request.json for request in provider.requests]
        fronts = {
            str((request.get("system") or request["messages"][0], request["tools"])) for request in requests
        }
        assert len(requests) == 4 and len(fronts) == 1
        for earlier, later in itertools.pairwise(requests):
            messages = [message for message in earlier["messages"] if message["role"] == "assistant"]
            assert [message["role"] for message in later["messages"]].count("assistant") == len(messages) + 1
        if kind is Anthropic:
            assert "cache_control" in str(requests[0])


trio.run(main)
