"""An instruction has a name, a description, and optionally a schemaTemplate (the form of the response) and a tool.

Document: Instructions and Classification Types, Initial Configuration.
"""

from actgent import ConfigurationError, Instruction, ScriptedLLM, SimpleAgent, tool


@tool(thread=False)
def deliver(item: str) -> str:
    """Deliver an item."""
    return f"delivered {item}"


INSTRUCTIONS = [
    {"name": "greeting", "description": "A greeting."},
    {"name": "order", "description": "An order.", "schemaTemplate": {"item": "<what>"}, "tool": "deliver"},
    Instruction("farewell", "A farewell.", {"content": "<your words>"}),
    "thanks",
]


def main() -> None:
    agent = SimpleAgent("shop", llm=ScriptedLLM([]), instructions=INSTRUCTIONS, tools=[deliver])
    parts = [(each.name, each.description, each.schema, each.tool) for each in agent.profile.instructions]
    assert parts == [
        ("greeting", "A greeting.", None, None),
        ("order", "An order.", {"item": "<what>"}, "deliver"),
        ("farewell", "A farewell.", {"content": "<your words>"}, None),
        ("thanks", "", None, None),
    ], parts
    for name in ("greeting: A greeting.", "order: An order.", "farewell: A farewell.", "thanks"):
        assert f"- {name}" in agent.system_prompt
    try:
        SimpleAgent("shop", llm=ScriptedLLM([]), instructions=[{"description": "It has no name."}])
    except ConfigurationError as error:
        assert "name" in str(error)
    else:
        raise AssertionError("an instruction without a name")


main()
