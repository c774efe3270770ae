"""`Recording`: replays a recorded session. The agent's code runs; model answers and tool results come from the journal."""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Self

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.agent_construction import AgentDeps
from actgent.agents.session import session_of_context
from actgent.errors import ConfigurationError, Interrupted, ModelError, NotRunning
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import (
    ActionFailureRecord,
    AgentMessageRecord,
    CallsStartedRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    Record,
    StateChangeRecord,
    StateRollbackRecord,
)
from actgent.llm.model_interface import LLM, ModelResponse
from actgent.llm.scripted_model import ScriptedLLM
from actgent.messages import Message, Reply, Route, ToolCall, ToolResult
from actgent.runtime.runtime import Runtime, open_runtime
from actgent.sessions.restore.record_replayer import creation_record_of
from actgent.sessions.session_context import Turn
from actgent.state.session_state import StateRecord, Store
from actgent.tools.tool_execution import Batch
from actgent.tools.tool_registry import ToolRegistry
from actgent.turns.agent_core import AgentCore
from actgent.turns.calls.tool_calls import ToolCaller
from actgent.turns.failure_logging import FailureLogger
from actgent.turns.turn_hooks import Hooks

from .recorded_summaries import RecordedFitter, RecordedSummaries, without_new_summaries
from .replay_diff import Difference, State, first_difference


@attrs.frozen
class Recording:
    """Journal records of one session, for replays and tests."""

    session_id: str
    """Id of the session."""
    agent: str
    """Name of the agent."""
    records: tuple[Record, ...]
    """All journal records of the session, oldest first."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Messages to the agent, in the order of their turns."""
        accepted = {r.message.id: r.message for r in self.records if isinstance(r, MessageAcceptedRecord)}
        return tuple(accepted[r.message_id] for r in self.records if isinstance(r, MessageAppendedRecord))

    @property
    def model_answers(self) -> tuple[AgentMessageRecord, ...]:
        """Records with an answer of a model, oldest first."""
        return tuple(each for each in self.records if isinstance(each, AgentMessageRecord) and each.stop)

    def model(self) -> ScriptedLLM:
        """Return a model that gives the recorded answers and errors, call by call."""
        ended = Interrupted("the recording ends here")
        return ScriptedLLM([*script_of(self.records), ended], name="recorded", keep=None)

    async def compare(
        self, agent: Agent, *, run_tools: bool = False, prompts: bool = True
    ) -> Difference | None:
        """Replay the recorded messages with a copy of an agent. Return the first difference; None if there is no difference.

        The copy uses `model()`, has no routes, handlers or hooks, and its tools return the recorded results unless `run_tools`
        is True. Options of single turns (`run(..., output=)`) and the session's system prompt are those of the recording.
        `prompts=False` ignores changes of the system prompt and of the tools.
        """
        replayed, states = await replay_with(self, agent, self.model(), run_tools=run_tools)
        looking = partial(first_difference, self.records, replayed, states, prompts=prompts)
        return await trio.to_thread.run_sync(looking, abandon_on_cancel=True)


async def compare_session(
    runtime: Runtime, session_id: str, *, agent: str | None = None, to: int | None = None
) -> Difference | None:
    """Replay a session with the current code of its running agent. Return the first difference; None if there is none.

    `to` is the number of the last record; None replays all records. Only the agent's code runs, in a copy of the running
    agent: no model is called, and tools return their recorded results.

    Raises:
        ConfigurationError: The runtime has no journal, the record does not exist, or several agents have a session with this
            id.
        NotRunning: The agent is not running in this process.
        SessionNotFound: The journal has no such session.
        JournalError: The journal cannot be read.
    """
    recording, found = await recorded(runtime, session_id, agent=agent, to=to)
    return await recording.compare(found)


async def recorded(
    runtime: Runtime, session_id: str, *, agent: str | None = None, to: int | None = None
) -> tuple[Recording, Agent]:
    """Return a session of a runtime as a recording, and its running agent.

    Raises:
        ConfigurationError: The runtime has no journal, the record does not exist, or several agents have a session with this
            id.
        NotRunning: The agent is not running in this process.
        SessionNotFound: The journal has no such session.
        JournalError: The journal cannot be read.
    """
    key, records = await runtime.read_session(session_id, agent=agent, to=to)
    found = runtime.agents.agent(key.agent)
    if not isinstance(found, Agent):
        raise NotRunning(key.agent)
    return Recording(session_id, key.agent, records), found


# --- the script ---------------------------------------------------------------------------

_CALL_ERRORS: Mapping[str | None, Exception] = {
    "model": ModelError("the recorded call failed"),
    "interrupted": Interrupted("the recorded call was interrupted"),
    "stopped": Interrupted("the recorded call was stopped"),
}
"""Error of a model call without a recorded answer, by the failure kind that ended its turn."""


def script_of(records: Sequence[Record]) -> list[ModelResponse | Exception]:
    """Return the recorded answer or error of each model call of a session, in order."""
    return list(_script(records))


def _script(records: Sequence[Record]) -> Iterator[ModelResponse | Exception]:
    is_due = False
    for record in records:
        match record:
            case MessageAppendedRecord():
                is_due = True
            case AgentMessageRecord() if record.stop:
                is_due = False
                yield ModelResponse(
                    parts=record.message.parts,
                    stop=record.stop,  # type: ignore[arg-type]
                    usage=record.usage,
                    model=record.model,
                )
            case AgentMessageRecord():
                is_due = True
            case MessageEndRecord() if is_due and record.failed in _CALL_ERRORS:
                yield _CALL_ERRORS[record.failed]


# --- the replay ---------------------------------------------------------------------------


async def replay_with(
    recording: Recording,
    agent: Agent,
    model: LLM | Mapping[str, LLM],
    *,
    run_tools: bool,
    system: str | None = None,
    set_up: Callable[[AgentCore], object] | None = None,
) -> tuple[Sequence[Record], Sequence[State]]:
    """Replay a recording with a model, and return the new records and the session state after each turn.

    Summaries and the shortening of requests are repeated as recorded, without model calls.

    Args:
        recording: The session to replay.
        agent: Agent whose code runs, in a copy.
        model: Model of all calls, or models by role.
        run_tools: True runs the tools; False returns the recorded results.
        system: System prompt of the session; None uses the session's recorded system prompt, if it has one.
        set_up: Called with the message pipeline of the agent's copy before the first message; None calls nothing.
    """
    states: list[State] = []
    opened = creation_record_of(recording.records)
    if opened is None:
        raise ConfigurationError(
            f"session {recording.session_id} cannot be replayed: its first record is missing"
        )
    actor = _copy_for_replay(agent, model)
    if not run_tools:
        vars(actor)["_deps"] = AgentDeps(agent.name, None, ToolRegistry())
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await runtime.start(actor)
        opener = runtime.agents.opener(actor.name)
        running = opener.running
        running.core.router = _Router(actor).route
        running.core.models.fitter = RecordedFitter.of(recording.records)
        running.core.bring_summary = RecordedSummaries.of(recording.records).bring
        if not run_tools:
            running.core.calling = RecordedToolCaller.of(running.core.calling, recording.records)
        if set_up is not None:
            set_up(running.core)
        own = opened.system if system is None else system
        context = await opener.create(
            opened.owner, session_id=recording.session_id, system=own
        )  # the recorded id may exceed the limit for new ids
        session = session_of_context(context)
        session.on_exception(_ignore)
        for changes, accepted in _processed_messages(recording.records):
            restore_changes(session.state, changes)
            await opener.admission.accept(context, accepted.message, options=accepted.options)
            await session.wait_idle()
            states.append(dict(session.state))
        return await journal.load(recording.session_id), states


def _ignore(_failure: object) -> None:
    """Ignore a failure, because the recording contains it as well."""


def _processed_messages(
    records: Sequence[Record],
) -> Iterator[tuple[Sequence[StateRecord], MessageAcceptedRecord]]:
    """Yield each message whose turn was started, after the state changes that were made since the previous turn."""
    accepted = {each.message.id: each for each in records if isinstance(each, MessageAcceptedRecord)}
    changes, has_ended = list[StateRecord](), True
    for record in records:
        match record:
            case MessageAppendedRecord(message_id=message_id):
                yield changes, accepted[message_id]
                changes, has_ended = [], False
            case MessageEndRecord():
                has_ended = True
            case StateChangeRecord() | ActionFailureRecord() | StateRollbackRecord() if has_ended:
                changes.append(record)


def models_of(agent: Agent) -> Mapping[str, LLM]:
    """Return the model clients of an agent by role. They are created if the agent is stopped."""
    return agent._models.open()  # noqa: SLF001


def _copy_for_replay(agent: Agent, model: LLM | Mapping[str, LLM]) -> Agent:
    """Return a copy of an agent for a replay: with the model `model`, and without hooks, companions and new summaries.

    The copy of a running agent uses the tools that are connected to the running agent.
    """
    actor = copy.copy(agent)
    models = actor._models  # noqa: SLF001
    clients = dict.fromkeys(models.named, model) if isinstance(model, LLM) else dict(model)
    changes: dict[str, Any] = {
        "_models": attrs.evolve(models, clients=clients),
        "_host": None,
        "_opener": None,
        "_block": None,
        "_on_session": [],
        "_hooks": Hooks(),
        "_companions": lambda: (),
        "_failure_logger": FailureLogger(agent.name),
    }
    changes["_memory"] = without_new_summaries(vars(agent)["_memory"])  # a summary would call a model
    if vars(agent)["_host"] is not None:
        changes["open_toolsets"] = partial(_set_ready, actor)
    vars(actor).update(changes)
    return actor


async def _set_ready(actor: Agent, _runtime: Runtime) -> None:
    """Mark the copied agent as ready to process messages. The copy uses this function in place of `open_toolsets`.

    The copy connects no toolsets, because it uses the connected tools of the running agent.
    """
    await trio.lowlevel.checkpoint()
    vars(actor)["_opener"].running.set_toolsets_ready()


@attrs.frozen
class _Router:
    """Router that returns an empty reply, because the records of the session have no answers of other agents."""

    actor: Agent

    async def route(self, _turn: Turn, route: Route) -> Reply | None:
        if route.action in getattr(self.actor, "routes", {}):
            return Reply(id=f"{route.id}/reply", text="")
        return None


@attrs.frozen
class RecordedResults:
    """Recorded results of the tool calls in one model answer, and the state changes of these tools."""

    step: int
    """Number of the record with the results, from 1."""
    record: AgentMessageRecord
    """Journal record with the results."""
    changes: Sequence[StateRecord] = ()
    """Records of the state changes that the tools made, oldest first."""


def recorded_results(records: Sequence[Record]) -> Sequence[RecordedResults]:
    """Return the results of all tool calls of a session, one item for each answer with calls."""
    found: list[RecordedResults] = []
    changes: list[StateRecord] = []
    has_started = False
    for step, record in enumerate(records, 1):
        match record:
            case CallsStartedRecord():
                has_started = True
            case StateChangeRecord() | ActionFailureRecord() | StateRollbackRecord() if has_started:
                changes.append(record)
            case AgentMessageRecord(message=message) if message.tool_results:
                found.append(RecordedResults(step, record, changes))
                changes, has_started = [], False
    return found


@attrs.define(eq=False, kw_only=True)
class RecordedToolCaller(ToolCaller):
    """Tool caller that runs no tools and sets their recorded results instead."""

    recorded: deque[RecordedResults]

    @classmethod
    def of(cls, calling: ToolCaller, records: Sequence[Record], **options: Any) -> Self:
        """Return a tool caller with the settings of `calling` that returns the results in `records`."""
        fields = {name: getattr(calling, name) for name in attrs.fields_dict(ToolCaller)}
        return cls(**fields, recorded=deque(recorded_results(records)), **options)

    def _batch(self, turn: Turn, calls: Sequence[ToolCall]) -> Batch:
        batch = super()._batch(turn, calls)
        results, changes = self.find_results(calls)
        for index, (call, result) in enumerate(zip(calls, results, strict=True)):
            batch.set_result(index, result_for(call, result))
        restore_changes(turn.session.state, changes)
        return batch

    def find_results(
        self, calls: Sequence[ToolCall]
    ) -> tuple[Sequence[ToolResult | None], Sequence[StateRecord]]:
        """Return the recorded results of the calls in the next model answer, and the state changes of their tools.

        Each call of this method takes the results of the next recorded answer. The result of a tool call is None if the
        recording has no result for it, or if the recorded result belongs to another tool.
        """
        if not self.recorded:
            return [None] * len(calls), ()
        recorded = self.recorded.popleft()
        results = recorded.record.message.tool_results
        found = [
            result if result is not None and result.tool_name == call.name else None
            for call, result in zip_longest(calls, results[: len(calls)])
        ]
        return found, recorded.changes


def result_for(call: ToolCall, recorded: ToolResult | None) -> ToolResult:
    """Return the recorded result with the id of this call; a result with an error if `recorded` is None."""
    if recorded is not None:
        return attrs.evolve(recorded, id=f"{call.id}/result", call_id=call.id, native=call.native)
    error = "the recording has no result of this call"
    return ToolResult(
        id=f"{call.id}/result",
        call_id=call.id,
        tool_name=call.name,
        status="error",
        error=error,
        native=call.native,
    )


def restore_changes(store: Store, changes: Sequence[StateRecord]) -> None:
    """Apply recorded state changes of tools and programs, which do not run in a replay."""
    for change in changes:
        store.restore(change)
