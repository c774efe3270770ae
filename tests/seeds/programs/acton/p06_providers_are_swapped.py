"""Providers are swapped easily: the same agent code works with OpenAI, another provider, and a mock client for tests.

Document: Core Components, 2. LLM Client (Protocol-based design allows ...).
"""

import json

import trio

from actgent import Anthropic, OpenAI, OpenAIResponses, ScriptedLLM, StepsAgent
from actgent.testing import open_provider

FINAL = json.dumps({"final_answer": "Hello."})


class Mock:
    def call(self, messages, **kwargs) -> str:
        return FINAL


async def main() -> None:
    async with open_provider(lambda request: FINAL) as provider:
        clients = [
            OpenAI("gpt-4o", base_url=provider.openai_url, api_key="k"),
            OpenAIResponses("gpt-4o", base_url=provider.openai_url, api_key="k"),
            Anthropic("claude", base_url=provider.anthropic_url, api_key="k"),
        ]
        for client in (*clients, Mock(), ScriptedLLM([FINAL])):
            async with StepsAgent("clerk", llm=client) as agent:
                assert str(await agent.run("Hello?")) == "Hello."
        for client in clients:
            await client.aclose()
        assert len(provider.requests) == 3


trio.run(main)
