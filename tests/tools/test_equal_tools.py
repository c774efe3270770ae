"""Tools that are made again of the same functions are compiled once, and share nothing that can be changed."""

from typing import TypedDict

import pytest

from actgent import tool
from actgent.errors import InvalidArguments
from actgent.tools.schemas import python_types, schema_validation


class Desk:
    """An object per customer."""

    def note(self, text: str, times: int = 1, tags: list[str] | None = None) -> str:
        """Write a note down.

        Args:
            text: What to write.
            times: How often.
            tags: What it is about.
        """
        return text


def test_tools_of_the_same_method_are_compiled_once():
    """A second object of the class adds no compiled signature and no compiled schema."""
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
    """A program may change the schema of one tool: the next tool of the method, and its checks, are as before."""
    first = tool(Desk().note)
    first.parameters["properties"]["text"]["type"] = "integer"
    second = tool(Desk().note)
    assert second.parameters["properties"]["text"]["type"] == "string"
    assert second.argument_validator.validate({"text": "a"}) == {"text": "a"}
    with pytest.raises(InvalidArguments):
        second.argument_validator.validate({"text": 1})


def test_different_docstring_gives_another_description():
    """Functions of the same signature keep their own texts."""

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
    """A class that was defined again under the same name has its own schema."""

    def take(address):
        """Take an address."""

    for kind, word in ((int, "integer"), (str, "string")):
        take.__annotations__ = {"address": TypedDict("Address", {"part": kind})}
        [address] = tool(take).parameters["$defs"].values()
        assert address["properties"]["part"]["type"] == word


def test_oldest_compiled_schema_is_evicted():
    """No more than the bound are kept, however many schemas a program compiles."""
    for number in range(schema_validation._MAX_CACHED_SCHEMAS + 10):
        schema_validation.compile_schema({"type": "object", "properties": {f"p{number}": {}}}, owner="test")
    assert len(schema_validation._compiled_schemas) == schema_validation._MAX_CACHED_SCHEMAS
