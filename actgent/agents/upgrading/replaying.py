"""A recorded session again: the model and the tools answer what the journal has, the agent's code runs."""

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.assembly import AgentDeps
from actgent.agents.session import face_of
from actgent.errors import ConfigurationError, Interrupted, ModelError, NotRunning
from actgent.journal.memory import MemoryJournal
from actgent.journal.records import (
    Accepted,
    ActionFailed,
    Appended,
    Changed,
    Ended,
    Record,
    RolledBack,
    Said,
    Started,
)
from actgent.llm.base import Answer
from actgent.llm.scripted import ScriptedLLM
from actgent.messages import Message, Reply, Route, ToolCall, ToolResult
from actgent.runtime.runtime import Runtime, open_runtime
from actgent.sessions.context import SessionContext
from actgent.sessions.restore import owner_of
from actgent.sessions.turn import Turn
from actgent.state.store import StateRecord, Store
from actgent.tools.execution import Batch
from actgent.tools.registry import ToolRegistry
from actgent.turns.calls.tool_calls import ToolCaller
from actgent.turns.hooks import Hooks
from actgent.turns.reports import Reports

from .comparing import Difference, State, first_difference
from .recorded_views import RecordedFitter, RecordedSummaries, without_summaries


@attrs.frozen
class Recording:
    """A session's records, as material for tests."""

    session_id: str
    agent: str
    records: tuple[Record, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages to the agent, in the order in which they were taken up."""
        accepted = {r.message.id: r.message for r in self.records if isinstance(r, Accepted)}
        return tuple(accepted[r.message_id] for r in self.records if isinstance(r, Appended))

    def model(self) -> ScriptedLLM:
        """A model that answers what the recorded one did, call by call, and fails where that one failed."""
        ended = Interrupted("the recording ends here")
        return ScriptedLLM([*script_of(self.records), ended], name="recorded", keep=None)

    async def compare(
        self, agent: Agent, *, run_tools: bool = False, prompts: bool = True
    ) -> Difference | None:
        """Send the messages to a copy of an agent, and return the first difference, if there is one.

        The copy asks `model()`, routes to nobody and has no handlers or hooks. Its tools do not run but give the
        recorded results, unless `run_tools`. Options of single turns (`run(..., output=)`) are not recorded: the
        agent has to have them. `prompts=False` overlooks another system prompt and other tools.
        """
        replayed, states = await replay_with(self, agent, self.model(), run_tools=run_tools)
        looking = partial(first_difference, self.records, replayed, states, prompts=prompts)
        return await trio.to_thread.run_sync(looking, abandon_on_cancel=True)


async def compare_session(
    runtime: Runtime, session_id: str, *, agent: str | None = None, to: int | None = None
) -> Difference | None:
    """Return what today's code of an agent that runs would do otherwise in a session of its; None where it does the same.

    Up to the record `to`, or all of it: see `Recording.compare`. Nothing runs but the agent's code, in a copy of it beside the
    running one.

    Raises:
        ConfigurationError: there is no journal or no such record, or several agents have a session of this id.
        NotRunning: its agent does not run here, so that nobody knows its code.
        SessionNotFound: the journal has no such session.
        JournalError: it cannot be read.
    """
    recording, found = await recorded(runtime, session_id, agent=agent, to=to)
    return await recording.compare(found)


async def recorded(
    runtime: Runtime, session_id: str, *, agent: str | None = None, to: int | None = None
) -> tuple[Recording, Agent]:
    """A session of a runtime as a recording, and its agent as it runs there.

    Raises:
        ConfigurationError, NotRunning, SessionNotFound, JournalError: see `compare_session`.
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
"""What a model call raises that left no answer, by what its turn ended with."""


def script_of(records: Sequence[Record]) -> list[Answer | Exception]:
    """What came of the model calls of a session, one after the other."""
    return list(_script(records))


def _script(records: Sequence[Record]) -> Iterator[Answer | Exception]:
    is_due = False
    for record in records:
        match record:
            case Appended():
                is_due = True
            case Said() if record.stop:
                is_due = False
                yield Answer(
                    parts=record.message.parts,
                    stop=record.stop,  # type: ignore[arg-type]
                    usage=record.usage,
                    model=record.model,
                )
            case Said():
                is_due = True
            case Ended() if is_due and record.failed in _CALL_ERRORS:
                yield _CALL_ERRORS[record.failed]


# --- the replay ---------------------------------------------------------------------------


async def replay_with(
    recording: Recording, agent: Agent, model: ScriptedLLM, *, run_tools: bool
) -> tuple[Sequence[Record], Sequence[State]]:
    """The records of a replay in which a model answers, and the state after each turn.

    Summaries and what was done to make requests fit are as recorded: nobody is asked for them.
    """
    states: list[State] = []
    opened = owner_of(recording.records)
    if opened is None:
        raise ConfigurationError(f"session {recording.session_id} has no beginning: nothing can be replayed")
    actor = _stand_in(agent, model)
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
            running.core.calling = _recorded_caller(running.core.calling, recording.records)
        context = await opener.create(opened.owner, session_id=recording.session_id)  # of any length
        session = face_of(context)
        session.on_exception(_ignore)
        for changes, message in _taken_up(recording.records):
            _restore(session.state, changes)
            await opener.intake.accept(context, message)
            await session.wait_idle()
            states.append(dict(session.state))
        return await journal.load(recording.session_id), states


def _ignore(_failure: object) -> None:
    """Failures of the recording are no news."""


def _taken_up(records: Sequence[Record]) -> Iterator[tuple[Sequence[StateRecord], Message]]:
    """The messages whose turns have run, each with the state changes since the turn before it."""
    accepted = {each.message.id: each.message for each in records if isinstance(each, Accepted)}
    changes, is_over = list[StateRecord](), True
    for record in records:
        match record:
            case Appended(message_id=message_id):
                yield changes, accepted[message_id]
                changes, is_over = [], False
            case Ended():
                is_over = True
            case Changed() | ActionFailed() | RolledBack() if is_over:
                changes.append(record)


def _stand_in(agent: Agent, model: ScriptedLLM) -> Agent:
    """A copy of an agent that reaches nobody outside; of one that runs it takes the tools as they are connected."""
    actor = copy.copy(agent)
    models = actor._models  # noqa: SLF001
    changes: dict[str, Any] = {
        "_models": attrs.evolve(models, clients=dict.fromkeys(models.named, model)),
        "_opener": None,
        "_block": None,
        "_on_session": [],
        "_hooks": Hooks(),
        "_companions": lambda: (),
        "_reports": Reports(agent.name),
    }
    changes["_memory"] = without_summaries(vars(agent)["_memory"])  # they would ask a model
    if vars(agent)["_opener"] is not None:
        changes["open_toolsets"] = partial(_serve, actor)
    vars(actor).update(changes)
    return actor


async def _serve(actor: Agent, _runtime: Runtime) -> None:
    """Begin with the tools that are there, which stay connected for the agent that runs."""
    await trio.lowlevel.checkpoint()
    vars(actor)["_opener"].running.equipped.set()


@attrs.frozen
class _Router:
    """Answers for the agents that a router has routes to; what they said is not in the record of its session."""

    actor: Agent

    async def route(self, _context: SessionContext, _turn: Turn, route: Route) -> Reply | None:
        if route.action in getattr(self.actor, "routes", {}):
            return Reply(id=f"{route.id}/reply", text="")
        return None


@attrs.frozen
class _RecordedResults:
    """The results of one answer's calls, and what the tools did to the state."""

    results: tuple[ToolResult, ...]
    changes: Sequence[StateRecord] = ()


@attrs.define(eq=False, kw_only=True)
class _RecordedToolCaller(ToolCaller):
    """Runs no tool: each call has its result when its batch is made."""

    recorded: deque[_RecordedResults]

    def _batch(self, context: SessionContext, turn: Turn, calls: Sequence[ToolCall]) -> Batch:
        batch = super()._batch(context, turn, calls)
        recorded = self.recorded.popleft() if self.recorded else _RecordedResults(())
        for place, call in enumerate(calls):
            batch.set_result(place, _result_for(call, place, recorded.results))
        _restore(context.state, recorded.changes)
        return batch


def _result_for(call: ToolCall, place: int, results: Sequence[ToolResult]) -> ToolResult:
    if place < len(results) and results[place].tool_name == call.name:
        return attrs.evolve(results[place], id=f"{call.id}/result", call_id=call.id, native=call.native)
    error = "the recording has no result of this call"
    return ToolResult(
        id=f"{call.id}/result",
        call_id=call.id,
        tool_name=call.name,
        status="error",
        error=error,
        native=call.native,
    )


def _recorded_caller(calling: ToolCaller, records: Sequence[Record]) -> ToolCaller:
    recorded: deque[_RecordedResults] = deque()
    changes: list[StateRecord] = []
    has_started = False
    for record in records:
        match record:
            case Started():
                has_started = True
            case Changed() | ActionFailed() | RolledBack() if has_started:
                changes.append(record)
            case Said(message=message) if message.tool_results:
                recorded.append(_RecordedResults(message.tool_results, changes))
                changes, has_started = [], False
    fields = {name: getattr(calling, name) for name in attrs.fields_dict(ToolCaller)}
    return _RecordedToolCaller(**fields, recorded=recorded)


def _restore(store: Store, changes: Sequence[StateRecord]) -> None:
    """Restore the state as tools left it, and programs between the turns, since neither runs in a replay."""
    for change in changes:
        store.restore(change)
