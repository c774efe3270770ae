"""What is told of the work towards a goal beside its result: figures, and what is decided, done and changed meanwhile."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.errors import ParseError
from actgent.errors.printable import counted, shown
from actgent.messages import Message, ToolResult, Usage
from actgent.protocols.goal import RUN_TASKS, PlannedTask, Progress, progress_in
from actgent.state.store import State
from actgent.support.serializable import Serializable
from actgent.support.strict_json import loads

Write = Callable[[str], object]
"""Takes one line."""
LINE = 300
"""Characters of a value in a line."""


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
class Narration:
    """Tells in lines what an agent is asked, decides and does, and what that changes in the state."""

    write: Write
    """Gets each line."""
    _begun: float = attrs.field(factory=time.monotonic)
    _later: dict[str, list[str]] = attrs.field(factory=dict)
    """By session, what a decision has changed that is not told yet: what was said is heard of when it is carried out."""

    def attach(self, agent: Agent[Any, Any]) -> None:
        """Tell of all sessions of an agent from now on."""
        agent.on_session(self._watch)
        agent.on_message(self._tell)

    def _watch(self, session: Session) -> None:
        known: dict[str, Any] = {}
        later, status = self._later.setdefault(session.id, []), ""

        def changed(state: State) -> None:
            nonlocal status
            for key in state:
                if not key.startswith("_") and (key not in known or known[key] != state[key]):
                    known[key] = state[key]
                    later.append(f"  state: {key} = {_value(known[key])}")
            progress = progress_in(state)
            if progress is not None and progress.status and progress.status != status:
                later.append(_end_of(progress))
            status = progress.status if progress else ""

        session.state.subscribe(changed)

    def _tell(self, message: Message) -> None:
        match message.sender.kind:
            case "assistant":
                self._tell_decision(message)
                self._flush(message.session_id)
            case "tool":
                for result in message.tool_results:
                    said = f"failed: {result.error}" if result.error is not None else result.content
                    self.line(f"  {result.tool_name}: {shown(said, LINE)}")
            case _:
                self._flush(message.session_id)
                self.line(f"goal: {shown(message.text, LINE)}")

    def _tell_decision(self, message: Message) -> None:
        for call in message.tool_calls:
            self.line(f"calls {call.name} {_value(call.arguments)}")
        if not message.text.strip():
            return
        try:
            decision = loads(message.text)
        except ParseError:
            decision = None
        if not isinstance(decision, dict) or not isinstance(decision.get("action"), str):
            self.line(f"says: {shown(message.text, LINE)}")
            return
        reasoning = decision.get("reasoning")
        why = f" because: {shown(reasoning, LINE)}" if isinstance(reasoning, str) and reasoning else ""
        self.line(f"decides: {shown(decision['action'])} {_value(decision.get('params', {}))}{why}")

    def _flush(self, session_id: str) -> None:
        later = self._later.get(session_id, [])
        for text in later:
            self.line(text)
        later.clear()

    def line(self, text: str) -> None:
        """Write a line, with the seconds since the beginning."""
        self.write(f"[{time.monotonic() - self._begun:7.2f} s] {text}")


def _end_of(progress: Progress) -> str:
    why = f" ({progress.error})" if progress.error else ""
    return f"ended: {progress.status}{why} after {counted(progress.iterations, 'model call')}"


def to_stderr(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{line}\n")


def _value(value: Any) -> str:
    try:
        return shown(json.dumps(value, ensure_ascii=False), LINE)
    except (TypeError, ValueError):
        return shown(repr(value), LINE)
