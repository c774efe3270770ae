"""A recorded session again: the model and the tools answer what the journal has, the agent's code runs."""

import copy
import re
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
    Delivered,
    Ended,
    Record,
    RolledBack,
    Said,
    Started,
)
from actgent.llm.base import Answer
from actgent.llm.scripted import ScriptedLLM
from actgent.memory.summarizing import SUMMARY
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

from .recorded_views import RecordedFitter, bring_summary, is_summary, without_summaries

State = Mapping[str, Any]
_Line = tuple[int, str]
"""The number of a record, and what it says."""


@attrs.frozen
class Difference:
    """Where a replay first says something else than the recording."""

    step: int
    """The number of the record in the recording; one more than it has, where the replay goes on."""
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return f"record {self.step}: recorded {self.recorded}, replayed {self.replayed}"


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
        looking = partial(_compared, self.records, replayed, states, prompts=prompts)
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
        if not run_tools:
            running.core.calling = _recorded_caller(running.core.calling, recording.records)
        context = await opener.create(opened.owner, session_id=recording.session_id)  # of any length
        session = face_of(context)
        session.on_exception(_ignore)
        for changes, summary, message in _taken_up(recording.records):
            _restore(session.state, changes)
            if summary is not None:
                bring_summary(context, summary)
            await opener.intake.accept(context, message)
            await session.wait_idle()
            states.append(dict(session.state))
        return await journal.load(recording.session_id), states


def _ignore(_failure: object) -> None:
    """Failures of the recording are no news."""


def _taken_up(records: Sequence[Record]) -> Iterator[tuple[Sequence[StateRecord], Message | None, Message]]:
    """The messages that had their turn, with what happened to the state since the turn before, and the summary they begin with."""
    accepted = {each.message.id: each.message for each in records if isinstance(each, Accepted)}
    changes, summary, is_over = list[StateRecord](), None, True
    for record in records:
        match record:
            case Said(message=message) if is_summary(message):
                summary = message
            case Appended(message_id=message_id):
                yield changes, summary, accepted[message_id]
                changes, summary, is_over = [], None, False
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


# --- the state ----------------------------------------------------------------------------


def _restore(store: Store, changes: Sequence[StateRecord]) -> None:
    """Restore the state as tools left it, and programs between the turns, since neither runs in a replay."""
    for change in changes:
        store.restore(change)


def _states_after_turns(records: Sequence[Record]) -> Sequence[State]:
    store, begun, states = Store(), set[str](), list[State]()
    for record in records:
        match record:
            case Changed() | ActionFailed() | RolledBack():
                store.restore(record)
            case Appended(message_id=message_id):
                begun.add(message_id)
            case Ended(message_id=message_id) if message_id in begun:
                states.append(dict(store))
    return states


# --- the comparison -----------------------------------------------------------------------


def _compared(
    records: Sequence[Record], replayed: Sequence[Record], states: Sequence[State], *, prompts: bool
) -> Difference | None:
    """The first difference of a replay; a recording that is unfinished may go on."""
    told = prompts and all(r.prompt for r in records if isinstance(r, Said) and r.stop)
    waiting = range(0) if _is_unfinished(records) else _behind_last_turn(records)
    told_lines = _lines(records, _states_after_turns(records), with_prompts=told)
    recorded = [
        (step, line) for step, line in told_lines if step not in waiting or not _is_note(records[step - 1])
    ]
    lines = list(_lines(replayed, states, with_prompts=told))
    for (step, line), (_, other) in zip(recorded, lines, strict=False):
        if line != other:
            return Difference(step, line, other)
    if len(recorded) > len(lines):
        return Difference(*recorded[len(lines)], "nothing more")
    if len(lines) > len(recorded) and not _is_unfinished(records):
        return Difference(len(records) + 1, "nothing more", lines[len(recorded)][1])
    return None


def _is_unfinished(records: Sequence[Record]) -> bool:
    begun = [record.message_id for record in records if isinstance(record, Appended)]
    ended = {record.message_id for record in records if isinstance(record, Ended)}
    return bool(begun) and begun[-1] not in ended


def _behind_last_turn(records: Sequence[Record]) -> range:
    """The numbers of the records in which notes wait for a turn that is still to come: a replay makes them when it begins."""
    ends = [number for number, record in enumerate(records, 1) if isinstance(record, Ended)]
    return range(ends[-1] + 1 if ends else 1, len(records) + 1)


def _is_note(record: Record) -> bool:
    return isinstance(record, Said) and not record.stop


def _lines(records: Sequence[Record], states: Sequence[State], *, with_prompts: bool) -> Iterator[_Line]:
    """Render a conversation without ids and times; what was cut off on the way is left out."""
    accepted: dict[str, Message] = {}
    told: set[str] = set()
    after = iter(states)
    begun: set[str] = set()
    answer = ""
    for step, record in enumerate(records, 1):
        match record:
            case Accepted(message=message):
                accepted[message.id] = message
            case Appended(message_id=message_id):
                begun.add(message_id)
                yield step, f"message {_words(accepted[message_id])}"
            case Said(message=message) if record.stop or not (message.cut or _is_summary(message)):
                if record.prompt and with_prompts:
                    yield step, f"system prompt and tools {record.prompt}"
                answer = message.id if record.stop else answer
                yield step, f"{record.stop or 'note'} {_words(message)}"
            case Delivered(ids=ids):
                for each in ids:
                    if each.startswith(answer) and each not in told:
                        told.add(each)
                        yield step, f"outcome {each.removeprefix(answer).strip('/') or 'reply'}"
            case Ended(message_id=message_id, failed=failed) if message_id in begun:
                ending = "answered" if failed is None else f"failed ({_same(failed)})"
                state = dict(sorted(next(after, {}).items()))
                yield step, f"turn {ending}, state {_PASSING.sub('...', repr(state))}"


_PASSING = re.compile(r"\b[0-9a-f]{12}-[0-9a-f]{8}\b|\b[12]\d{9}\.\d+")
"""Ids of messages and times, which a protocol may keep in the state: they are others in each run."""


def _is_summary(message: Message) -> bool:
    """Return True for what a memory wrote beside the turns, at a time of its own."""
    return message.is_note and message.sender.name == SUMMARY


def _same(failed: str) -> str:
    return "interrupted" if failed == "stopped" else failed


def _words(message: Message) -> str:
    parts = [_without_ids(part) for part in message.parts]
    stage = "" if message.stage is None else f" at stage {message.stage!r}"
    return f"of {message.sender.kind} {message.sender.name!r}{stage}: {parts!r}"


def _without_ids(part: object) -> object:
    match part:
        case ToolCall():
            return ("call", part.name, part.arguments)
        case ToolResult():
            return ("result", part.tool_name, part.status, part.text)
    return part
