"""Tools from the same function are compiled once, and share no mutable state."""

from typing import TypedDict

import pytest

from actgent import tool
from actgent.errors import InvalidArguments
from actgent.tools.schemas import python_types, schema_validation


class Desk:
    """A desk of one customer."""

    def note(self, text: str, times: int = 1, tags: list[str] | None = None) -> str:
        """Write a note down.

        Args:
            text: What to write.
            times: How often.
            tags: What it is about.
        """
        return text


def test_tools_of_the_same_method_are_compiled_once():
    """A second object of the class compiles no further signature or schema."""
    tool(Desk().note)
    schemas, signatures = (
        len(schema_validation._compiled_schemas),
        python_types._compile_plain_fields.cache_info().misses,
    )
    made = [tool(Desk().note) for _ in range(3)]
    assert len(schema_validation._compiled_schemas) == schemas
    assert python_types._compile_plain_fields.cache_info().misses == signatures
    assert made[0].parameters == made[1].parameters


def test_a_changed_schema_does_not_reach_other_tools():
    """A program changes the schema of one tool. The next tool of the method has the original schema and checks."""
    first = tool(Desk().note)
    first.parameters["properties"]["text"]["type"] = "integer"
    second = tool(Desk().note)
    assert second.parameters["properties"]["text"]["type"] == "string"
    assert second.argument_validator.validate({"text": "a"}) == {"text": "a"}
    with pytest.raises(InvalidArguments):
        second.argument_validator.validate({"text": 1})


def test_different_docstring_gives_another_description():
    """Functions with the same signature have separate descriptions."""

    def first(text: str) -> str:
        """Do.

        Args:
            text: One.
        """
        return text

    def second(text: str) -> str:
        """Do.

        Args:
            text: Two.
        """
        return text

    texts = [tool(each).parameters["properties"]["text"]["description"] for each in (first, second)]
    assert texts == ["One.", "Two."]


def test_parameter_class_is_compiled_each_time():
    """A redefined class with the same name has its own schema."""

    def take(address):
        """Take an address."""

    for kind, word in ((int, "integer"), (str, "string")):
        take.__annotations__ = {"address": TypedDict("Address", {"part": kind})}
        [address] = tool(take).parameters["$defs"].values()
        assert address["properties"]["part"]["type"] == word


def test_oldest_compiled_schema_is_evicted():
    """The cache has a maximum size for any number of compiled schemas."""
    for number in range(schema_validation._MAX_CACHED_SCHEMAS + 10):
        schema_validation.compile_schema({"type": "object", "properties": {f"p{number}": {}}}, owner="test")
    assert len(schema_validation._compiled_schemas) == schema_validation._MAX_CACHED_SCHEMAS
