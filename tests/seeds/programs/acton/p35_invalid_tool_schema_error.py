"""`InvalidToolSchemaError` is raised when a tool with an invalid schema is registered.

Document: Error Handling Strategy, InvalidToolSchemaError.

Differs: The error is named `InvalidToolSchema`, because errors of actgent have no `Error` at the end of their names.
Write `except InvalidToolSchema`.
"""

from typing import Dict

from actgent import InvalidToolSchema, ScriptedLLM, StepsAgent, Tool


class Broken(Tool):
    def __init__(self, schema: Dict):
        super().__init__(name="broken", description="Has an invalid schema.")
        self.schema = schema

    def execute(self, parameters: Dict) -> str:
        return "never"

    def get_schema(self) -> Dict:
        return self.schema


for schema in (
    {"type": "string"},
    {"type": "object", "properties": {"a": {"type": "nonsense"}}},
    {"type": "object", "properties": ["a"]},
    "no schema",
    None,
):
    agent = StepsAgent("clerk", llm=ScriptedLLM([]))
    for register in (agent.tools.add, lambda tool: StepsAgent("clerk", llm=ScriptedLLM([]), tools=[tool])):
        try:
            register(Broken(schema))
        except InvalidToolSchema as error:
            assert "broken" in str(error)
            continue
        raise AssertionError(f"{schema!r} was taken")
    assert agent.tools.list() == ()
