"""Metrics of the work on a goal, and the narration of a goal agent."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from actgent.agents.session import Session
from actgent.agents.verbose_output import MAX_VALUE_CHARS, Narration, value_line
from actgent.errors.text_escaping import counted, shown
from actgent.messages import ToolResult, Usage
from actgent.protocols.goal import RUN_TASKS, PlannedTask, Progress, progress_in
from actgent.state.session_state import State
from actgent.support.serializable import Serializable


@attrs.frozen(kw_only=True)
class ToolMetrics(Serializable):
    """Metrics of one tool."""

    calls: int
    """Number of calls with a result."""
    successful_calls: int
    """Number of calls without an error."""

    @property
    def failed_calls(self) -> int:
        """Number of calls with an error."""
        return self.calls - self.successful_calls

    @property
    def success_rate(self) -> float:
        """Fraction of the calls that succeeded, from 0 to 1."""
        return self.successful_calls / self.calls


@attrs.frozen(kw_only=True)
class RunMetrics(Serializable):
    """Metrics of the work on one goal."""

    seconds: float
    """Seconds from the goal's message to the result."""
    model_calls: int
    """Number of model calls of the goal's session."""
    tools: Mapping[str, ToolMetrics]
    """Metrics by tool name."""
    usage: Usage
    """Tokens and cost, child sessions included."""

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
        """Number of input and output tokens."""
        return self.usage.input_tokens + self.usage.output_tokens

    @property
    def cost(self) -> float | None:
        """Cost in US dollars; None if the price of a model is unknown."""
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

    A call of `run_tasks` is not counted itself; the calls of its tasks are counted for the tools that they
    called.
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


# --- while it works --------------------------------------------------------------------------


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
