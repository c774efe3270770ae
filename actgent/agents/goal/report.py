"""What is told of the work towards a goal beside its result: figures, and what is decided, done and changed meanwhile."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from actgent.agents.narration import LINE, Narration, value_shown
from actgent.agents.session import Session
from actgent.errors.printable import counted, shown
from actgent.messages import ToolResult, Usage
from actgent.protocols.goal import RUN_TASKS, PlannedTask, Progress, progress_in
from actgent.state.store import State
from actgent.support.serializable import Serializable


@attrs.frozen(kw_only=True)
class ToolMetrics(Serializable):
    """The calls of one tool."""

    calls: int
    """All that were answered."""
    succeeded: int
    """Those without an error."""

    @property
    def failed(self) -> int:
        """Those with an error."""
        return self.calls - self.succeeded

    @property
    def success_rate(self) -> float:
        """The part that succeeded, from 0 to 1."""
        return self.succeeded / self.calls


@attrs.frozen(kw_only=True)
class RunMetrics(Serializable):
    """What the work towards a goal took."""

    seconds: float
    """From the first message to the result."""
    model_calls: int
    """Those of the goal itself."""
    tools: Mapping[str, ToolMetrics]
    """By the names of the tools that were called."""
    usage: Usage
    """Tokens and cost, with those of the sessions that worked for it."""

    @property
    def tool_calls(self) -> int:
        """Of all tools together."""
        return sum(each.calls for each in self.tools.values())

    @property
    def success_rate(self) -> float | None:
        """The part of the tool calls that succeeded, from 0 to 1; None if there were none."""
        calls = self.tool_calls
        return sum(each.succeeded for each in self.tools.values()) / calls if calls else None

    @property
    def tokens(self) -> int:
        """Of prompts and answers together."""
        return self.usage.input_tokens + self.usage.output_tokens

    @property
    def cost(self) -> float | None:
        """US dollars; None if the price of a model is not known."""
        return self.usage.cost


def metrics_of(
    results: Iterable[ToolResult],
    tasks: Iterable[PlannedTask],
    usage: Usage,
    *,
    seconds: float,
    model_calls: int,
) -> RunMetrics:
    """Count what a run took; the calls of tasks count for their tools."""
    counts: dict[str, list[bool]] = {}
    for task in tasks:
        failed = task.attempts - (task.status == "completed")
        counts.setdefault(task.tool_name, []).extend([False] * failed + [True] * (task.attempts - failed))
    for result in results:
        if result.tool_name != RUN_TASKS:
            counts.setdefault(result.tool_name, []).append(result.error is None)
    tools = {name: ToolMetrics(calls=len(good), succeeded=sum(good)) for name, good in counts.items() if good}
    return RunMetrics(seconds=seconds, model_calls=model_calls, tools=tools, usage=usage.total)


# --- while it works --------------------------------------------------------------------------


@attrs.define
class GoalNarration(Narration):
    """Narration of a goal agent. It has lines for decisions with their reasons, and a line when a goal ends."""

    _statuses: dict[str, str] = attrs.field(factory=dict)
    """Last status of the goal, by session id."""

    def name_of(self, kind: str) -> str:
        return "goal"

    def ends_of(self, session: Session[Any], state: State) -> Iterable[str]:
        progress = progress_in(state)
        status = progress.status if progress else ""
        if progress is not None and status and status != self._statuses.get(session.id):
            yield _end_of(progress)
        self._statuses[session.id] = status

    def decided(self, decision: Mapping[str, Any]) -> Iterator[str]:
        if not isinstance(decision.get("action"), str):
            return
        reasoning = decision.get("reasoning")
        why = f" because: {shown(reasoning, LINE)}" if isinstance(reasoning, str) and reasoning else ""
        yield f"decides: {shown(decision['action'])} {value_shown(decision.get('params', {}))}{why}"


def _end_of(progress: Progress) -> str:
    why = f" ({progress.error})" if progress.error else ""
    return f"ended: {progress.status}{why} after {counted(progress.iterations, 'model call')}"
