"""The tools of an agent's folder: its tools.py is run, and what it defines are tools."""

import sys
import traceback
from types import ModuleType

from actgent.errors import ConfigurationError, InvalidFile, InvalidFolder
from actgent.tools.base import Tool

from .instructions import TOOLS, AgentFolder
from .skills import LoadSkill


def load_tools(read: AgentFolder) -> tuple[Tool, ...]:
    """Run a folder's tools.py, and give the tools that the agent has: those, and one for its skills.

    Raises:
        InvalidFolder: the code fails, or a tool that the folder names is not there after all.
    """
    loaded = _loaded(read) if read.code else {}
    wanted = list(loaded) if read.tool_names is None else [n for n in read.tool_names if n in loaded]
    skills = (LoadSkill(read.skills),) if read.skills else ()
    return (*(loaded[name] for name in wanted), *skills)


def _loaded(read: AgentFolder) -> dict[str, Tool]:
    path = str(read.path / TOOLS)
    name = f"actgent tools of {read.path.absolute()}"
    # Registered, because dataclasses and attrs look their own module up there.
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = path
    try:
        exec(compile(read.code, path, "exec"), module.__dict__)  # noqa: S102 - the developer's own code
    except Exception as error:
        lines = [step.lineno for step in traceback.extract_tb(error.__traceback__) if step.filename == path]
        reason = str(error) if isinstance(error, ConfigurationError) else type(error).__name__
        problem = InvalidFile(path, (lines and lines[-1]) or 1, f"the code cannot be run: {reason}")
        raise InvalidFolder([problem]) from error
    made = [_made(value, module.__name__) for value in vars(module).values()]
    return {tool.name: tool for tool in made if tool is not None}


def _made(value: object, module: str) -> Tool | None:
    """A tool as it is; of a class of tools that the module defines, an object."""
    if isinstance(value, Tool):
        return value
    if isinstance(value, type) and issubclass(value, Tool) and value.__module__ == module:
        return value()
    return None
