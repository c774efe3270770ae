"""`GoalAgent`, which works towards goals on its own, and the tools that see them."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Unpack, overload

from actgent.agents.agent import Agent
from actgent.agents.options import CommonOptions, ToolLike, Tools
from actgent.messages import DataT_co
from actgent.protocols.goal import CustomAction, Goal, goal_view
from actgent.tools.adapters import is_tool_shaped
from actgent.tools.base import DepsT, Tool, ToolContext
from actgent.tools.function import tool
from actgent.tools.registry import to_tool
from actgent.tools.state import StateTool, state_tool, takes_state
from actgent.toolsets.toolset import Toolset

from .report import Narration, Write, to_stderr
from .task_runner import TaskRunner


class GoalAgent(Agent["DataT_co | None", DepsT], Generic[DataT_co, DepsT]):
    """An agent that plans, acts, sums up and evaluates until a goal, which is the user's message, is achieved.

    Takes what `Agent` takes, and roles in `models`: planner, executor, summarizer, evaluator, finalizer.

    Args:
        tools: Tools, functions `(state, args)` that return `(key, value)`, or other functions.
        max_iterations: Model calls for one goal, at most; the last of them is an evaluation of what was found.
        actions: What the model may choose beside plan, execute, summarize and evaluate.
        tasks: True: plans are lists of tasks with ids, retries and references, which the tool `run_tasks` carries out.
        state_characters: How large the values may be together that tools write into the state, as JSON; the largest beyond
            that are kept apart, where tools and `read_result` read them, and a reference stands in their place.
        verbose: True: decisions, calls, and changes of the state are told on standard error, as lines; or what takes a line.

    A declared `output=` is the form of an achieved goal's answer; what was not achieved has no data.
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        output: type[DataT_co],
        tools: Tools = (),
        max_iterations: int = 20,
        actions: Iterable[CustomAction] = (),
        tasks: bool = False,
        state_characters: int = 200_000,
        verbose: bool | Write = False,
        **options: Unpack[CommonOptions[DepsT]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        output: object = None,
        tools: Tools = (),
        max_iterations: int = 20,
        actions: Iterable[CustomAction] = (),
        tasks: bool = False,
        state_characters: int = 200_000,
        verbose: bool | Write = False,
        **options: Unpack[CommonOptions[DepsT]],
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        output: object = None,
        tools: Tools = (),
        max_iterations: int = 20,
        actions: Iterable[CustomAction] = (),
        tasks: bool = False,
        state_characters: int = 200_000,
        verbose: bool | Write = False,
        **options: Unpack[CommonOptions[DepsT]],
    ) -> None:
        protocol = Goal(max_iterations=max_iterations, actions=actions, tasks=tasks)
        options.setdefault("protocol", protocol)
        given = [*tools_from(tools, bound=state_characters), *((TaskRunner(),) if tasks else ())]
        super().__init__(name, output=output, tools=given, **options)
        self.narration = Narration(to_stderr if verbose is True else verbose) if verbose else None
        if self.narration is not None:
            self.narration.attach(self)


def tools_from(tools: Tools, *, bound: int | None = None) -> list[Tool | Toolset]:
    """Tools from tools and functions; those with the parameters `(state, args)` become `StateTool`s that see the goal.

    Raises:
        ConfigurationError: a function that no tool can be made of.
    """
    if isinstance(tools, Mapping):
        return [_tool_from(made, name, bound) for name, made in tools.items()]
    return [_tool_from(made, None, bound) for made in tools]


def _tool_from(made: ToolLike, name: str | None, bound: int | None) -> Tool | Toolset:
    if callable(made) and takes_state(made):
        made = state_tool(made, name=name)
    if isinstance(made, StateTool):
        made = copy.copy(made)  # the one that was given may serve others, too
        made.beside, made.bound = made.beside or _beside, bound
    if isinstance(made, Toolset):
        return made
    if isinstance(made, Tool) or is_tool_shaped(made):
        return to_tool(made)
    return tool(name=name)(made)


def _beside(context: ToolContext) -> Mapping[str, Any]:
    """Return what a function of the state finds there of the goal."""
    session = context.session
    return {} if session is None else goal_view(session.state, session.history)
