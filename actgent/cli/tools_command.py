"""`actgent tools`: list an agent's tools with schema, effect, approval and origin."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import trio

from actgent.definitions.agent_folder import BRAIN, read_folder
from actgent.definitions.tools_file_loading import load_tools
from actgent.errors import InvalidFile
from actgent.support.user_code_calls import convert_user_error, leaves
from actgent.tools.outputs.oversized_results import offer_read_result
from actgent.tools.outputs.result_text import error_text
from actgent.tools.tool_interface import Tool
from actgent.tools.tool_registry import ToolRegistry
from actgent.toolsets.mcp import AllowedEnvironment
from actgent.toolsets.tool_discovery import FILES, definition_of, discover
from actgent.toolsets.tool_search import build_registry
from actgent.toolsets.toolset import Toolset

from .agents_in_python_files import load_agents
from .terminal_io import Terminal, one_line

AgentTools = tuple[str, Sequence[Toolset], ToolRegistry]
"""An agent's name (empty for a folder of tools), its toolsets, and its registry."""


async def list_tools(
    target: str, terminal: Terminal, *, json: bool = False, allow_env: Sequence[str] = ()
) -> int:
    """Print the tools of a folder or file. Return 1 if a toolset is not available or a file is invalid.

    Args:
        target: Agent folder, Python file with agents, or folder or file of tools.
        terminal: Output of the command.
        json: True to print one JSON object with complete schemas.
        allow_env: Names of environment variables that the folder's MCP servers may receive.
    """
    agents, problems = _agent_tools(target, AllowedEnvironment(allow_env))
    unavailable: dict[str, str] = {}
    for _, toolsets, registry in agents:
        unavailable |= await _connect(toolsets, registry, terminal)
    rows = [
        _tool_row(agent, tool, {each.name: each for each in toolsets})
        for agent, toolsets, registry in agents
        for tool in registry
    ]
    if json:
        document = {"tools": rows, "unavailable": unavailable, "problems": [str(each) for each in problems]}
        terminal.json_line(orjson.dumps(document, default=str).decode())
    else:
        for each in rows:
            _show(terminal, each)
        if not rows:
            terminal.notice(f"no tools in {target}")
    for name, reason in unavailable.items():
        terminal.report_error(f"tools of {name} are not available: {reason}")
    for problem in problems:
        terminal.report_error(problem)
    return 1 if unavailable or problems else 0


def _agent_tools(
    target: str, environment: AllowedEnvironment
) -> tuple[list[AgentTools], Sequence[InvalidFile]]:
    """Return the agents of a target with their tools. The second result has the errors of invalid files in a tool folder.

    Raises:
        ConfigurationError: The target does not exist, or its agent is invalid.
    """
    path = Path(target)
    if path.name == BRAIN or (path / BRAIN).is_file():
        read = read_folder(path)
        mapped = [each.tool for each in read.instructions if each.tool]
        toolsets, registry = build_registry(load_tools(read, environment=environment), mapped=mapped)
        if read.limits.kept_characters:
            offer_read_result(registry)
        return [(read.name, toolsets, registry)], ()
    if path.is_dir() or path.name in FILES:
        found = discover(path if path.is_dir() else path.parent, recursive=path.is_dir())
        return [("", *build_registry(found.tools, mapped=()))], found.problems
    return [(agent.name, agent.toolsets, agent.tools) for agent in load_agents(target)], ()


async def _connect(toolsets: Sequence[Toolset], registry: ToolRegistry, terminal: Terminal) -> dict[str, str]:
    """Run all toolsets concurrently until each has added its tools to the registry or failed.

    Return the reasons of failures by toolset name; empty if none failed.
    """
    unavailable: dict[str, str] = {}
    waiting = [toolset.name for toolset in toolsets if toolset.may_change]
    if waiting:
        terminal.notice(f"connecting to {', '.join(waiting)}")

    async def connect(toolset: Toolset) -> None:
        if reason := await _publish(toolset, registry):
            unavailable[toolset.name] = reason

    async with trio.open_nursery() as nursery:
        for toolset in toolsets:
            nursery.start_soon(connect, toolset)
    return unavailable


async def _publish(toolset: Toolset, registry: ToolRegistry) -> str:
    """Run one toolset until it adds its tools to the registry. Return the failure reason; empty on success."""
    done = False

    def publish(tools: Sequence[Tool]) -> None:
        nonlocal done
        registry.publish(toolset.name, tools)
        done = True
        scope.cancel()

    reason = f"it did not answer within {toolset.connect_timeout:g} s"
    with trio.move_on_after(toolset.connect_timeout) as scope:
        try:
            await toolset.run(publish)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - toolsets are user code and may raise anything
            leaf = next(leaves(convert_user_error(raised, "toolset", toolset.name)))
            reason = one_line(error_text(leaf))
    return "" if done else reason


def short_schema(name: str, parameters: Mapping[str, Any]) -> str:
    """Return a one-line signature of a tool: `add(a: integer, b?: string)`; `?` marks optional parameters."""
    required = parameters.get("required") or ()
    properties = parameters.get("properties") or {}
    words = [f"{key}{'' if key in required else '?'}: {_type(form)}" for key, form in properties.items()]
    return f"{name}({', '.join(words)})"


def _type(form: object) -> str:
    kind = form.get("type", "any") if isinstance(form, Mapping) else "any"
    return "|".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _tool_row(agent: str, tool: Tool, toolsets: Mapping[str, Toolset]) -> dict[str, Any]:
    place = definition_of(tool)
    origin = toolsets.get(tool.origin)
    return {
        "agent": agent,
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "effect": tool.effect,
        "approval": tool.approval if isinstance(tool.approval, bool) else "by rule",
        "deferred": tool.deferred,
        "toolset": tool.origin or None,
        "from": f"{place[0]}:{place[1]}" if place else str(origin or type(tool).__module__),
    }


def _show(terminal: Terminal, row: Mapping[str, Any]) -> None:
    approval = {True: "needs approval", False: "no approval"}.get(row["approval"], "approval by rule")
    terminal.line(short_schema(row["name"], row["parameters"]))
    if row["description"]:
        terminal.line(f"  {one_line(row['description'], 200)}")
    notes = [
        f"effect {row['effect']}",
        approval,
        *(["deferred"] if row["deferred"] else []),
        f"from {row['from']}",
    ]
    terminal.line(f"  {one_line('; '.join(notes))}", style="dim")
