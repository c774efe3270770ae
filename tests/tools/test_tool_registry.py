"""actgent.tools.tool_registry: tools by name, and the specs that a model gets."""

import pickle

import pytest

from actgent.errors import ConfigurationError, DuplicateTool, ToolNotFound
from actgent.messages import ToolCall
from actgent.tools import FunctionTool, Tool, ToolRegistry


def make(name: str) -> FunctionTool:
    return FunctionTool(name, f"Do {name}.", lambda: name)


def names(registry: ToolRegistry) -> list[str]:
    return [spec.name for spec in registry.specs]


def test_tools_stay_in_order():
    """Tools are listed in the order of their registration."""
    registry = ToolRegistry([make("b"), make("a")])
    registry.add(make("c"))
    assert names(registry) == [tool.name for tool in registry.list()] == ["b", "a", "c"]
    assert [tool.name for tool in registry] == ["b", "a", "c"]
    assert len(registry) == 3


def test_specs_are_stable_until_the_tools_change():
    """The same tuple is returned until the tools change, so the prompt prefix is stable."""
    registry = ToolRegistry([make("a")])
    specs = registry.specs
    before = pickle.dumps(specs)
    assert registry.specs is specs
    registry.add(make("b"))
    registry.remove("b")
    assert registry.specs == specs
    assert pickle.dumps(registry.specs) == before


def test_duplicate_name_is_rejected():
    """Two tools with one name are a ConfigurationError, and the first one remains."""
    registry = ToolRegistry([make("a")])
    with pytest.raises(DuplicateTool, match="'a'"):
        registry.add(make("a"))
    assert len(registry) == 1


def test_plain_function_is_refused_with_the_remedy():
    """The error of a function without the decorator names the decorator."""
    with pytest.raises(ConfigurationError, match="@tool"):
        ToolRegistry([len])


def test_tool_of_an_own_class_is_checked():
    """A subclass of Tool is checked when it is registered."""

    class Odd(Tool):
        name = "odd name"
        description = "Odd."
        parameters = {"type": "object"}  # noqa: RUF012 - as users write it

        async def execute(self, arguments, context):
            return None

    with pytest.raises(ConfigurationError, match="odd name"):
        ToolRegistry([Odd()])


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/x.json", "file:///etc/hostname"])
def test_schema_with_an_external_reference_is_rejected(reference):
    """Neither the registration nor a call fetches a document for a schema."""

    class Remote(Tool):
        name = "remote"
        description = "Remote."
        parameters = {"type": "object", "properties": {"a": {"$ref": reference}}}  # noqa: RUF012 - as users write it

        async def execute(self, arguments, context):
            return None

    with pytest.raises(ConfigurationError, match="references to other documents are not supported"):
        ToolRegistry([Remote()])


def test_mapped_tool_is_not_in_the_specs():
    """A tool of an instruction is registered, and is not in the specs."""
    registry = ToolRegistry([make("a"), make("b")], mapped=["b"])
    assert names(registry) == ["a"]
    assert "b" in registry
    assert registry.mapped == {"b"}


def test_mapped_tool_runs_only_through_its_instruction():
    """A direct call of a mapped tool is an error that does not reveal the tool."""
    registry = ToolRegistry([make("a"), make("b")], mapped=["b"])
    with pytest.raises(ToolNotFound) as caught:
        registry.find(ToolCall("b", {}))
    assert str(caught.value) == "tool 'b' not found; existing tools: a"
    assert registry.find(ToolCall("b", {}, mapped=True)).name == "b"


def test_unknown_mapped_tool_is_rejected():
    """An instruction with an unknown tool is a ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"'c', which is not registered.*registered tools: a"):
        ToolRegistry([make("a")], mapped=["c"])


def test_registered_tool_can_be_removed():
    """A tool can be removed. A mapped or unknown tool cannot."""
    registry = ToolRegistry([make("a"), make("b")], mapped=["b"])
    registry.remove("a")
    assert registry.get("a") is None
    with pytest.raises(ToolNotFound):
        registry.remove("a")
    with pytest.raises(ConfigurationError, match="belongs to an instruction"):
        registry.remove("b")
