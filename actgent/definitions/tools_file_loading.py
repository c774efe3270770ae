"""Loading of an agent folder's tools: `tools.py` and `tools/*.py` are executed."""

import os
from collections.abc import Mapping
from types import ModuleType

from actgent.errors import InvalidFile, InvalidFolder
from actgent.tools.tool_interface import Tool
from actgent.toolsets.tool_discovery import run_code
from actgent.toolsets.toolset import Toolset

from .agent_folder import AgentFolder
from .skills import LoadSkill
from .toolset_files import load_toolsets


def load_tools(
    folder: AgentFolder, *, environment: Mapping[str, str] = os.environ
) -> tuple[Tool | Toolset, ...]:
    """Run a folder's tools.py and tools/*.py, and return the agent's tools and toolsets.

    The result also has a tool for its skills, and toolsets for its OpenAPI documents and MCP servers.

    Raises:
        InvalidFolder: The code raised an exception.
        ConfigurationError: An environment variable of an MCP server is not set.
    """
    tools, toolsets = _run_files(folder)
    names = (
        list(tools) if folder.tool_names is None else [name for name in folder.tool_names if name in tools]
    )
    skills = (LoadSkill(folder.skills),) if folder.skills else ()
    others = load_toolsets(folder.path, folder.documents, folder.servers, environment)
    return (*(tools[name] for name in names), *skills, *toolsets, *others)


def _run_files(folder: AgentFolder) -> tuple[dict[str, Tool], list[Toolset]]:
    """Execute the tools files of a folder, and return their tools by name, and their toolsets."""
    tools: dict[str, Tool] = {}
    toolsets: dict[int, Toolset] = {}
    problems: list[InvalidFile] = []
    for path, code in folder.code.items():
        name = f"actgent tools of {(folder.path / path).absolute()}"
        try:
            module = run_code(code, str(folder.path / path), name=name)
        except InvalidFile as error:
            problems.append(error)
            continue
        for found in _tools_in(module):
            if isinstance(found, Tool):
                tools[found.name] = found
            else:
                toolsets[id(found)] = found
    if problems:
        raise InvalidFolder(problems) from problems[0].__cause__
    return tools, list(toolsets.values())


def _tools_in(module: ModuleType) -> list[Tool | Toolset]:
    """Return the tools and toolsets in a module; tool classes that it defines are instantiated."""
    found: list[Tool | Toolset] = []
    for value in vars(module).values():
        if isinstance(value, Tool | Toolset):
            found.append(value)
        elif isinstance(value, type) and issubclass(value, Tool) and value.__module__ == module.__name__:
            found.append(value())
    return found
