"""`GoalAgent`, which works towards goals with several model calls, its narration, and the conversion of its tools."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Unpack, overload

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.agent_constructor_validation import check_tools
from actgent.agents.keyword_argument_types import CommonOptions, FormT, MessageOptions, ToolLike, Tools
from actgent.agents.runs.runs_on_other_cluster_nodes import view_session
from actgent.agents.session import Session
from actgent.agents.verbose_output import MAX_VALUE_CHARS, Narration, value_line
from actgent.errors import ConfigurationError, InboxFull, LimitReached, ToolError, UsageError
from actgent.errors.text_escaping import counted, shown
from actgent.messages import DataT_co, Message, Reply, new_id
from actgent.protocols.goal.goal_decision_parsing import CustomAction
from actgent.protocols.goal.goal_progress import Progress, goal_view, progress_in, turn_of
from actgent.protocols.goal.goal_protocol import Goal
from actgent.protocols.goal.task_plan import (
    RUN_TASKS,
    TASKS_SCHEMA,
    PlannedTask,
    References,
    read_tasks,
    tasks_change,
    tasks_for_model,
    tasks_in,
    tasks_reason,
)
from actgent.state.session_state import State
from actgent.support.strict_json import loads_or_text
from actgent.tools.function_tool import tool
from actgent.tools.state_tools import StateTool, state_tool, takes_state
from actgent.tools.tool_adapters import is_tool_like
from actgent.tools.tool_interface import DepsT, Effect, NestedToolCalls, Tool, ToolContext
from actgent.tools.tool_registry import to_tool
from actgent.toolsets.toolset import Toolset

from .goal_result import GoalResult, goal_result

_CLOSE_TIMEOUT_SECONDS = 5.0
"""Seconds to close a session that `run_goal` opened, also when it is cancelled."""


@attrs.define
class GoalNarration(Narration):
    """Narration of a goal agent. It has lines for decisions with their reasons, and a line when a goal ends."""

    _statuses: dict[str, str] = attrs.field(factory=dict)
    """Last status of the goal, by session id."""

    def name_of(self, kind: str) -> str:
        return "goal"

    def state_lines(self, session: Session[Any], state: State) -> Iterable[str]:
        progress = progress_in(state)
        status = progress.status if progress else ""
        if progress is not None and status and status != self._statuses.get(session.id):
            yield _end_of(progress)
        self._statuses[session.id] = status

    def decision_lines(self, decision: Mapping[str, Any]) -> Iterator[str]:
        if not isinstance(decision.get("action"), str):
            return
        reasoning = decision.get("reasoning")
        why = (
            f" because: {shown(reasoning, MAX_VALUE_CHARS)}"
            if isinstance(reasoning, str) and reasoning
            else ""
        )
        yield f"decides: {shown(decision['action'])} {value_line(decision.get('params', {}))}{why}"


def _end_of(progress: Progress) -> str:
    why = f" ({progress.error})" if progress.error else ""
    return f"ended: {progress.status}{why} after {counted(progress.iterations, 'model call')}"


class GoalAgent(Agent["DataT_co | None", DepsT], Generic[DataT_co, DepsT]):
    """An agent that plans, acts, summarizes and evaluates until the goal in the user's message is achieved.

    It takes the arguments of `Agent`. `models` may have the roles planner, executor, summarizer, evaluator and finalizer.

    Args:
        name: Name of the agent.
        output: Type of the answer to an achieved goal; a goal that was not achieved has no data. Or an output handler: a function
            that `run_goal` calls with the state as tools see it. Its result is the data, also if the goal was not achieved.
        tools: Tools, functions `(state, args)` that return `(key, value)`, or other functions.
        max_iterations: Maximum number of model calls of one goal. The last one evaluates the results.
        actions: Actions that the model may choose, in addition to plan, execute, summarize and evaluate.
        tasks: True makes plans lists of tasks with ids, retries and references, which the tool `run_tasks` executes.
        state_characters: Maximum size of all values that tools write into the state, in characters of JSON. Above it, the largest
            values are stored elsewhere: the state has references to them, and tools and `read_result` read the values.
        **options: Arguments of `Agent`.
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
        given = [
            *tools_from(tools, max_state_characters=state_characters),
            *((TaskRunner(),) if tasks else ()),
        ]
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
        """Work towards a goal, and return the outcome with all results found. Failures are returned, not raised.

        A model error, malformed answers, a limit or a timeout set `status`, `error` and `failure` of the result; `run` would raise
        them. The options are those of `run`. Without `session`, the goal has a new session, which is closed afterwards unless the
        goal waits for an approval.

        Raises:
            ConfigurationError: An argument is wrong; no model was called.
            UsageError: The agent is not running, or the session cannot accept the goal.
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
                with trio.move_on_after(_CLOSE_TIMEOUT_SECONDS, shield=True):
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
        except Exception as error:  # noqa: BLE001 - any error of the turn becomes part of the result
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
    """Check the text of a goal.

    Raises:
        ConfigurationError: The goal is not a str, or is empty.
    """
    if not isinstance(goal, str) or not goal.strip():
        raise ConfigurationError(f"the goal must be a string that is not empty, not {goal!r:.200}")


def _handler_of(output: object) -> Callable[[Mapping[str, Any]], Any] | None:
    """Return `output=` if it is a function of the state that computes the output; None if it is a type or a schema.

    Raises:
        ConfigurationError: The function is async.
    """
    if not (inspect.isroutine(output) or isinstance(output, functools.partial)):
        return None
    if inspect.iscoroutinefunction(output):
        raise ConfigurationError(
            f"output= as a function of the state must be a sync function, not {output!r:.200}"
        )
    handler: Callable[[Mapping[str, Any]], Any] = output
    return handler


def _was_answered(history: Iterable[Message]) -> bool:
    """Return True if the messages contain an answer of a model."""
    return any(message.sender.kind == "assistant" for message in history)


def tools_from(tools: Tools, *, max_state_characters: int | None = None) -> list[Tool | Toolset]:
    """Convert the argument `tools=` of a goal agent to tools. Functions of `(state, args)` become `StateTool`s.

    If the state has more than `max_state_characters` characters of JSON, such a tool stores large values outside of the state;
    None is no limit.

    Raises:
        ConfigurationError: `tools` is neither a list nor a dict, or a function cannot become a tool.
    """
    if isinstance(tools, Mapping):
        return [_tool_from(each, name, max_state_characters) for name, each in tools.items()]
    check_tools(tools)
    return [_tool_from(each, None, max_state_characters) for each in tools]


def _tool_from(value: ToolLike, name: str | None, max_state_characters: int | None) -> Tool | Toolset:
    if callable(value) and takes_state(value):
        value = state_tool(value, name=name)
    if isinstance(value, StateTool):
        value = copy.copy(value)  # the original may be a tool of other agents as well
        value.defaults, value.max_state_characters = value.defaults or _goal_values, max_state_characters
    if isinstance(value, Toolset):
        return value
    if isinstance(value, Tool) or is_tool_like(value):
        return to_tool(value)
    return tool(name=name)(value)


def _goal_values(context: ToolContext) -> Mapping[str, Any]:
    """Return the goal, the results so far and the used tools, by name. Tool functions `(state, args)` read these values."""
    session = context.session
    return {} if session is None else goal_view(session.state, session.history)


# --- run tasks tool --------------------------------------------------------------------------


class TaskRunner(Tool):
    """Tool that executes tasks in order. A failed task is retried, and tasks that depend on it are skipped.

    Each call is subject to the approval, limits and timeout of the called tool. A call that succeeded is not repeated when the
    tool runs again after a crash.
    """

    name = RUN_TASKS
    description = (
        "Carry out tasks in their order, each by one of the other tools. args may refer to what came of earlier tasks of this "
        'goal, as in "{{tasks.0.output.results.0.url}}".'
    )
    parameters = TASKS_SCHEMA
    effect: Effect = "idempotent"
    sinks = ()  # each nested call is checked
    keeps_references = True
    exclusive = True
    calls_tools = True
    timeout = 3600.0

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        others, session = context.tools, context.session
        if others is None or session is None:
            raise ToolError("run_tasks works only as a tool of an agent, in a session")
        if reason := tasks_reason(arguments["tasks"]):
            raise ToolError(reason)
        others.first_started_at()  # results of earlier plans are not needed for a repetition any more
        turn = turn_of(session.history)
        before = tasks_in(context.state, turn)
        done = list(before)
        for task in read_tasks(arguments["tasks"], before):
            context.progress(len(done) - len(before), len(arguments["tasks"]), task.description)
            done.append(await _run_task(task, done, others))
        context.state.dispatch(tasks_change(turn, done), once=context.idempotency_key)
        return tasks_for_model(done[len(before) :], len(before))


async def _run_task(task: PlannedTask, before: Sequence[PlannedTask], others: NestedToolCalls) -> PlannedTask:
    """Run a planned task with the tool that it names, and return the task with its outcome.

    `before` are the earlier tasks, to whose results the arguments may refer. A task without a tool stays pending. If an earlier
    task has no result that this task needs, this task gets the status of the earlier task.
    """
    references = References(before)
    arguments = references.resolve(dict(task.tool_args))
    if not task.tool_name:
        return attrs.evolve(task, failure_reason="the task has no tool: do it in the next decisions")
    if references.unmet:
        needed = references.unmet[0]
        why = f"the task needs the result of {needed.id}, which is {needed.status}"
        return attrs.evolve(task, status=needed.status, failure_reason=why)
    if task.tool_name not in others.names():
        return attrs.evolve(task, status="failed", failure_reason=f"unknown tool {task.tool_name!r}")
    return await _call_with_retries(task, arguments, others)


async def _call_with_retries(
    task: PlannedTask, arguments: Mapping[str, Any], others: NestedToolCalls
) -> PlannedTask:
    """Call the tool of a task until the call succeeds, or `max_retries` retries have failed.

    Return the task with its outcome.

    A reached limit fails the task. A call whose effect is unknown is not repeated.
    """
    failed = attrs.evolve(task, status="failed")
    for attempts in range(1, task.max_retries + 2):
        try:
            result = await others.call(task.tool_name, arguments)
        except LimitReached as error:
            return attrs.evolve(failed, failure_reason=str(error))
        if result.error is None:
            return attrs.evolve(
                task, status="completed", attempts=attempts, result=loads_or_text(result.content)
            )
        failed = attrs.evolve(failed, attempts=attempts, failure_reason=result.error)
        if result.status != "error":  # any other status: the task may have had an effect
            break
    return failed
