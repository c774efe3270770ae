"""`config.instructions` contains the instructions for the core, and `config.instructionToolMap` maps instructions to tools.

Document: Instructions and Classification Types, AgentCore Integration.

Differs: The instructions contain the map. Write `Instruction(name, tool="deliver")`. `agent.tools.mapped` has the
names of mapped tools.
"""

from actgent import Instruction, ScriptedLLM, SimpleAgent, tool


@tool(thread=False)
def deliver(item: str) -> str:
    """Deliver an item."""
    return f"delivered {item}"


def main() -> None:
    config = {
        "instructions": [Instruction("order", tool="deliver"), Instruction("greeting")],
        "tools": [deliver],
    }
    agent = SimpleAgent("shop", llm=ScriptedLLM([]), **config)
    assert {each.name: each.tool for each in agent.profile.instructions} == {
        "order": "deliver",
        "greeting": None,
    }
    assert agent.tools.mapped == {"deliver"}
    assert agent.tools.get("deliver") is deliver


main()
