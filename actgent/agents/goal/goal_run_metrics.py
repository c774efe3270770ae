"""`RunMetrics`: duration, model calls, tokens and tool calls of one run of a goal agent."""

from collections.abc import Iterable, Mapping

import attrs

from actgent.messages import ToolResult, Usage
from actgent.protocols.goal import RUN_TASKS, PlannedTask
from actgent.support.serializable import Serializable


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
    """Number of model calls of the goal's session."""
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
