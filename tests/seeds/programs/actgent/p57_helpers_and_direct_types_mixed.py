"""A program may mix helper classes and direct types: a builder's agent takes direct types, and an agent takes the types
of a SchemaBuilder.

Document: Helper Classes ("Mix approaches as needed").
"""

from actgent import AgentBuilder, Instruction, SchemaBuilder, ScriptedLLM, SimpleAgent

WRITTEN = {
    "name": "praise",
    "description": "Somebody shows a harvest.",
    "schema": {"content": "<your praise>"},
}
ADVICE = Instruction("advice", "Somebody asks for advice.", {"content": "<your advice>"})


def main() -> None:
    llm = ScriptedLLM([])
    built = (
        AgentBuilder("gardener")
        .types(WRITTEN, *SchemaBuilder([ADVICE]).build())
        .protocol("simple")
        .llm(llm)
        .build()
    )
    assert [each.name for each in built.profile.types] == ["praise", "advice"]
    direct = SimpleAgent("gardener", llm=llm, types=[*SchemaBuilder([ADVICE]).build(), WRITTEN])
    assert [each.name for each in direct.profile.types] == ["advice", "praise"]
    for agent in (built, direct):
        assert "- praise: Somebody shows a harvest." in agent.system_prompt
        assert "- advice: Somebody asks for advice." in agent.system_prompt


main()
