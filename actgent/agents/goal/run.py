"""`run_agent`, the shortest way to one goal, and what came of it."""

from collections.abc import Mapping
from typing import Any, Generic, overload

import attrs
import trio

from actgent.agents.options import FormT, Tools
from actgent.agents.session import Session
from actgent.control.limits import Limits
from actgent.errors import ConfigurationError, LimitReached
from actgent.llm.adapters import ModelLike
from actgent.llm.settings import LLMSettings
from actgent.messages import NO_USAGE, DataT_co, Message, Reply, ToolResult, Usage
from actgent.protocols.goal import (
    PlannedTask,
    Progress,
    Status,
    absorb,
    closing_words,
    progress_in,
    results_of,
    tasks_in,
)
from actgent.protocols.renderings import conversation_text
from actgent.support.deprecations import warn_deprecated
from actgent.tools.outputs.moved import whole_state

from .agent import GoalAgent
from .report import RunMetrics, Write, metrics_of


@attrs.frozen(kw_only=True)
class GoalResult(Generic[DataT_co]):
    """What came of a goal; `str(result)` is its text."""

    data: DataT_co | None
    """The value of the declared form, or else the text; None where there is no answer in the form that was asked."""
    text: str
    """The answer as text."""
    status: Status
    """How it ended; whether it was reached is `achieved`."""
    achieved: bool
    """True if an evaluation said so."""
    error: str | None
    """Why it ended otherwise than it should; None if it did not."""
    evaluation: Mapping[str, Any] | None
    """The last one: achieved, feedback, missing_items, suggestions."""
    raw_data: Mapping[str, Any]
    """Values that tools and custom actions wrote into the state."""
    tool_results: tuple[ToolResult, ...]
    """Of all calls, in the order in which they were made."""
    used_tools: tuple[str, ...]
    """Names of the tools that were called."""
    iterations: int
    """Model calls that it took, counted as `max_iterations` are."""
    max_iterations: int
    """The bound that it was given."""
    history: tuple[Message, ...]
    """All that was said in its session, oldest first."""
    usage: Usage = NO_USAGE
    """Of its session; `usage.total` is that with the sessions that worked for it."""

    tasks: tuple[PlannedTask, ...] = ()
    """Those of all plans, in their order, where plans are lists of tasks."""
    metrics: RunMetrics | None = None
    """What it took: seconds, calls, successes by tool, tokens and cost."""

    def __str__(self) -> str:
        return self.text

    @property
    def result(self) -> DataT_co | None:
        """The old name of `data`."""
        warn_deprecated("GoalResult.result")
        return self.data

    @property
    def conversation(self) -> str:
        """The history as readable text."""
        return conversation_text(self.history)


@overload
async def run_agent(
    goal: str,
    llm: ModelLike | LLMSettings | str,
    *,
    tools: Tools = (),
    max_iterations: int = 20,
    output: type[FormT],
    limits: Limits | None = None,
    deps: Any = None,
    models: Mapping[str, ModelLike | LLMSettings | str] | None = None,
    tasks: bool = False,
    verbose: bool | Write = False,
    owner: str = "user",
) -> GoalResult[FormT]: ...
@overload
async def run_agent(
    goal: str,
    llm: ModelLike | LLMSettings | str,
    *,
    tools: Tools = (),
    max_iterations: int = 20,
    output: None = None,
    limits: Limits | None = None,
    deps: Any = None,
    models: Mapping[str, ModelLike | LLMSettings | str] | None = None,
    tasks: bool = False,
    verbose: bool | Write = False,
    owner: str = "user",
) -> GoalResult[str]: ...
@overload
async def run_agent(
    goal: str,
    llm: ModelLike | LLMSettings | str,
    *,
    tools: Tools = (),
    max_iterations: int = 20,
    output: object,
    limits: Limits | None = None,
    deps: Any = None,
    models: Mapping[str, ModelLike | LLMSettings | str] | None = None,
    tasks: bool = False,
    verbose: bool | Write = False,
    owner: str = "user",
) -> GoalResult: ...
async def run_agent(
    goal: str,
    llm: ModelLike | LLMSettings | str,
    *,
    tools: Tools = (),
    max_iterations: int = 20,
    output: Any = None,
    limits: Limits | None = None,
    deps: Any = None,
    models: Mapping[str, ModelLike | LLMSettings | str] | None = None,
    tasks: bool = False,
    verbose: bool | Write = False,
    owner: str = "user",
) -> GoalResult[Any]:
    """Work towards a goal with one agent of its own, and return what came of it.

    `limits` bound the work as they bound a turn; at one of them the result is `incomplete`, with what was found so far.
    `models` are those of single roles, `tasks` has plans carried out at once, and `verbose` tells what goes on, as
    `GoalAgent` has them.
    `owner` is for whom it is done: whose quota pays, and whose answers a `Cached` model may give again.
    A goal that is not achieved is a result too, and says so: see `GoalResult.achieved` and `status`.

    Raises:
        ActgentError: the model failed, or gave no usable answer.
    """
    if not isinstance(goal, str):
        raise ConfigurationError(f"run_agent(goal, llm): the goal is a text, not {goal!r:.200}")
    agent = GoalAgent(
        "goal",
        llm=llm,
        tools=tools,
        max_iterations=max_iterations,
        output=output,
        limits=limits,
        deps=deps,
        models=models,
        tasks=tasks,
        verbose=verbose,
    )
    async with agent:
        begun = trio.current_time()
        session = await agent.create_session(owner)
        try:
            reply = await agent.run(goal, session=session)
        except LimitReached as error:
            progress = _cut(_progress(session), error, max_iterations)
            if agent.narration is not None:
                agent.narration.line(f"ended: incomplete ({progress.error})")
            reply = Reply(text=closing_words(progress, session.history))
        else:
            progress = _progress(session)
    wants_text = output is None and progress.status != "incomplete"
    data = reply.text if wants_text else reply.data
    seconds = trio.current_time() - begun
    return _goal_result(
        session, progress, text=reply.text, data=data, max_iterations=max_iterations, seconds=seconds
    )


def _progress(session: Session) -> Progress:
    """As it is at the end; native calls may have come after it was last written down."""
    progress = progress_in(session.state) or Progress(turn="", goal="", start=0, mark=0)
    absorb(progress, session.history, end=len(session.history))
    return progress


def _cut(progress: Progress, error: LimitReached, max_iterations: int) -> Progress:
    """Ended by a limit that no protocol can speak at."""
    calls = min(max_iterations, int(error.used.get("model_calls", progress.calls)))
    return attrs.evolve(progress, status="incomplete", error=str(error), calls=calls)


def _goal_result(
    session: Session, progress: Progress, *, text: str, data: Any, max_iterations: int, seconds: float
) -> GoalResult:
    history = session.history
    results, tasks = tuple(results_of(progress, history)), tuple(tasks_in(session.state, progress.turn))
    return GoalResult(
        data=data,
        text=text,
        status=progress.status,
        achieved=progress.achieved,
        error=progress.error,
        evaluation=progress.evaluation,
        raw_data=whole_state(session.state).whole(),
        tool_results=results,
        used_tools=tuple(progress.used_tools),
        iterations=progress.iterations,
        max_iterations=max_iterations,
        history=history,
        usage=session.usage,
        tasks=tasks,
        metrics=metrics_of(results, tasks, session.usage, seconds=seconds, model_calls=progress.iterations),
    )
