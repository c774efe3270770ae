"""`GoalResult`: the outcome of one goal with all results. `RunMetrics`: duration, calls and cost of the work on the goal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic

import attrs

from actgent.errors import AnswerError, DeadlineExceeded, Interrupted, LimitReached, Stopped, Suspended
from actgent.messages import NO_USAGE, DataT_co, Message, Reply, ToolResult, Usage
from actgent.protocols.conversation_rendering import conversation_text
from actgent.protocols.goal.goal_progress import (
    WHOLE,
    Progress,
    Status,
    goal_view,
    progress_at_end,
    results_of,
)
from actgent.protocols.goal.goal_protocol import closing_text
from actgent.protocols.goal.task_plan import RUN_TASKS, PlannedTask, tasks_in
from actgent.support.dict_serialization import Serializable
from actgent.support.user_code_calls import explained_text
from actgent.tools.outputs.oversized_state_values import copy_state


@attrs.frozen(kw_only=True)
class ToolMetrics(Serializable):
    """Number of calls of one tool, and of its successful calls."""

    calls: int
    """Number of calls of the tool that returned a result, errors included."""
    successful_calls: int
    """Number of calls of the tool without an error."""

    @property
    def failed_calls(self) -> int:
        """Number of calls of the tool with an error."""
        return self.calls - self.successful_calls

    @property
    def success_rate(self) -> float:
        """Fraction of the calls that succeeded, from 0 to 1."""
        return self.successful_calls / self.calls


@attrs.frozen(kw_only=True)
class RunMetrics(Serializable):
    """Duration, tokens, model calls and tool calls of the work on one goal."""

    seconds: float
    """Seconds from the goal's message to the result."""
    model_calls: int
    """Number of model calls of the run in its own session, without child sessions."""
    tools: Mapping[str, ToolMetrics]
    """Metrics of each called tool, by tool name."""
    usage: Usage
    """Tokens and cost of the run, child sessions included."""

    @property
    def tool_calls(self) -> int:
        """Number of calls of all tools."""
        return sum(each.calls for each in self.tools.values())

    @property
    def success_rate(self) -> float | None:
        """Fraction of all tool calls that succeeded, from 0 to 1; None if there were none."""
        calls = self.tool_calls
        return sum(each.successful_calls for each in self.tools.values()) / calls if calls else None

    @property
    def tokens(self) -> int:
        """Number of input and output tokens of the run."""
        return self.usage.input_tokens + self.usage.output_tokens

    @property
    def cost(self) -> float | None:
        """Cost of the run in US dollars; None if the price of a model is unknown."""
        return self.usage.cost


def metrics_of(
    results: Iterable[ToolResult],
    tasks: Iterable[PlannedTask],
    usage: Usage,
    *,
    seconds: float,
    model_calls: int,
) -> RunMetrics:
    """Compute the metrics of a goal from its tool results and the attempts of its tasks.

    A call of the tool `run_tasks` is not counted. The calls that its tasks make are counted for the called tools.
    """
    counts: dict[str, list[bool]] = {}
    for task in tasks:
        failed = task.attempts - (task.status == "completed")
        counts.setdefault(task.tool_name, []).extend([False] * failed + [True] * (task.attempts - failed))
    for result in results:
        if result.tool_name != RUN_TASKS:
            counts.setdefault(result.tool_name, []).append(result.error is None)
    tools = {
        name: ToolMetrics(calls=len(good), successful_calls=sum(good))
        for name, good in counts.items()
        if good
    }
    return RunMetrics(seconds=seconds, model_calls=model_calls, tools=tools, usage=usage.total)


_BOUNDS = (LimitReached, DeadlineExceeded, Interrupted, Stopped)
"""Errors that end a goal early although neither the model nor a tool failed."""


@attrs.frozen(kw_only=True)
class GoalResult(Serializable, Generic[DataT_co]):
    """Outcome of a goal, achieved or not, with all results found. `str(result)` is its text."""

    data: DataT_co | None
    """The answer as a value of the declared output type, or as text without one; None if the goal ended without an answer."""
    text: str
    """The answer as text."""
    status: Status
    """Final status of the goal. `achieved`: an evaluation found the goal achieved.
    `incomplete`: a limit was reached, or there was no progress. `error`: the model failed, or its answers were malformed.
    `suspended`: an approval is missing. All other values mean that the goal was completed in another way.
    """
    achieved: bool
    """True if an evaluation found the goal achieved."""
    error: str | None
    """Reason why the goal was not achieved, as text; None if it was achieved."""
    failure: Exception | None = None
    """The exception that ended the turn: a model error, malformed answers, a limit, a timeout; None if none was raised."""
    evaluation: Mapping[str, Any] | None
    """Last evaluation of the model: achieved, feedback, missing_items, suggestions. None if no evaluation was made."""
    raw_data: Mapping[str, Any]
    """Values that tools and custom actions wrote into the state."""
    tool_results: tuple[ToolResult, ...]
    """Results of all tool calls, in the order of the calls."""
    used_tools: tuple[str, ...]
    """Names of the tools that were called."""
    iterations: int
    """Number of model calls made, limited by `max_iterations`."""
    max_iterations: int
    """Maximum number of model calls, from the argument `max_iterations`."""
    history: tuple[Message, ...]
    """All messages of the session, oldest first."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the session; `usage.total` includes the sessions of other agents that worked on the goal."""

    tasks: tuple[PlannedTask, ...] = ()
    """Tasks of all plans, in order. Empty unless the agent has `tasks=True`."""
    metrics: RunMetrics | None = None
    """Seconds, calls, successes by tool, tokens and cost of the run."""

    def __str__(self) -> str:
        return self.text

    @property
    def conversation(self) -> str:
        """The history as readable text."""
        return conversation_text(self.history)


def goal_result(
    goal: str,
    *,
    turn: str,
    state: Mapping[str, Any],
    history: Sequence[Message],
    usage: Usage,
    reply: Reply[Any] | None,
    failure: Exception | None,
    max_iterations: int,
    seconds: float,
    wants_text: bool,
    handler: Callable[[Mapping[str, Any]], Any] | None = None,
) -> GoalResult[Any]:
    """Build the result of a turn from the state and history of its session.

    Args:
        goal: Goal as the user wrote it.
        turn: Id of the turn, which is the id of the message with the goal.
        state: State of the session after the turn.
        history: Messages of the session after the turn.
        usage: Tokens and cost of the goal.
        reply: Reply of the turn; None if the turn failed.
        failure: Error that ended the turn; None if there is a reply.
        max_iterations: Maximum number of model calls.
        seconds: Seconds from the goal's message to its outcome.
        wants_text: True if no output type is declared, so the text of a completed goal is its data.
        handler: Output handler, called with the state and `goal`, `results` and `used_tools`; None if there is none.
    """
    progress = progress_at_end(state, history, turn=turn, goal=goal, any_turn=reply is not None)
    if failure is not None:
        progress = _failed_progress(progress, failure, max_iterations)
    text = closing_text(progress, history) if reply is None else reply.text
    data = None if reply is None else reply.data
    if wants_text and progress.status not in ("incomplete", "error", "suspended"):
        data = text
    if handler is not None:
        data, progress = _apply_handler(handler, state, history, progress)
    results, tasks = tuple(results_of(progress, history)), tuple(tasks_in(state, progress.turn))
    return GoalResult(
        data=data,
        text=text,
        status=progress.status,
        achieved=progress.achieved,
        error=progress.error,
        failure=failure,
        evaluation=progress.evaluation,
        raw_data=copy_state(state).load_all(),
        tool_results=results,
        used_tools=tuple(progress.used_tools),
        iterations=progress.iterations,
        max_iterations=max_iterations,
        history=tuple(history),
        usage=usage,
        tasks=tasks,
        metrics=metrics_of(results, tasks, usage, seconds=seconds, model_calls=progress.iterations),
    )


def _apply_handler(
    handler: Callable[[Mapping[str, Any]], Any],
    state: Mapping[str, Any],
    history: Sequence[Message],
    progress: Progress,
) -> tuple[Any, Progress]:
    """Call an output handler with the state and the goal's results, and return its value and the unchanged progress.

    If the handler raises, return None and the progress with the error.
    """
    try:
        return handler(copy_state(state, goal_view(state, history))), progress
    except Exception as error:  # noqa: BLE001 - calls a function of the program
        words = f"the output handler failed: {type(error).__name__}: {explained_text(error)}"
        is_open = progress.status not in WHOLE
        status: Status = progress.status if is_open else "completed_without_formatting"
        return None, attrs.evolve(progress, status=status, error=progress.error or words)


def _failed_progress(progress: Progress, failure: Exception, max_iterations: int) -> Progress:
    """Return the progress of a goal whose turn ended with an error before the protocol stored a final status.

    A reached limit gives the status `incomplete`, an open approval `suspended`, any other failure `error`.
    """
    status: Status = "incomplete" if isinstance(failure, _BOUNDS) else "error"
    if isinstance(failure, Suspended):
        status = "suspended"
    calls = progress.calls
    if isinstance(failure, LimitReached):
        calls = min(max_iterations, int(failure.used.get("model_calls", calls)))
    return attrs.evolve(progress, status=status, error=_error_text(failure), calls=calls)


def _error_text(failure: Exception) -> str:
    text = explained_text(failure) or type(failure).__name__
    return f"the model gave no usable answer: {text}" if isinstance(failure, AnswerError) else text
