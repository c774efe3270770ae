"""`OpenAIClient(api_key, model, base_url)` works with OpenAI and compatible APIs.

Document: Core Components, 2. LLM Client, Built-in clients.

Differs: The class is named `OpenAI`. Write `OpenAI(model, api_key=..., base_url=...)`, or only `llm="openai:MODEL"`.
"""

import json

import trio

from actgent import OpenAI, StepsAgent
from actgent.testing import open_provider


async def main() -> None:
    async with open_provider([json.dumps({"final_answer": "Hello."})]) as provider:
        client = OpenAI(api_key="sk-test", model="gpt-4o", base_url=provider.openai_url)
        async with StepsAgent("clerk", llm=client) as agent:
            assert str(await agent.run("Hello?")) == "Hello."
        await client.aclose()
        (request,) = provider.requests
    assert request.headers["authorization"] == "Bearer sk-test"
    body = json.loads(request.body)
    assert body["model"] == "gpt-4o"
    assert body["messages"][0]["role"] == "system"


trio.run(main)
