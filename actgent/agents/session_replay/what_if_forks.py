"""Forks of a recorded session: a copy continues from a decision with another model answer, and with recorded tool results."""

from collections import deque
from collections.abc import Mapping, Sequence

import attrs

from actgent.agents.agent import Agent
from actgent.errors import Interrupted
from actgent.journal.record_types import (
    AgentMessageRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    OutcomeRecord,
    Record,
)
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText
from actgent.llm.scripted_model import ScriptedLLM
from actgent.messages import NO_USAGE, ToolCall, ToolResult, Usage
from actgent.state.session_state import StateRecord
from actgent.turns.agent_core import AgentCore
from actgent.turns.calls.tool_calls import ToolCaller

from .recorded_decisions import RecordedDecision, call_key
from .session_replayer import (
    RecordedResults,
    RecordedToolCaller,
    Recording,
    recorded_results,
    replay_with,
    script_of,
)

MAX_FORK_CALLS = 20
"""Maximum number of model calls of one fork."""


@attrs.frozen(kw_only=True)
class ForkEnd:
    """Outcome of a fork: a copy of a recorded session that continues from a decision with another model answer."""

    calls: tuple[ToolCall, ...]
    """Tool calls of the fork after the other answer. Their results come from the recording."""
    unrecorded: tuple[ToolCall, ...] = ()
    """Tool calls without a recorded result. They did not run, and the fork ended at them."""
    text: str = ""
    """Text of the reply to the user; empty if the fork ended without a reply."""
    error: str = ""
    """Reason why the fork ended without a reply and without unrecorded calls; empty otherwise."""
    model_calls: int = 0
    """Number of model calls that the fork made after the other answer."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the model calls of the fork."""


async def follow_fork(
    recording: Recording,
    agent: Agent,
    decision: RecordedDecision,
    answer: ModelResponse,
    models: Mapping[str, LLM],
    *,
    system: str | None = None,
) -> ForkEnd:
    """Continue a session from a decision with another answer of the model.

    The function stops at the end of the turn, or at the first tool call that has no recorded result. No tool runs. A call
    returns the recorded result of a call with the same name and arguments. For a tool with the effect `pure`, the recorded
    call may be anywhere in the session. For other tools, it must follow the decision in the same turn, and each result is used
    once.

    Args:
        recording: Records of the session.
        agent: Agent whose code runs, in a copy.
        decision: Recorded decision at which the session is forked.
        answer: Answer in place of the recorded one.
        models: Models that continue the fork, by role.
        system: System prompt, as for `find_decisions`.
    """
    before = attrs.evolve(recording, records=recording.records[: decision.step - 1])
    fork = _Fork(deque([*script_of(before.records), answer]))

    def set_up(core: AgentCore) -> None:
        results = _RecordedCalls.of(recording.records, decision.step, core.calling)
        core.calling = _ForkedToolCaller.of(core.calling, before.records, fork=fork, results=results)

    clients: dict[str, LLM] = {role: _ForkedModel(fork, model) for role, model in models.items()}
    replayed, _ = await replay_with(before, agent, clients, run_tools=False, system=system, set_up=set_up)
    return fork.end(replayed)


@attrs.define(eq=False)
class _Fork:
    """State of one fork while its replay runs."""

    script: deque[ModelResponse | Exception]
    """Remaining outcomes of the model calls up to the fork: the recorded ones, then the other answer."""
    calls: list[ToolCall] = attrs.field(factory=list)
    unrecorded: list[ToolCall] = attrs.field(factory=list)
    model_calls: int = 0
    usage: Usage = NO_USAGE

    def end(self, replayed: Sequence[Record]) -> ForkEnd:
        """Return the outcome of the fork from the records of its replay.

        If a call had no recorded result, the outcome has neither text nor error.
        """
        failed = next((each for each in reversed(replayed) if isinstance(each, MessageEndRecord)), None)
        error = text = ""
        if failed is not None and failed.failed is not None and not self.unrecorded:
            error = f"{failed.failed}: {failed.error}" if failed.error else failed.failed
        elif not self.unrecorded:
            text = _last_reply(replayed)
        return ForkEnd(
            calls=tuple(self.calls),
            unrecorded=tuple(self.unrecorded),
            text=text,
            error=error,
            model_calls=self.model_calls,
            usage=self.usage,
        )


def _last_reply(records: Sequence[Record]) -> str:
    """Return the text of the last reply in a replay. If no reply was recorded, return the last model answer; else ""."""
    for record in reversed(records):
        if isinstance(record, OutcomeRecord) and record.kind == "reply":
            return record.text or ""
        if isinstance(record, AgentMessageRecord) and record.stop:
            return record.message.text
    return ""


class _ForkedModel(LLM):
    """Model client that returns the recorded answers up to the fork, and then calls another model."""

    def __init__(self, fork: _Fork, model: LLM) -> None:
        self._fork, self._model = fork, model
        self.name, self.context_window, self.max_tokens = model.name, model.context_window, model.max_tokens

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        fork = self._fork
        if fork.script:
            return await ScriptedLLM([fork.script.popleft()]).complete(chat)
        if fork.unrecorded or fork.model_calls >= MAX_FORK_CALLS:
            raise Interrupted("the fork ends here" if fork.unrecorded else f"{MAX_FORK_CALLS} model calls")
        fork.model_calls += 1
        answer = await self._model.complete(chat)
        fork.usage += answer.usage
        return answer


_CallKey = tuple[str, str]


@attrs.define(eq=False)
class _RecordedCalls:
    """Recorded tool results for one fork, found by the tool's name and arguments."""

    unused: Mapping[_CallKey, deque[tuple[ToolResult, RecordedResults]]]
    """Unused recorded results of the forked turn after the decision, by tool name and arguments. Each result is used once."""
    newest: Mapping[_CallKey, ToolResult]
    """Newest recorded result of the whole session for each call, by tool name and arguments.
    Only tools with the effect `pure` use it.
    """
    _applied: set[int] = attrs.field(factory=set)
    """Numbers of the result records whose state changes were applied already."""

    @classmethod
    def of(cls, records: Sequence[Record], step: int, calling: ToolCaller) -> "_RecordedCalls":
        """Index the recorded tool results of a session for a fork after record number `step`.

        `calling` resolves the names of the called tools.
        """
        keys: dict[str, _CallKey] = {}
        unused: dict[_CallKey, deque[tuple[ToolResult, RecordedResults]]] = {}
        newest: dict[_CallKey, ToolResult] = {}
        for record in records:
            if isinstance(record, AgentMessageRecord):
                for call in (*record.message.tool_calls, *record.with_text_calls().text_calls):
                    keys[call.id] = call_key(calling.registry.resolve(call))
        end = _end_of_turn(records, step)
        for recorded in recorded_results(records):
            for result in recorded.record.message.tool_results:
                if (key := keys.get(result.call_id)) is not None:
                    newest[key] = result
                    if step < recorded.step < end:
                        unused.setdefault(key, deque()).append((result, recorded))
        return cls(unused, newest)

    def use_result(self, call: ToolCall, *, is_pure: bool) -> tuple[ToolResult | None, Sequence[StateRecord]]:
        """Return the recorded result of a call, and the state changes to apply with it.

        Each result of the forked turn is used once. A tool with the effect `pure` (`is_pure`) may also use other results of
        the session. The result is None if the recording has no usable result.
        """
        key = call_key(call)
        if results := self.unused.get(key):
            result, recorded = results.popleft()
            is_first = recorded.step not in self._applied
            self._applied.add(recorded.step)
            return result, recorded.changes if is_first else ()
        return (self.newest.get(key) if is_pure else None), ()


def _end_of_turn(records: Sequence[Record], step: int) -> int:
    """Return the number of the first record of the next turn after record number `step`.

    Without a next turn, it is the number after the last record.
    """
    later = enumerate(records[step:], step + 1)
    return next((n for n, each in later if isinstance(each, MessageAppendedRecord)), len(records) + 1)


@attrs.define(eq=False, kw_only=True)
class _ForkedToolCaller(RecordedToolCaller):
    """Tool caller that runs no tools. It returns recorded results: in order before the fork, and those of equal calls after it."""

    fork: _Fork
    results: _RecordedCalls

    def find_results(
        self, calls: Sequence[ToolCall]
    ) -> tuple[Sequence[ToolResult | None], Sequence[StateRecord]]:
        if self.recorded:
            return super().find_results(calls)
        results, changes = list[ToolResult | None](), list[StateRecord]()
        for call in calls:
            tool = self.registry.get(call.name)
            result, changed = self.results.use_result(
                call, is_pure=tool is not None and tool.effect == "pure"
            )
            results.append(result)
            changes += changed
            self.fork.calls.append(call)
            if result is None:
                self.fork.unrecorded.append(call)
        return results, changes
