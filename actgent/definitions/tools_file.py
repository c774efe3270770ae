"""The tools of an agent's folder: tools.py and tools/*.py are run, and what they define are tools."""

import os
from collections.abc import Mapping
from types import ModuleType

from actgent.errors import InvalidFile, InvalidFolder
from actgent.tools.base import Tool
from actgent.toolsets.discovery import run_code
from actgent.toolsets.toolset import Toolset

from .instructions import AgentFolder
from .skills import LoadSkill
from .toolset_files import load_toolsets


def load_tools(
    read: AgentFolder, *, environment: Mapping[str, str] = os.environ
) -> tuple[Tool | Toolset, ...]:
    """Run a folder's tools.py and tools/*.py, and give what the agent has.

    That are their tools and toolsets, one tool for its skills, its documents of APIs and its MCP servers.

    Raises:
        InvalidFolder: the code fails.
        ConfigurationError: a variable that a server needs is not set in the environment.
    """
    tools, toolsets = _loaded(read)
    wanted = list(tools) if read.tool_names is None else [name for name in read.tool_names if name in tools]
    skills = (LoadSkill(read.skills),) if read.skills else ()
    others = load_toolsets(read.path, read.documents, read.servers, environment)
    return (*(tools[name] for name in wanted), *skills, *toolsets, *others)


def _loaded(read: AgentFolder) -> tuple[dict[str, Tool], list[Toolset]]:
    """The tools by name, and the toolsets that are none."""
    tools: dict[str, Tool] = {}
    toolsets: dict[int, Toolset] = {}
    problems: list[InvalidFile] = []
    for path, code in read.code.items():
        name = f"actgent tools of {(read.path / path).absolute()}"
        try:
            module = run_code(code, str(read.path / path), name=name)
        except InvalidFile as error:
            problems.append(error)
            continue
        for made in _made(module):
            if isinstance(made, Tool):
                tools[made.name] = made
            else:
                toolsets[id(made)] = made
    if problems:
        raise InvalidFolder(problems) from problems[0].__cause__
    return tools, list(toolsets.values())


def _made(module: ModuleType) -> list[Tool | Toolset]:
    """The tools and toolsets of a module; of a class of tools that it defines, an object."""
    made: list[Tool | Toolset] = []
    for value in vars(module).values():
        if isinstance(value, Tool | Toolset):
            made.append(value)
        elif isinstance(value, type) and issubclass(value, Tool) and value.__module__ == module.__name__:
            made.append(value())
    return made
