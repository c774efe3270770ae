"""A user's program in a simulation: its agents, its invariants, and the functions that replace its tools."""

import functools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

import attrs

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError
from actgent.tools import Tool

F = TypeVar("F", bound=Callable[..., Any])
Invariant = Callable[[Any], object]
"""Function of a `Story` that raises AssertionError if the story breaks a rule of the program."""
_INVARIANT, _BODY_OF = "_actgent_invariant", "_actgent_body_of"
_MODULE = "__actgent_simulation__"
"""Name of the program's module while it runs."""
_INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages. A virtual environment may be below the folder of the program."""


def invariant(fn: F) -> F:
    """Decorator: mark a function of a `Story` as a rule that must hold at the end of every simulated run.

    The function raises `AssertionError` if the rule is broken. `actgent simulate` finds it at the top level of the file.
    """
    setattr(fn, _INVARIANT, True)
    return fn


def simulated(tool: Tool) -> Callable[[F], F]:
    """Decorator: replace the function of a tool in simulations, for a tool that uses the network or starts programs.

    The function takes the parameters of the tool. `actgent simulate` finds it at the top level of the file.

    Raises:
        ConfigurationError: `tool` is not a tool.
    """
    if not isinstance(tool, Tool):
        raise ConfigurationError(
            f"the argument of @simulated must be a tool, not {tool!r}: write @simulated(my_tool)"
        )

    def mark(fn: F) -> F:
        setattr(fn, _BODY_OF, tool)
        return fn

    return mark


@attrs.frozen
class Program:
    """Agents, invariants and replaced tools that a Python file defines at its top level."""

    agents: tuple[Agent, ...]
    """Agents to which callers send messages."""
    companions: tuple[Agent, ...]
    """Agents that only other agents use, such as members of a team."""
    invariants: tuple[Invariant, ...]
    bodies: dict[int, Callable[..., Any]]
    """Functions that run in place of the tools, by `id()` of the tool."""

    @property
    def all_agents(self) -> tuple[Agent, ...]:
        """Agents to which callers send messages, and agents that only these agents use."""
        return (*self.agents, *self.companions)


@contextmanager
def own_modules(path: Path) -> Iterator[Callable[[], None]]:
    """Context manager: let a program import the modules of its folder while the block runs.

    The yielded function ends a process of the program. It restores `sys.path`, and removes the imported modules of the folder,
    because their state would survive the process. Functions of these modules cannot be called afterwards. The end of the block
    also ends the process, and restores the modules that were loaded before.
    """
    folder = str(path.resolve().parent)
    search_path = list(sys.path)
    before = {name: sys.modules.pop(name) for name in _program_modules(folder, list(sys.modules))}
    known = set(sys.modules)

    def end_process() -> None:
        for name in _program_modules(folder, sys.modules.keys() - known):
            # Caches of `typing` keep classes of the program. Without its names, they do not keep all objects of the process.
            vars(sys.modules.pop(name)).clear()
        sys.path[:] = [folder, *search_path]

    sys.path.insert(0, folder)
    try:
        yield end_process
    finally:
        end_process()
        sys.modules.update(before)
        sys.path[:] = search_path


def _program_modules(folder: str, names: Iterable[str]) -> list[str]:
    """Return the names of the loaded modules among `names` that belong to a program in `folder`."""
    prefix, found = folder + os.sep, []
    for name in names:
        values = getattr(sys.modules[name], "__dict__", {})
        file = values.get("__file__") or next(
            iter(values.get("__path__") or ()), ""
        )  # a folder without __init__.py
        if str(file).startswith(prefix) and _can_reimport(name, str(file), prefix):
            found.append(name)
    return found


def _can_reimport(name: str, file: str, prefix: str) -> bool:
    """Return True if a loaded module in the program's folder can be imported again.

    Installed libraries and compiled modules cannot. `file` is the path of the module, and `prefix` that of the folder.
    """
    return (
        name.partition(".")[0] not in ("actgent", "__main__")
        and not file.endswith(tuple(EXTENSION_SUFFIXES))
        and not any(part in _INSTALLED for part in Path(file[len(prefix) :]).parts)
        and not file.startswith(_library_folders())
    )


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """Return the folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    return tuple({paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def load_program(path: Path) -> Program:
    """Execute a Python file, and return its agents, invariants and replaced tools.

    Call it in a block of `own_modules`, so that the file can import modules of its folder.

    Raises:
        ConfigurationError: The file is missing, cannot be run, or defines no agent.
    """
    module = ModuleType(_MODULE)
    module.__file__ = str(path)
    try:
        code = _compile(path, path.stat().st_mtime_ns)
        sys.modules[_MODULE] = module
        exec(code, vars(module))  # noqa: S102 - the program that the user wants to run
    except FileNotFoundError:
        raise ConfigurationError(
            f"no such file: {path}; expected a Python file that defines an agent"
        ) from None
    except IsADirectoryError:
        raise ConfigurationError(
            f"{path} is a folder; expected a Python file that defines an agent"
        ) from None
    except Exception as error:
        raise ConfigurationError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    values = list(vars(module).values())
    listed = [item for value in values if isinstance(value, list | tuple) for item in value]
    agents = {id(each): each for each in (*values, *listed) if isinstance(each, Agent)}
    if not agents:
        raise ConfigurationError(
            f"{path} defines no agent at its top level: write `agent = BareAgent(...)` outside functions"
        )
    functions = [value for value in values if callable(value) and not isinstance(value, type | Tool)]
    reached = {id(each): each for agent in agents.values() for each in agent._with_companions()}
    return Program(
        agents=tuple(agents.values()),
        companions=tuple(each for key, each in reached.items() if key not in agents),
        invariants=tuple(each for each in functions if getattr(each, _INVARIANT, False)),
        bodies={
            id(getattr(each, _BODY_OF)): each
            for each in functions
            if getattr(each, _BODY_OF, None) is not None
        },
    )


@functools.lru_cache(maxsize=8)
def _compile(path: Path, _mtime_ns: int) -> CodeType:
    """Compile a Python file. The result is cached, because each simulated process executes the file again."""
    return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
