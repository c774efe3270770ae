"""Without unmapped tools the request has no `tools`: `tools: unmappedTools.length > 0 ? unmappedTools : undefined`.

Document: Tool Registration and Instruction Mapping, Function List Filtering.
"""

import trio

from actgent import BareAgent, OpenAI
from actgent.testing import open_provider


async def main() -> None:
    async with open_provider(["Hello."]) as provider:
        llm = OpenAI("gpt-4", base_url=provider.openai_url, api_key="any")
        async with BareAgent("clerk", llm=llm) as agent:
            await agent.run("Hello")
        await llm.aclose()
        assert "tools" not in provider.requests[0].json


trio.run(main)
