"""The `Agent` is the only component that users typically instantiate: the client is named, and the registry is made.

Document: Core Components, 1. Agent; Design Trade-offs, Simplicity vs. Features.
"""

import os

from actgent import StepsAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


os.environ.setdefault("OPENAI_API_KEY", "any")  # no call is made here
agent = StepsAgent("clerk", llm="openai:gpt-5.2", tools=[add], system_prompt="You are brief.")
assert agent.tools.get("add").description == "Add two numbers."


def parrot(messages) -> str:
    return '{"final_answer": "Hello."}'


assert str(StepsAgent("parrot", llm=parrot).run_sync("Hello?")) == "Hello."
