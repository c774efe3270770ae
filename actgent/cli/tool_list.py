"""`actgent tools`: what an agent would have, with schemas, effects, approvals, and where each comes from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import trio

from actgent.definitions.instructions import BRAIN, read_folder
from actgent.definitions.tools_file import load_tools
from actgent.errors import InvalidFile
from actgent.support.foreign import failure_of, leaves
from actgent.tools.base import Tool
from actgent.tools.outputs.kept import offer_read_result
from actgent.tools.outputs.results import worded
from actgent.tools.registry import ToolRegistry
from actgent.toolsets.discovery import FILES, defined_at, discover
from actgent.toolsets.gateway import registry_of
from actgent.toolsets.mcp import AllowedEnvironment
from actgent.toolsets.toolset import Toolset

from .programs import load_agents
from .terminal import Terminal, one_line

Given = tuple[str, Sequence[Toolset], ToolRegistry]
"""An agent's name, its toolsets, and its registry."""


async def list_tools(
    target: str, terminal: Terminal, *, json: bool = False, allow_env: Sequence[str] = ()
) -> int:
    """Show the tools of a folder or file. 1 if a toolset is not available or a file is broken.

    `allow_env` are the environment variables that servers of a folder may use.
    """
    agents, problems = _agents(target, AllowedEnvironment(allow_env))
    unavailable: dict[str, str] = {}
    for _, toolsets, registry in agents:
        unavailable |= await _connect(toolsets, registry, terminal)
    listed = [
        _told(agent, tool, {each.name: each for each in toolsets})
        for agent, toolsets, registry in agents
        for tool in registry
    ]
    if json:
        said = {"tools": listed, "unavailable": unavailable, "problems": [str(each) for each in problems]}
        terminal.raw(orjson.dumps(said, default=str).decode())
    else:
        for each in listed:
            _show(terminal, each)
        if not listed:
            terminal.notice(f"no tools in {target}")
    for name, reason in unavailable.items():
        terminal.complain(f"tools of {name} are not available: {reason}")
    for problem in problems:
        terminal.complain(problem)
    return 1 if unavailable or problems else 0


def _agents(target: str, environment: AllowedEnvironment) -> tuple[list[Given], Sequence[InvalidFile]]:
    """The agents of a folder or a Python file; of a folder without one, the tools that are found there.

    Raises:
        ConfigurationError: there is no such file or folder, or the agent's is wrong.
    """
    path = Path(target)
    if path.name == BRAIN or (path / BRAIN).is_file():
        read = read_folder(path)
        mapped = [each.tool for each in read.instructions if each.tool]
        toolsets, registry = registry_of(load_tools(read, environment=environment), mapped=mapped)
        if read.limits.kept_characters:
            offer_read_result(registry)
        return [(read.name, toolsets, registry)], ()
    if path.is_dir() or path.name in FILES:
        found = discover(path if path.is_dir() else path.parent, recursive=path.is_dir())
        return [("", *registry_of(found.tools, mapped=()))], found.problems
    return [(agent.name, agent.toolsets, agent.tools) for agent in load_agents(target)], ()


async def _connect(toolsets: Sequence[Toolset], registry: ToolRegistry, terminal: Terminal) -> dict[str, str]:
    """Let all toolsets publish once, side by side; returns why some did not, by their names."""
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
    """Run a toolset until it has published; returns why it has not, empty if it has."""
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
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            leaf = next(leaves(failure_of(raised, "toolset", toolset.name)))
            reason = one_line(worded(leaf))
    return "" if done else reason


def short_schema(name: str, parameters: Mapping[str, Any]) -> str:
    """Word a tool's name and parameters in one line: `add(a: integer, b?: string)`; `?` may be left out."""
    required = parameters.get("required") or ()
    properties = parameters.get("properties") or {}
    words = [f"{key}{'' if key in required else '?'}: {_type(form)}" for key, form in properties.items()]
    return f"{name}({', '.join(words)})"


def _type(form: object) -> str:
    kind = form.get("type", "any") if isinstance(form, Mapping) else "any"
    return "|".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _told(agent: str, tool: Tool, toolsets: Mapping[str, Toolset]) -> dict[str, Any]:
    place = defined_at(tool)
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


def _show(terminal: Terminal, told: Mapping[str, Any]) -> None:
    approval = {True: "a person approves", False: "no approval"}.get(told["approval"], "approval by rule")
    terminal.line(short_schema(told["name"], told["parameters"]))
    if told["description"]:
        terminal.line(f"  {one_line(told['description'], 200)}")
    notes = [
        f"effect {told['effect']}",
        approval,
        *(["deferred"] if told["deferred"] else []),
        f"from {told['from']}",
    ]
    terminal.line(f"  {one_line('; '.join(notes))}", style="dim")
