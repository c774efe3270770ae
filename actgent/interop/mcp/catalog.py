"""`MCPCatalog`: tools, prompts and resources that an MCP server offers in addition to the agents. Needs no SDK."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, overload
from urllib.parse import unquote

import attrs

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError
from actgent.tools.function_tool import FunctionTool, tool
from actgent.tools.tool_adapters import AdaptedTool, ToolProtocol
from actgent.tools.tool_interface import Tool, unwrap_tool
from actgent.tools.tool_registry import ToolRegistry

MAX_COMPLETIONS = 100
"""Maximum number of completions of an argument, as the protocol demands."""
_OF_AGENTS = ("actgent.agents.", "actgent.memory.", "actgent.modes.", "actgent.tools.")
"""Packages whose tools need a session."""
_VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_UPWARD = re.compile(r"(^|[/\\])\.\.([/\\]|$)|\x00")
"""Pattern of a path that leads to a parent folder, or of a character that ends paths. Functions often open files by
the name.
"""

Complete = Sequence[str] | Callable[[str], Sequence[str]]
"""Values of an argument that a client may propose, or a sync function of the text that its user has typed."""


@attrs.frozen(kw_only=True)
class MCPPrompt:
    """A prompt of an MCP server: a function whose result is one or more messages."""

    tool: Tool
    """The prompt's function, with the JSON Schema of its arguments."""
    title: str = ""
    """Name to display to users; empty without a title."""
    completions: Mapping[str, Complete] = attrs.field(factory=dict)
    """Values to suggest to users for the arguments, by argument name."""

    @property
    def name(self) -> str:
        """Name of the prompt, unique in the catalog."""
        return self.tool.name


@attrs.frozen(kw_only=True)
class MCPResource:
    """A resource of an MCP server, or a template of resources if its URI has variables such as `{id}`."""

    tool: Tool
    """Function that reads the resource. Its arguments are the variables of the URI."""
    uri: str
    """URI of the resource, or URI template (RFC 6570, level 1)."""
    media_type: str = "text/plain"
    """Media type of the content (RFC 6838)."""
    title: str = ""
    """Name to display to users; empty without a title."""
    completions: Mapping[str, Complete] = attrs.field(factory=dict)
    """Values to suggest to users for the variables of the URI, by variable name."""
    _pattern: re.Pattern[str] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        names = _VARIABLE.findall(self.uri)
        arguments = list(self.tool.parameters.get("properties", {}))
        if sorted(names) != sorted(arguments):
            raise ConfigurationError(
                f"resource {self.uri!r}: the parameters of the function must be the variables of the URI ({', '.join(names) or 'none'}), "
                f"not {', '.join(arguments) or 'none'}"
            )
        parts = _VARIABLE.split(self.uri)
        pattern = "".join(
            f"(?P<{part}>[^/?#]+)" if index % 2 else re.escape(part) for index, part in enumerate(parts)
        )
        object.__setattr__(self, "_pattern", re.compile(pattern))

    @property
    def name(self) -> str:
        """Name of the resource, unique in the catalog."""
        return self.tool.name

    @property
    def is_template(self) -> bool:
        """True if the URI has variables, so that it is a template."""
        return _VARIABLE.search(self.uri) is not None

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the percent-decoded variables of a URI. None if the URI does not match, or if a variable contains `..` as a path."""
        found = self._pattern.fullmatch(uri)
        if found is None:
            return None
        variables = {name: unquote(value) for name, value in found.groupdict().items()}
        return None if any(_UPWARD.search(value) for value in variables.values()) else variables


class CatalogChanges(Protocol):
    """Interface of an object that is notified when a catalog changes."""

    async def lists_changed(self, *, tools: bool, prompts: bool, resources: bool) -> None:
        """Notify clients that lists have changed."""

    async def resource_changed(self, uri: str) -> None:
        """Notify the clients that have subscribed to a resource that its content has changed."""


@attrs.define(init=False, eq=False)
class MCPCatalog:
    """Tools, prompts and resources that an MCP server offers in addition to the agents.

    Tools run without an agent: with validated arguments, and with the time limit, retries, approvals and hooks of the tool.
    They have no session, state or dependency object.

    Raises:
        ConfigurationError: Two items have the same name or URI, or a tool needs an agent.
    """

    tools: ToolRegistry
    """Tools of the catalog, by name."""
    prompts: Mapping[str, MCPPrompt]
    """Prompts of the catalog, by name."""
    resources: Sequence[MCPResource]
    """Resources and resource templates of the catalog."""
    changes: CatalogChanges | None
    """Object that notifies clients when the catalog changes; None until a server uses the catalog."""

    def __init__(
        self,
        *,
        tools: Iterable[Tool | ToolProtocol] = (),
        prompts: Iterable[MCPPrompt] = (),
        resources: Iterable[MCPResource] = (),
    ) -> None:
        """Create a catalog.

        Args:
            tools: Functions with `@tool`, or other tool objects.
            prompts: Functions with `@mcp_prompt`.
            resources: Functions with `@mcp_resource`.
        """
        self.changes = None
        self._set(tools, prompts, resources)

    def _set(
        self,
        tools: Iterable[Tool | ToolProtocol] | None,
        prompts: Iterable[MCPPrompt] | None,
        resources: Iterable[MCPResource] | None,
    ) -> None:
        if tools is not None:
            self.tools = _check_tools(ToolRegistry(tools))
        if prompts is not None:
            by_name: dict[str, MCPPrompt] = {}
            for each in prompts:
                if each.name in by_name:
                    raise ConfigurationError(f"two prompts have the name {each.name!r}")
                by_name[each.name] = each
            self.prompts = by_name
        if resources is not None:
            found = tuple(resources)
            uris = [each.uri for each in found]
            if twice := next((uri for uri in uris if uris.count(uri) > 1), ""):
                raise ConfigurationError(f"two resources have the URI {twice!r}")
            self.resources = found

    async def update(
        self,
        *,
        tools: Iterable[Tool | ToolProtocol] | None = None,
        prompts: Iterable[MCPPrompt] | None = None,
        resources: Iterable[MCPResource] | None = None,
    ) -> None:
        """Replace the tools, prompts or resources; None keeps those of the catalog. Clients with MCP 2026-07-28 are notified.

        Raises:
            ConfigurationError: Two items have the same name or URI, or a tool needs an agent.
        """
        self._set(tools, prompts, resources)
        if self.changes is not None:
            await self.changes.lists_changed(
                tools=tools is not None, prompts=prompts is not None, resources=resources is not None
            )

    async def publish_change(self, uri: str) -> None:
        """Notify the clients that have subscribed to a resource that its content has changed."""
        if self.changes is not None:
            await self.changes.resource_changed(uri)

    def find_resource(self, uri: str) -> tuple[MCPResource, dict[str, str]] | None:
        """Return the resource for a URI and the values of its variables; None if the catalog has no such resource."""
        for each in sorted(self.resources, key=lambda resource: resource.is_template):
            if (variables := each.match(uri)) is not None:
                return each, variables
        return None


def tools_of(agents: Iterable[Agent]) -> list[Tool]:
    """Return the tools of agents, to offer them in a catalog, without the tools of toolsets and without duplicates.

    Raises:
        ConfigurationError: An agent has `approval=` or `modes=`, whose rules need a session, or two tools have the same name.
    """
    found: dict[str, Tool] = {}
    for agent in agents:
        own = [each for each in agent.tools if not each.origin and _is_user_defined(each)]
        if own and (agent.approval_rule is not None or agent.modes is not None):
            raise ConfigurationError(
                f"the tools of agent {agent.name!r} cannot run without it: it has approval= or modes="
            )
        for each in own:
            if found.setdefault(each.name, each) is not each:
                raise ConfigurationError(f"two agents have different tools with the name {each.name!r}")
    return list(found.values())


def _is_user_defined(each: Tool) -> bool:
    """Return True if the user's program or `actgent.toolsets.builtin` defines a tool, and not an agent feature."""
    inner = unwrap_tool(each)
    if isinstance(inner, FunctionTool):
        return not getattr(inner.func, "__module__", "").startswith(_OF_AGENTS)
    return isinstance(inner, AdaptedTool) or not type(inner).__module__.startswith("actgent.")


def _check_tools(registry: ToolRegistry) -> ToolRegistry:
    for each in registry:
        if need := _need_of_agent(each):
            raise ConfigurationError(f"tool {each.name!r} cannot run without an agent: it needs {need}")
    return registry


def _need_of_agent(each: Tool) -> str:
    """Return the name of the agent feature that a tool needs; empty if the tool runs without an agent."""
    if each.deps_type is not None:
        return "deps"
    return "other tools of its agent" if each.calls_tools else ""


@overload
def mcp_prompt(function: Callable[..., Any], /) -> MCPPrompt: ...


@overload
def mcp_prompt(
    *,
    name: str | None = None,
    description: str | None = None,
    title: str = "",
    completions: Mapping[str, Complete] | None = None,
) -> Callable[[Callable[..., Any]], MCPPrompt]: ...


def mcp_prompt(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    title: str = "",
    completions: Mapping[str, Complete] | None = None,
) -> Any:
    """Convert a function to a prompt of an MCP server: `@mcp_prompt`, or with options.

    The function returns a text, an `Image`, a `File`, a `ChatMessage`, or a list of these. Texts, images and files become
    messages of the user.

    Args:
        function: Sync or async function whose parameters are the arguments of the prompt.
        name: Name of the prompt; None uses the function's name.
        description: Description for the user; None uses the docstring.
        title: Name to display to users; empty without a title.
        completions: Values to suggest to users for the arguments, by argument name.

    Raises:
        ConfigurationError: The name or a parameter is invalid for a prompt.
    """

    def decorate(func: Callable[..., Any]) -> MCPPrompt:
        made = tool(name=name, description=description, effect="pure")(func)
        return MCPPrompt(tool=made, title=title, completions=dict(completions or {}))

    return decorate if function is None else decorate(function)


def mcp_resource(
    uri: str,
    *,
    name: str | None = None,
    description: str | None = None,
    media_type: str = "text/plain",
    title: str = "",
    completions: Mapping[str, Complete] | None = None,
) -> Callable[[Callable[..., Any]], MCPResource]:
    """Convert a function to a resource of an MCP server: `@mcp_resource("docs://{page}")`.

    The function returns a text, bytes, an `Image`, a `File`, or a list of these. Other values are encoded as JSON.

    Args:
        uri: URI, or a template with variables that are the parameters of the function.
        name: Name of the resource; None uses the function's name.
        description: Description for the user; None uses the docstring.
        media_type: Media type of the content (RFC 6838).
        title: Name to display to users; empty without a title.
        completions: Values to suggest to users for the variables, by variable name.

    Raises:
        ConfigurationError: The name is invalid, or the parameters are not the variables of the URI.
    """

    def decorate(func: Callable[..., Any]) -> MCPResource:
        made = tool(name=name, description=description, effect="pure")(func)
        return MCPResource(
            tool=made, uri=uri, media_type=media_type, title=title, completions=dict(completions or {})
        )

    return decorate
