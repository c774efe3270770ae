"""Tools made from tools: under other names, with other options, with parameters that are filled in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from actgent.errors import ConfigurationError, InvalidArguments
from actgent.tools.base import Tool, ToolContext, WrappedTool
from actgent.tools.generators import allowed_by, check_rule_function
from actgent.tools.schemas import ArgumentsValidator

Derive = Callable[[Sequence[Tool]], Sequence[Tool]]
"""Makes tools from tools, which stay as they are."""


def filtering(keep: Callable[[Tool], bool] | Iterable[str]) -> Derive:
    """Keep the tools of these names, or those of which a function says True."""
    if callable(keep) and not isinstance(keep, Tool):
        check_rule_function("filtered()", keep, takes="(tool)")
        return lambda tools: [tool for tool in tools if allowed_by("the function of filtered()", keep(tool))]
    names = frozenset([keep] if isinstance(keep, str) else keep)
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(f"filtered() takes names of tools, not {name!r:.200}")
    return lambda tools: [tool for tool in tools if tool.name in names]


def changing(options: Callable[[Tool], Mapping[str, Any]]) -> Derive:
    """Give tools other options, by a function of the tool."""
    return lambda tools: [WrappedTool(tool, **options(tool)) for tool in tools]


def renaming(new_name: Callable[[str], str]) -> Derive:
    """Give tools other names, by a function of the name."""
    return changing(lambda tool: {"name": new_name(tool.name)})


def configuring(values: Mapping[str, Any], *, shown: Iterable[str] = (), owner: str = "") -> Derive:
    """Fill in parameters, as `configured`."""
    visible = frozenset(shown)

    def derive(tools: Sequence[Tool]) -> list[Tool]:
        known = {name for tool in tools for name in tool.parameters.get("properties", {})}
        known |= {name for tool in tools for name in _filled(tool)}
        if unknown := sorted(values.keys() - known):
            raise ConfigurationError(
                f"toolset {owner!r}: no tool has a parameter {unknown[0]!r} to be configured "
                f"(there are: {', '.join(sorted(known)) or 'none'})"
            )
        return [configured(tool, values, shown=visible) for tool in tools]

    return derive


def configured(tool: Tool, values: Mapping[str, Any], *, shown: Iterable[str] = ()) -> Tool:
    """Fill in those parameters of a tool that it has; the model never sees them, but for those in `shown`.

    Raises:
        ConfigurationError: a value does not fit the tool's schema.
    """
    mine = {name: value for name, value in values.items() if name in tool.parameters.get("properties", {})}
    return ConfiguredTool(tool, mine, shown=shown) if mine else tool


class ConfiguredTool(WrappedTool):
    """A tool with some of its parameters filled in."""

    def __init__(self, inner: Tool, values: Mapping[str, Any], *, shown: Iterable[str] = ()) -> None:
        """Args: `values` by parameter; those in `shown` stay the model's to give, and are then optional."""
        visible = frozenset(shown)
        self._values = dict(values)
        self._hidden = {name: value for name, value in values.items() if name not in visible}
        _check_values(inner, self._values)
        super().__init__(inner, parameters=_without(inner.parameters, self._values, visible))

    @property
    def filled(self) -> Iterable[str]:
        """The names of the parameters that are filled in."""
        return self._values.keys()

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        filled = {**self._values, **arguments, **self._hidden}  # a schema may let any name through
        return await self.inner.execute(filled, context)


def _filled(tool: Tool) -> frozenset[str]:
    """The parameters of a tool that a configuration nearer to it has filled in."""
    names: frozenset[str] = frozenset()
    while isinstance(tool, WrappedTool):
        names |= frozenset(tool.filled) if isinstance(tool, ConfiguredTool) else frozenset()
        tool = tool.inner
    return names


def _check_values(tool: Tool, values: Mapping[str, Any]) -> None:
    properties = tool.parameters.get("properties", {})
    schema = {**tool.parameters, "properties": {name: properties[name] for name in values}, "required": []}
    try:
        ArgumentsValidator(tool.name, schema).validate(values)
    except InvalidArguments as error:
        raise ConfigurationError(f"the configuration of tool {tool.name!r} does not fit: {error}") from error


def _without(
    parameters: Mapping[str, Any], values: Mapping[str, Any], shown: frozenset[str]
) -> dict[str, Any]:
    hidden = values.keys() - shown
    properties = {name: form for name, form in parameters.get("properties", {}).items() if name not in hidden}
    required = [name for name in parameters.get("required", ()) if name not in values]
    rest = {**parameters, "properties": properties, "required": required, "additionalProperties": False}
    return rest if required else {key: value for key, value in rest.items() if key != "required"}
