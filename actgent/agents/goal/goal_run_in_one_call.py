"""`run_agent` and `run_agent_sync`: work on one goal in one call."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypedDict, Unpack, overload

import trio

from actgent.actors.event_loop_check import is_asyncio_running
from actgent.agents.keyword_argument_types import FormT, Tools
from actgent.agents.verbose_output import Verbose
from actgent.errors import ConfigurationError, UsageError
from actgent.limits_and_schedules.limits import Limits
from actgent.llm.custom_model_adapters import ModelLike
from actgent.llm.model_settings import LLMSettings
from actgent.protocols.goal.goal_decision_parsing import CustomAction

from .goal_agent import GoalAgent
from .goal_result import GoalResult


class RunAgentOptions(TypedDict, total=False):
    """Keyword arguments of `run_agent`, except the goal, the model and `output`."""

    tools: Tools
    max_iterations: int
    actions: Iterable[CustomAction]
    state: type | None
    limits: Limits | None
    timeout: float | None
    deps: Any
    models: Mapping[str, ModelLike | LLMSettings | str] | None
    tasks: bool
    verbose: Verbose
    owner: str


@overload
async def run_agent(
    goal: str, llm: ModelLike | LLMSettings | str, *, output: type[FormT], **options: Unpack[RunAgentOptions]
) -> GoalResult[FormT]: ...
@overload
async def run_agent(
    goal: str, llm: ModelLike | LLMSettings | str, *, output: None = None, **options: Unpack[RunAgentOptions]
) -> GoalResult[str]: ...
@overload
async def run_agent(
    goal: str, llm: ModelLike | LLMSettings | str, *, output: object, **options: Unpack[RunAgentOptions]
) -> GoalResult: ...
async def run_agent(
    goal: str,
    llm: ModelLike | LLMSettings | str,
    *,
    tools: Tools = (),
    max_iterations: int = 20,
    output: Any = None,
    actions: Iterable[CustomAction] = (),
    state: type | None = None,
    limits: Limits | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - a scope alone would cancel, and lose the result
    deps: Any = None,
    models: Mapping[str, ModelLike | LLMSettings | str] | None = None,
    tasks: bool = False,
    verbose: Verbose = False,
    owner: str = "user",
) -> GoalResult[Any]:
    """Work towards one goal with a new `GoalAgent`, and return the outcome with all results.

    Failures are results as well: malformed answers, a model error, failed tools, `max_iterations`, `limits`, `timeout`, a
    detected loop. See `GoalResult.status`, `achieved`, `error` and `failure`.

    Args:
        goal: Goal as text.
        llm: Model, as in `Agent`.
        tools: Tools, functions `(state, args)`, other functions, or a mapping of them by name, as in `GoalAgent`.
        max_iterations: Maximum number of model calls.
        output: Type of `GoalResult.data`; or an output handler, a function that returns the data from the state.
        actions: Additional actions that the model may choose.
        state: Type of the state that tools and actions change, as in `Agent`.
        limits: Limits of the work, as for a turn.
        timeout: Maximum seconds of the work; None is no limit.
        deps: Value that tools get as `ToolContext.deps`.
        models: Models by role, as in `GoalAgent`.
        tasks: True makes plans lists of tasks, which the tool `run_tasks` executes.
        verbose: True writes decisions, calls and state changes to standard error; a file or a function receives the lines
            instead.
        owner: Owner of the session, for quotas and for the cache of a `CachedModel` model.

    Raises:
        ConfigurationError: An argument is wrong; no model was called.
    """
    if not isinstance(goal, str):
        raise ConfigurationError(f"run_agent(goal, llm): the goal must be a string, not {goal!r:.200}")
    agent = GoalAgent(
        "goal",
        llm=llm,
        tools=tools,
        max_iterations=max_iterations,
        output=output,
        actions=actions,
        state=state,
        limits=limits,
        deps=deps,
        models=models,
        tasks=tasks,
        verbose=verbose,
    )
    async with agent:
        session = await agent.create_session(owner)
        return await agent.run_goal(goal, session=session, timeout=timeout)


@overload
def run_agent_sync(
    goal: str, llm: ModelLike | LLMSettings | str, *, output: type[FormT], **options: Unpack[RunAgentOptions]
) -> GoalResult[FormT]: ...
@overload
def run_agent_sync(
    goal: str, llm: ModelLike | LLMSettings | str, *, output: None = None, **options: Unpack[RunAgentOptions]
) -> GoalResult[str]: ...
@overload
def run_agent_sync(
    goal: str, llm: ModelLike | LLMSettings | str, *, output: object, **options: Unpack[RunAgentOptions]
) -> GoalResult: ...
def run_agent_sync(
    goal: str, llm: ModelLike | LLMSettings | str, *, output: Any = None, **options: Unpack[RunAgentOptions]
) -> GoalResult[Any]:
    """Call `run_agent` in synchronous code, in a new event loop and with the same arguments.

    Raises:
        UsageError: The thread runs trio or asyncio; await `run_agent` there, or use `open_portal`.
        ConfigurationError: An argument is wrong; no model was called.
    """
    if trio.lowlevel.in_trio_run():
        raise UsageError(
            "run_agent_sync(): it was called in a thread that runs trio: write `await run_agent(...)`"
        )
    if is_asyncio_running():
        raise UsageError(
            "run_agent_sync(): asyncio runs in this thread, and the call would block its loop: run it by "
            "asyncio.to_thread(run_agent_sync, ...), or see open_portal()"
        )
    return trio.run(partial(run_agent, goal, llm, output=output, **options))
