"""A user's program in a simulation: its agents, its invariants, and the bodies that replace its tools."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import attrs

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError
from actgent.tools import Tool

F = TypeVar("F", bound=Callable[..., Any])
Invariant = Callable[[Any], object]
"""Function of a `Story` that raises AssertionError if the story breaks a rule of the program."""
_INVARIANT, _BODY_OF = "_actgent_invariant", "_actgent_body_of"


def invariant(fn: F) -> F:
    """Mark a function of a `Story` as a rule that must hold at the end of every simulated run.

    The function raises `AssertionError` if the rule is broken. `actgent simulate` finds it at the top level of the file.
    """
    setattr(fn, _INVARIANT, True)
    return fn


def simulated(tool: Tool) -> Callable[[F], F]:
    """Give a tool another function in simulations, for a tool that uses the network or starts programs.

    The function takes the parameters of the tool. `actgent simulate` finds it at the top level of the file.

    Raises:
        ConfigurationError: `tool` is not a tool.
    """
    if not isinstance(tool, Tool):
        raise ConfigurationError(f"@simulated(TOOL) takes a tool, not {tool!r}: write @simulated(my_tool)")

    def mark(fn: F) -> F:
        setattr(fn, _BODY_OF, tool)
        return fn

    return mark


@attrs.frozen
class Program:
    """What a Python file defines at its top level."""

    agents: tuple[Agent, ...]
    invariants: tuple[Invariant, ...]
    bodies: dict[int, Callable[..., Any]]
    """Functions that replace tools, by `id` of the tool."""


def load_program(path: Path) -> Program:
    """Execute a Python file, and return its agents, invariants and bodies of tools.

    Raises:
        ConfigurationError: The file is missing, cannot be run, or defines no agent.
    """
    try:
        values = runpy.run_path(str(path), run_name="__actgent_simulation__").values()
    except FileNotFoundError:
        raise ConfigurationError(
            f"no such file: {path}; expected a Python file that defines an agent"
        ) from None
    except Exception as error:
        raise ConfigurationError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    listed = [item for value in values if isinstance(value, list | tuple) for item in value]
    agents = {id(each): each for each in (*values, *listed) if isinstance(each, Agent)}
    if not agents:
        raise ConfigurationError(
            f"{path} defines no agent at its top level: write `agent = BareAgent(...)` outside functions"
        )
    functions = [value for value in values if callable(value) and not isinstance(value, type | Tool)]
    return Program(
        tuple(agents.values()),
        tuple(each for each in functions if getattr(each, _INVARIANT, False)),
        {
            id(getattr(each, _BODY_OF)): each
            for each in functions
            if getattr(each, _BODY_OF, None) is not None
        },
    )
