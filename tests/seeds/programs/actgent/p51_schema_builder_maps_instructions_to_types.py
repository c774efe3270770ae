"""`new SchemaBuilder(instructions).build()` copies the name and the description of each instruction. The schemaTemplate
becomes the schema, as parsed JSON.

Document: Instructions and Classification Types, Using SchemaBuilder.
"""

from actgent import ClassificationType, Instruction, SchemaBuilder

INSTRUCTIONS = [
    {
        "name": "Creation",
        "description": "The user wants a new agent.",
        "schemaTemplate": '{"name": "<its name>", "role": "<its role>"}',
    },
    Instruction("greeting", "A greeting."),
    Instruction("order", "An order.", {"item": "<what>"}),
]


def main() -> None:
    schema_builder = SchemaBuilder(INSTRUCTIONS)
    types = schema_builder.build()
    assert all(isinstance(each, ClassificationType) for each in types)
    assert [(each.name, each.description, each.schema) for each in types] == [
        ("Creation", "The user wants a new agent.", {"name": "<its name>", "role": "<its role>"}),
        ("greeting", "A greeting.", {}),
        ("order", "An order.", {"item": "<what>"}),
    ], types


main()
