"""Tools derived from other tools: selected, renamed, with changed options, or with fixed values for parameters."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from actgent.errors import ConfigurationError, InvalidArguments
from actgent.tools import schemas
from actgent.tools.callable_kinds import check_rule_function, rule_allows
from actgent.tools.tool_interface import Tool, ToolContext, WrappedTool
from actgent.tools.tool_option_checks import check_options

Derive = Callable[[Sequence[Tool]], Sequence[Tool]]
"""Function from tools to tools; it must not change the given tools."""


def filter_tools(keep: Callable[[Tool], bool] | Iterable[str], *, owner: str) -> Derive:
    """Return a function that selects tools for `Toolset.filtered`.

    `keep` are the names of the selected tools, or a predicate of the tool. `owner` is the name of the toolset for errors.
    """
    if callable(keep) and not isinstance(keep, Tool):
        check_rule_function("filtered()", keep, takes="(tool)")
        return lambda tools: [tool for tool in tools if rule_allows("the function of filtered()", keep(tool))]
    names = frozenset([keep] if isinstance(keep, str) else keep)
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(f"filtered() requires tool names or a sync function, not {name!r:.200}")

    return _check_first_tools(
        lambda tools: [tool for tool in tools if tool.name in names], names, f"toolset {owner!r}: filtered()"
    )


def _check_first_tools(derive: Derive, names: Iterable[str], subject: str) -> Derive:
    """Return a function that calls `derive`, but first checks at its first call that the tools include all `names`.

    Later calls are not checked, because a server may remove a tool, and its other tools must stay available.
    `subject` is the subject of the error.
    """
    unchecked = set(names)

    def derive_checked(tools: Sequence[Tool]) -> Sequence[Tool]:
        if unchecked:
            _check_tool_names(unchecked, tools, subject)
            unchecked.clear()
        return derive(tools)

    return derive_checked


def _check_tool_names(names: Iterable[str], tools: Sequence[Tool], subject: str) -> None:
    """Raise `ConfigurationError` if one of `names` is not the name of a tool. `subject` is the subject of the error's sentence."""
    if unknown := sorted(set(names) - {tool.name for tool in tools}):
        raise ConfigurationError(
            f"{subject} names the tool {unknown[0]!r}, which it does not have "
            f"(tools: {', '.join(tool.name for tool in tools) or 'none'})"
        )


def override_options(options: Callable[[Tool], Mapping[str, Any]]) -> Derive:
    """Return a function that overrides options of tools, such as name or effect.

    `options(tool)` returns the new values by option name.
    """
    return lambda tools: [WrappedTool(tool, **options(tool)) for tool in tools]


def rename_tools(new_names: Mapping[str, str] | Callable[[str], str], *, owner: str) -> Derive:
    """Return a function that renames the tools in the mapping `new_names`, or each tool to `new_names(name)`.

    `owner` is the name of the toolset for errors.
    """
    if callable(new_names):
        return override_options(lambda tool: {"name": new_names(tool.name)})
    renamed = override_options(lambda tool: {"name": new_names.get(tool.name, tool.name)})
    return _check_first_tools(renamed, new_names, f"toolset {owner!r}: renamed()")


def fill_parameters(values: Mapping[str, Any], *, shown: Iterable[str] = (), owner: str = "") -> Derive:
    """Return a function that gives parameters of tools fixed values, for `Toolset.configured`.

    The model does not see these parameters, except those in `shown`. `owner` is the name of the toolset for errors.
    """
    visible = frozenset(shown)

    def derive(tools: Sequence[Tool]) -> list[Tool]:
        known = {name for tool in tools for name in tool.parameters.get("properties", {})}
        known |= {name for tool in tools for name in _filled_parameters(tool)}
        if unknown := sorted(values.keys() - known):
            raise ConfigurationError(
                f"toolset {owner!r}: configured() names the parameter {unknown[0]!r}, which no tool has "
                f"(parameters: {', '.join(sorted(known)) or 'none'})"
            )
        return [configure_tool(tool, values, shown=visible) for tool in tools]

    return derive


def declare_labels(
    sinks: Mapping[str, Iterable[str]],
    trusted: Iterable[str],
    audience: Mapping[str, str | Iterable[str]],
    readers: Mapping[str, str | Iterable[str]],
    *,
    owner: str,
) -> Derive:
    """Return a function that declares the data flow of tools: sinks, trusted results, audiences and readers.

    `Toolset.labelled` describes the parameters.
    """
    for name, parameters in sinks.items():
        if isinstance(parameters, str) or not all(isinstance(each, str) for each in parameters):
            raise ConfigurationError(
                f"labelled() requires a tuple of parameter names for each tool in sinks=, such as "
                f'sinks={{{name!r}: ("to",)}}, not {parameters!r:.200}'
            )
    if isinstance(trusted, str):
        raise ConfigurationError(
            f"labelled() requires a tuple of tool names in trusted=, such as trusted=({trusted!r},), not the string {trusted!r:.200}"
        )
    options: dict[str, dict[str, Any]] = {}
    for name, parameters in sinks.items():
        options.setdefault(name, {})["sinks"] = tuple(parameters)
    for name in trusted:
        options.setdefault(name, {}).update(outside=False, declared_trusted=True)
    for name, parameters in audience.items():
        options.setdefault(name, {})["audience"] = (
            (parameters,) if isinstance(parameters, str) else tuple(parameters)
        )
    for name, owners in readers.items():
        options.setdefault(name, {})["readers"] = owners if isinstance(owners, str) else tuple(owners)

    def derive(tools: Sequence[Tool]) -> list[Tool]:
        _check_tool_names(options.keys(), tools, f"toolset {owner!r}: labelled()")
        return [_declare_labels(tool, options.get(tool.name, {})) for tool in tools]

    return derive


def _declare_labels(tool: Tool, options: Mapping[str, Any]) -> Tool:
    members = tool.parameters.get("properties", {})
    named = [("sink", each) for each in options.get("sinks", ())]
    named += [("audience", each) for each in options.get("audience", ())]
    if unknown := [each for each in named if each[1] not in members]:
        kind, name = unknown[0]
        raise ConfigurationError(
            f"labelled() names the {kind} {name!r}, which is not a parameter of {tool.name!r} "
            f"(parameters: {', '.join(members) or 'none'})"
        )
    if not options:
        return tool
    labelled = WrappedTool(tool, **options)
    check_options(labelled)
    return labelled


def configure_tool(tool: Tool, values: Mapping[str, Any], *, shown: Iterable[str] = ()) -> Tool:
    """Return a copy of a tool in which the parameters that `values` names have fixed values.

    The model does not see these parameters, except those in `shown`. A tool without such parameters is returned unchanged.

    Raises:
        ConfigurationError: A value does not match the tool's schema.
    """
    mine = {name: value for name, value in values.items() if name in tool.parameters.get("properties", {})}
    return ConfiguredTool(tool, mine, shown=shown) if mine else tool


class ConfiguredTool(WrappedTool):
    """A tool with fixed values for some parameters."""

    def __init__(self, inner: Tool, values: Mapping[str, Any], *, shown: Iterable[str] = ()) -> None:
        """Wrap a tool, and give some of its parameters fixed values.

        Args:
            inner: The tool that runs the calls.
            values: Values by parameter name.
            shown: Parameters that the model may still set; they become optional.
        """
        visible = frozenset(shown)
        self._values = dict(values)
        self._hidden = {name: value for name, value in values.items() if name not in visible}
        _check_values(inner, self._values)
        super().__init__(
            inner, parameters=_schema_without_parameters(inner.parameters, self._values, visible)
        )

    @property
    def filled(self) -> Iterable[str]:
        """Names of the parameters to which this configuration gives fixed values."""
        return self._values.keys()

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        filled = {
            **self._values,
            **arguments,
            **self._hidden,
        }  # hidden values win: a schema may accept any argument name
        return await self.inner.execute(filled, context)


def _filled_parameters(tool: Tool) -> frozenset[str]:
    """Return the names of the tool's parameters that earlier calls of `configure_tool` have given fixed values."""
    names: frozenset[str] = frozenset()
    while isinstance(tool, WrappedTool):
        names |= frozenset(tool.filled) if isinstance(tool, ConfiguredTool) else frozenset()
        tool = tool.inner
    return names


def _check_values(tool: Tool, values: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` if `values` (by parameter name) do not match the tool's parameter schema."""
    properties = tool.parameters.get("properties", {})
    schema = {**tool.parameters, "properties": {name: properties[name] for name in values}, "required": []}
    try:
        schemas.ArgumentsValidator(tool.name, schema).validate(values)
    except InvalidArguments as error:
        raise ConfigurationError(
            f"the configuration of tool {tool.name!r} does not match its schema: {error}"
        ) from error


def _schema_without_parameters(
    parameters: Mapping[str, Any], values: Mapping[str, Any], shown: frozenset[str]
) -> dict[str, Any]:
    """Return a tool's parameter schema without the parameters in `values`. Those in `shown` stay and become optional."""
    hidden = values.keys() - shown
    properties = {name: form for name, form in parameters.get("properties", {}).items() if name not in hidden}
    required = [name for name in parameters.get("required", ()) if name not in values]
    rest = {**parameters, "properties": properties, "required": required, "additionalProperties": False}
    return rest if required else {key: value for key, value in rest.items() if key != "required"}
