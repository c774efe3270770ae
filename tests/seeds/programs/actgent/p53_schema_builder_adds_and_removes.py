"""SchemaBuilder manages instructions dynamically: they are added and removed.

Document: Helper Classes, SchemaBuilder.
"""

from actgent import Instruction, SchemaBuilder, ScriptedLLM, SimpleAgent


def names(builder: SchemaBuilder) -> list[str]:
    return [each.name for each in builder.build()]


def main() -> None:
    first = SchemaBuilder(["greeting"])
    second = first.add(Instruction("order", "An order.", {"item": "<what>"}), "farewell")
    third = second.remove("greeting")
    assert names(third) == ["order", "farewell"]
    assert (names(second), names(first)) == (["greeting", "order", "farewell"], ["greeting"])
    agent = SimpleAgent("shop", llm=ScriptedLLM([]), types=third.build())
    assert "- order: An order." in agent.system_prompt
    assert "greeting" not in agent.system_prompt


main()
