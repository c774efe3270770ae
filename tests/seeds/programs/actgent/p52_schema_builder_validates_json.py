"""SchemaBuilder parses and validates the JSON of schemas.

Document: Helper Classes, SchemaBuilder ("Handles JSON schema parsing and validation").
"""

from actgent import ConfigurationError, SchemaBuilder

BROKEN = [
    '{"name": ',  # no JSON
    '["a list"]',  # JSON, but no schema
    '{"type": "object", "properties": {"name": {"type": "strange"}}}',  # no JSON Schema
]


def main() -> None:
    for text in BROKEN:
        try:
            SchemaBuilder([{"name": "Creation", "schemaTemplate": text}]).build()
        except ConfigurationError as error:
            assert "Creation" in str(error), error
        else:
            raise AssertionError(text)
    good = '{"type": "object", "properties": {"name": {"type": "string"}}}'
    [kind] = SchemaBuilder([{"name": "Creation", "schemaTemplate": good}]).build()
    assert kind.schema["properties"]["name"] == {"type": "string"}


main()
