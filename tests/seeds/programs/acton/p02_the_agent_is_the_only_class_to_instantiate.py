"""The `Agent` is the only component that users typically instantiate: its arguments name the client, and it creates the registry.

Document: Core Components, 1. Agent; Design Trade-offs, Simplicity vs. Features.
"""

import os

import trio

from actgent import StepsAgent, tool
from actgent.testing import open_provider


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def parrot(messages) -> str:
    return '{"final_answer": "Hello."}'


async def main() -> None:
    async with open_provider(['{"final_answer": "Three."}']) as provider:
        os.environ.update(OPENAI_API_KEY="any", OPENAI_BASE_URL=provider.openai_url)
        async with StepsAgent(
            "clerk", llm="openai:gpt-5.2", tools=[add], system_prompt="You are brief."
        ) as agent:
            assert str(await agent.run("What is 1 + 2?")) == "Three."
            assert agent.tools.get("add").description == "Add two numbers."


before = dict(os.environ)
try:
    trio.run(main)
finally:
    os.environ.clear()
    os.environ.update(before)
assert str(StepsAgent("parrot", llm=parrot).run_sync("Hello?")) == "Hello."
