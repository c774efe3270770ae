"""Agents that work towards a goal on their own, and the shortest way to one answer from them."""

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Unpack, overload

import attrs

from actgent.control.limits import Limits
from actgent.errors import ConfigurationError, LimitReached
from actgent.llm.base import LLM
from actgent.llm.settings import LLMSettings
from actgent.messages import NO_USAGE, DataT_co, Message, Reply, ToolResult, Usage
from actgent.protocols.goal import (
    CustomAction,
    Goal,
    Progress,
    Status,
    absorb,
    closing_words,
    progress_in,
    results_of,
)
from actgent.protocols.renderings import conversation_text
from actgent.support.deprecations import warn_deprecated
from actgent.tools.base import DepsT, Tool
from actgent.tools.function import tool
from actgent.tools.state import StateTool, takes_state

from .agent import Agent
from .options import CommonOptions, FormT, ToolLike, Tools
from .session import Session


class GoalAgent(Agent["DataT_co | None", DepsT], Generic[DataT_co, DepsT]):
    """An agent that plans, acts, sums up and evaluates until a goal, which is the user's message, is achieved.

    Takes what `Agent` takes, and roles in `models`: planner, executor, summarizer, evaluator, finalizer.

    Args:
        tools: Tools, functions `(state, args)` that return `(key, value)`, or other functions.
        max_iterations: Model calls for one goal, not counting the summing up at the limit.
        actions: What the model may choose beside plan, execute, summarize and evaluate.

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
        **options: Unpack[CommonOptions[DepsT]],
    ) -> None:
        options.setdefault("protocol", Goal(max_iterations=max_iterations, actions=actions))
        super().__init__(name, output=output, tools=tools_from(tools), **options)


def tools_from(tools: Tools) -> list[Tool]:
    """Tools from tools and functions; those with the parameters `(state, args)` become `StateTool`s.

    Raises:
        ConfigurationError: a function that no tool can be made of.
    """
    if isinstance(tools, Mapping):
        return [_tool_from(made, name) for name, made in tools.items()]
    return [_tool_from(made, None) for made in tools]


def _tool_from(made: ToolLike, name: str | None) -> Tool:
    if isinstance(made, Tool):
        return made
    if not takes_state(made):
        return tool(name=name)(made)
    named = str(name or getattr(made, "__name__", type(made).__name__))
    description = (made.__doc__ or "").strip() or named.replace("_", " ").strip().capitalize()
    return StateTool(named, description, made)


# --- one goal --------------------------------------------------------------------------------


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
    llm: LLM | LLMSettings | str,
    *,
    tools: Tools = (),
    max_iterations: int = 20,
    output: type[FormT],
    limits: Limits | None = None,
    deps: Any = None,
) -> GoalResult[FormT]: ...
@overload
async def run_agent(
    goal: str,
    llm: LLM | LLMSettings | str,
    *,
    tools: Tools = (),
    max_iterations: int = 20,
    output: None = None,
    limits: Limits | None = None,
    deps: Any = None,
) -> GoalResult[str]: ...
@overload
async def run_agent(
    goal: str,
    llm: LLM | LLMSettings | str,
    *,
    tools: Tools = (),
    max_iterations: int = 20,
    output: object,
    limits: Limits | None = None,
    deps: Any = None,
) -> GoalResult: ...
async def run_agent(
    goal: str,
    llm: LLM | LLMSettings | str,
    *,
    tools: Tools = (),
    max_iterations: int = 20,
    output: Any = None,
    limits: Limits | None = None,
    deps: Any = None,
) -> GoalResult[Any]:
    """Work towards a goal with one agent of its own, and return what came of it.

    `limits` bound the work as they bound a turn; at one of them the result is `incomplete`, with what was found so far.
    A goal that is not achieved is a result too, and says so: see `GoalResult.achieved` and `status`.

    Raises:
        ActgentError: the model failed, or gave no usable answer.
    """
    if not isinstance(goal, str):
        raise ConfigurationError(f"run_agent(goal, llm): the goal is a text, not {goal!r:.200}")
    agent = GoalAgent(
        "goal", llm=llm, tools=tools, max_iterations=max_iterations, output=output, limits=limits, deps=deps
    )
    async with agent:
        session = await agent.create_session("user")
        try:
            reply = await agent.run(goal, session=session)
        except LimitReached as error:
            progress = _cut(_progress(session), error, max_iterations)
            reply = Reply(text=closing_words(progress, session.history))
        else:
            progress = _progress(session)
    wants_text = output is None and progress.status != "incomplete"
    data = reply.text if wants_text else reply.data
    return _goal_result(session, progress, text=reply.text, data=data, max_iterations=max_iterations)


def _progress(session: Session) -> Progress:
    """As it is at the end; native calls may have come after it was last written down."""
    progress = progress_in(session.state) or Progress(turn="", goal="", start=0, mark=0)
    absorb(progress, session.history, end=len(session.history))
    return progress


def _cut(progress: Progress, error: LimitReached, max_iterations: int) -> Progress:
    """Ended by a limit that no protocol can speak at."""
    iterations = min(max_iterations, int(error.used.get("model_calls", progress.iterations)))
    return attrs.evolve(progress, status="incomplete", error=str(error), iterations=iterations)


def _goal_result(
    session: Session, progress: Progress, *, text: str, data: Any, max_iterations: int
) -> GoalResult:
    return GoalResult(
        data=data,
        text=text,
        status=progress.status,
        achieved=progress.achieved,
        error=progress.error,
        evaluation=progress.evaluation,
        raw_data={key: value for key, value in session.state.items() if not key.startswith("_")},
        tool_results=tuple(results_of(progress, session.history)),
        used_tools=tuple(progress.used_tools),
        iterations=progress.iterations,
        max_iterations=max_iterations,
        history=session.history,
        usage=session.usage,
    )
