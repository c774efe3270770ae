"""`GoalAgent`, which works towards goals on its own, and the tools that see them."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Unpack, overload

import trio

from actgent.agents.agent import Agent
from actgent.agents.options import CommonOptions, FormT, MessageOptions, ToolLike, Tools
from actgent.agents.runs import view_session
from actgent.agents.session import Session
from actgent.agents.validation import check_tools
from actgent.errors import ConfigurationError, InboxFull, UsageError
from actgent.messages import DataT_co, Message, Reply, new_id
from actgent.protocols.goal import CustomAction, Goal, goal_view
from actgent.tools.adapters import is_tool_shaped
from actgent.tools.base import DepsT, Tool, ToolContext
from actgent.tools.function import tool
from actgent.tools.registry import to_tool
from actgent.tools.state import StateTool, state_tool, takes_state
from actgent.toolsets.toolset import Toolset

from .report import GoalNarration
from .result import GoalResult, goal_result
from .task_runner import TaskRunner

_CLOSING = 5.0
"""Seconds to close a session that `run_goal` opened, also when it is cancelled."""


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

    A type as `output=` is that of an achieved goal's answer; a goal that was not achieved has no data. A function as `output=` is an
    output handler: `run_goal` calls it with the state as tools see it, and its value is the data, however the goal ended.
    """

    narration_type = GoalNarration

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
        **options: Unpack[CommonOptions[DepsT]],
    ) -> None:
        protocol = Goal(max_iterations=max_iterations, actions=actions, tasks=tasks)
        options.setdefault("protocol", protocol)
        given = [*tools_from(tools, bound=state_characters), *((TaskRunner(),) if tasks else ())]
        self._handler = _handler_of(output)
        self._has_output = output is not None
        super().__init__(name, output=None if self._handler else output, tools=given, **options)

    @overload
    async def run_goal(
        self,
        goal: str,
        *,
        session: Session[Any] | None = None,
        output: type[FormT],
        **options: Unpack[MessageOptions[DepsT]],
    ) -> GoalResult[FormT]: ...
    @overload
    async def run_goal(
        self,
        goal: str,
        *,
        session: Session[Any] | None = None,
        output: None = None,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> GoalResult[DataT_co]: ...
    @overload
    async def run_goal(
        self,
        goal: str,
        *,
        session: Session[Any] | None = None,
        output: object,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> GoalResult: ...
    async def run_goal(
        self,
        goal: str,
        *,
        session: Session[Any] | None = None,
        output: Any = None,
        **options: Unpack[MessageOptions[DepsT]],
    ) -> GoalResult[Any]:
        """Work towards a goal, and return the outcome with everything found, also if the turn fails.

        `run` raises what a turn fails with, as in every agent; here a model error, malformed answers, a limit or a timeout are a result
        with `status`, `error` and `failure`. The options are those of `run`. Without a session the goal has a fresh one,
        which is closed afterwards unless the goal waits for an approval.

        Raises:
            ConfigurationError: An argument is wrong; no model was called.
            UsageError: The agent is not running, or the session cannot take the goal.
            InboxFull: The inbox had no room for the goal.
        """
        _check_goal(goal)
        if session is not None:
            return await self._run_goal(goal, session, output=output, **options)
        session, status = await self.create_session(options.pop("sender", None) or "user"), ""
        try:
            result = await self._run_goal(goal, session, output=output, **options)
            status = result.status
        finally:
            if status != "suspended":
                with trio.move_on_after(_CLOSING, shield=True):
                    await session.aclose()
        return result

    async def _run_goal(self, goal: str, session: Session[Any], **options: Any) -> GoalResult[Any]:
        begun, opener = trio.current_time(), await self._await_opener()
        turn = options["message_id"] = options.get("message_id") or new_id()
        before = await view_session(opener, session)
        reply: Reply[Any] | None = None
        failure: Exception | None = None
        handler = _handler_of(options.get("output"))
        if handler is not None:
            options["output"] = None
        try:
            reply = await self.run(goal, session=session, **options)
        except InboxFull:
            raise
        except Exception as error:  # noqa: BLE001 - whatever ended the turn is part of the result
            failure = error
        after = await view_session(opener, session)
        if isinstance(failure, ConfigurationError | UsageError) and not _was_answered(
            after.history[len(before.history) :]
        ):
            raise failure
        result = goal_result(
            goal,
            turn=turn,
            state=after.state,
            history=after.history,
            usage=after.usage - before.usage,
            reply=reply,
            failure=failure,
            max_iterations=self.protocol.max_iterations or 0,
            seconds=trio.current_time() - begun,
            wants_text=options.get("output") is None and not self._has_output,
            handler=handler or (self._handler if options.get("output") is None else None),
        )
        if self.narration is not None and failure is not None:
            self.narration.line(f"ended: {result.status} ({result.error})")
        return result


def _check_goal(goal: object) -> None:
    """Refuse a goal without words.

    Raises:
        ConfigurationError: The goal is no text, or an empty one.
    """
    if not isinstance(goal, str) or not goal.strip():
        raise ConfigurationError(f"the goal is a text that is not empty, not {goal!r:.200}")


def _handler_of(output: object) -> Callable[[Mapping[str, Any]], Any] | None:
    """Return an output handler, a function of the state, that was given as `output=`; None for types and schemas.

    Raises:
        ConfigurationError: The function is async.
    """
    if not (inspect.isroutine(output) or isinstance(output, functools.partial)):
        return None
    if inspect.iscoroutinefunction(output):
        raise ConfigurationError(f"output= as a function of the state is sync, not {output!r:.200}")
    handler: Callable[[Mapping[str, Any]], Any] = output
    return handler


def _was_answered(history: Iterable[Message]) -> bool:
    """Return True if a model has answered since a goal was given."""
    return any(message.sender.kind == "assistant" for message in history)


def tools_from(tools: Tools, *, bound: int | None = None) -> list[Tool | Toolset]:
    """Return the tools of a goal agent. Functions of `(state, args)` become `StateTool`s that see the goal.

    Raises:
        ConfigurationError: `tools` is neither a list nor a dict, or a function cannot become a tool.
    """
    if isinstance(tools, Mapping):
        return [_tool_from(made, name, bound) for name, made in tools.items()]
    check_tools(tools)
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
