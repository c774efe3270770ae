"""`OpenRouterClient` connects to many providers, with its own key and headers.

Document: Core Components, 2. LLM Client, Built-in clients.

Differs: The provider has no class, because it is a row in a table of compatible providers. Write
`llm="openrouter:MODEL"`. For the headers of your site, write `OpenAI(MODEL, base_url=..., extra_headers=...)`.
"""

import json
import os

import trio

from actgent import OpenAI, StepsAgent
from actgent.testing import open_provider

FINAL = json.dumps({"final_answer": "Hello."})
MODEL = "anthropic/claude-sonnet-4"


async def main() -> None:
    async with open_provider([FINAL, FINAL]) as provider:
        os.environ.update(OPENROUTER_API_KEY="or-key", OPENROUTER_BASE_URL=provider.openai_url)
        site = {"HTTP-Referer": "https://shop.example", "X-Title": "Shop"}
        client = OpenAI(MODEL, base_url=provider.openai_url, api_key="or-key", extra_headers=site)
        for llm in (f"openrouter:{MODEL}", client):
            async with StepsAgent("clerk", llm=llm) as agent:
                assert str(await agent.run("Hello?")) == "Hello."
        await client.aclose()
        for request in provider.requests:
            assert json.loads(request.body)["model"] == MODEL
            assert request.headers["authorization"] == "Bearer or-key"
        assert provider.requests[1].headers["http-referer"] == "https://shop.example"


before = dict(os.environ)
try:
    trio.run(main)
finally:
    os.environ.clear()
    os.environ.update(before)
