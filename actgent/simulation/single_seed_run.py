"""One seed: simulated processes of the program, callers, approvers and faults, and the checks at the end."""

import itertools
import math
import sys
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest import mock

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.agent_construction import AgentModels
from actgent.agents.pipelines import PipelineModel
from actgent.agents.session import Session
from actgent.errors import ActgentError, JournalError, Stopped
from actgent.journal.group_commit.row_format import Head
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import SessionKey
from actgent.llm.model_interface import LLM, ModelRequest
from actgent.llm.scripted_model import ScriptedLLM
from actgent.messages import Failure, Reply, Text, ToolResult
from actgent.runtime.runtime import Runtime, open_runtime
from actgent.runtime.sessions import session_table
from actgent.sessions import session_record_writer
from actgent.sessions.session_context import SessionContext
from actgent.testing.transcript_validation import check_transcript
from actgent.tools import FunctionTool, Tool, ToolContext

from .caller_observations import (
    COPY_PREFIX,
    TASK_PREFIX,
    CallerObservations,
    ObservationKind,
    StoredFirst,
    root_of,
)
from .fault_and_workload_plan import Settings, call_kinds, draw_plan
from .invariant_checks import check_run
from .journal_snapshot_checks import (
    check_loaded,
    check_snapshot,
    check_stored_trees,
    check_summary,
    compare_loaded,
    has_unwritten_records,
    state_mark,
)
from .random_model import SLOW_SECONDS, RandomModel
from .run_report import Story, ToolRun
from .seeded_choices import Choices, EventKey
from .simulated_callers import CLOSE_CONTINUES, EXPECTED_ERRORS, Callers
from .simulated_program import Program, load_program, own_modules
from .simulated_storage import Storage
from .simulated_world import Verdict, World

REPAIR_SECONDS = 30.0
"""Time after the last failure of the journal in which background work is repeated and completed."""
RETURN_SECONDS = 60.0
"""Time after the close of a runtime in which all calls must return."""
SLOW_RETURN_SECONDS = 600.0
"""The same if some reads of the journal take a minute."""
CALLER_GONE = "the caller is gone"
"""Part of the error of a task whose caller has ended. A caller that receives this error has not ended."""
SESSION_CLOSED = "is closed: create a new one"
"""Part of the error of a task whose session was closed."""
CANCEL_SECONDS = 0.001
"""Time in which a close cancels the turn of its session."""
STOP_DURING_CLOSE = 0.4
"""Probability of a stop while a close continues in the background, in seeds with stops."""
DOWNTIME_SECONDS = (1.0, 60.0, 4000.0)
"""Times between the end of a simulated process and the start of the next one."""
HANDLER_SECONDS = (0, 0.001, 0.1, 3)
"""Durations of handlers that take time."""
MAX_REPEATS = 3
"""Maximum number of runs of one seed while runs import modules."""


@attrs.define(kw_only=True)
class SeedOutcome:
    """Result of one run of a seed."""

    seed: int
    problems: list[str]
    """Descriptions of broken rules, one line each; empty if all rules held."""
    story: Story
    digest: str
    """Hash of all events of the run; equal for two runs of the seed if the program is deterministic."""
    happened: list[EventKey]
    """Optional events that happened in the run. The shrinker may leave them out."""
    counts: Counter[str]
    """Number of events by kind."""


def play(seed: int, settings: Settings, left_out: Iterable[EventKey] = ()) -> SeedOutcome:
    """Run one seed, check the rules, and return the outcome.

    Args:
        seed: The seed.
        settings: Program and kinds of faults.
        left_out: Optional events of the seed that do not happen in this run.
    """
    for _ in range(MAX_REPEATS):
        known = len(sys.modules)
        world = World(Choices(seed, frozenset(left_out)))
        with world.installed():
            outcome = _play_in(world, settings)
        # A module that is imported while a seed runs reads the clock and random numbers. Then the seed runs once more.
        if len(sys.modules) == known:
            break
    return outcome


def _play_in(world: World, settings: Settings) -> SeedOutcome:
    """Run the seed of an installed world, check the rules, and return the outcome.

    On return, only the outcome refers to objects of its simulated processes.
    """
    run = _Run(world, settings)
    with run.storage.prepared():
        return run.play()


def check_program(settings: Settings) -> None:
    """Execute the program once, to report its errors before any seed runs.

    Raises:
        ConfigurationError: The file is missing, cannot be run, or defines no agent.
    """
    with (
        own_modules(settings.program),
        mock.patch.object(
            AgentModels, "resolve", lambda models: dict.fromkeys(models.named, ScriptedLLM([]))
        ),
    ):
        load_program(settings.program)


class _Run:
    """One run of a seed: the state outside of the simulated processes, which survives them."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.plan = draw_plan(world.choices, settings, session_record_writer.SNAPSHOT_RECORDS)
        self.storage = Storage(world, settings.journal, 0.0)
        self.story = Story(seed=world.choices.seed)
        self.problems: list[str] = []
        self.notes = CallerObservations(limits=dict(self.plan.limits))
        self.is_last = False
        self._program: Program | None = None
        self._open_runtime: Runtime | None = None
        self._differences: list[str] = []
        """Differences between summaries or snapshots of the journal and its records at the end."""
        self._kill_at = ""
        self._kill_countdown = 0
        self._has_stopped = False
        """True if this simulated process stops an agent or the runtime before all work is done."""
        self._stopped_at = math.inf
        """Time at which the runtime of this simulated process was stopped; infinite before."""
        self._initializing: Counter[str] = Counter()
        """Number of running `on_session` handlers of this life, by session id."""
        self._quiet_marks: dict[int, object] = {}
        """States of sessions in memory that were compared with the journal, by id of the session object."""
        self._wrapped: list[Tool] = []
        """Tools whose runs are recorded in this simulated process. Some belong to all agents of the process."""

    @property
    def _is_slow(self) -> bool:
        """True if writes of this simulated process could be slow, also if they are fast at its end."""
        return bool(self.plan.chance["slow"]) and not self.is_last

    def report_broken_rule(self, text: str) -> None:
        """Report a broken rule, which fails the simulation run.

        The report is ignored if the simulated process was killed, because code of a dead process has no effects.
        """
        if not self.world.life.is_dead:
            self._report(text)

    def _report(self, text: str) -> None:
        if text not in self.problems:
            self.world.record("wrong", text)
            self.problems.append(text)

    # --- simulated processes -----------------------------------------------------------------------

    def play(self) -> SeedOutcome:
        world, choices = self.world, self.world.choices
        with (
            own_modules(self.settings.program) as end_process,
            mock.patch.object(session_table, "MAX_LOADED_IDLE", self.plan.loaded),
            mock.patch.object(session_record_writer, "SNAPSHOT_RECORDS", self.plan.snapshot_records),
            mock.patch.object(AgentModels, "resolve", self._make_resolver()),
        ):
            for number in range(1, self.plan.lives + 1):
                self.is_last = number == self.plan.lives
                self._prepare_life(number)
                end_process()  # the invariants use the modules of the last simulated process
                began_at = world.now
                verdict, result = world.run_life(self._life)
                self.storage.end_life(verdict)
                while self._wrapped:
                    del self._wrapped.pop().execute
                world.record("life", f"life {number} {verdict}", is_shown=False)
                self._note_end(number, verdict, began_at)
                if not self.is_last and choices.happens("downtime", self.plan.chance["downtime"]):
                    seconds = choices.pick("downtime: seconds", DOWNTIME_SECONDS)
                    world.record("life", f"the process is down for {seconds:g} s")
                    world.now += seconds
                if verdict in ("stuck", "endless"):
                    self._report(f"life {number} is {verdict}: {result}")
                    break
                if verdict == "ended" and result is not None and not self._is_expected(result):
                    self._report(f"life {number} failed: {_innermost(result)}")
            else:
                self._prepare_life(self.plan.lives, is_reading=True)
                verdict, result = world.run_life(self._read_journal)
                if verdict != "ended" or result is not None:
                    self._report(f"the journal cannot be read at the end: {verdict} {result!r}")
            return self._outcome()

    def _note_end(self, number: int, verdict: Verdict, began_at: float) -> None:
        """Record whether the simulated process `number`, which has ended now, ran without faults and stops.

        The checks at the end of the run demand more of such processes. Some checks are made at once.
        """
        has_ended, notes = verdict == "ended", self.notes
        repaired_at = max(began_at, self.storage.failed_at + REPAIR_SECONDS)
        is_repaired = repaired_at < min(self.world.now, self._stopped_at) and not self._is_slow
        if has_ended and not self.storage.has_failed:
            notes.undisturbed_processes.add(number)
        if is_repaired:
            notes.repaired_processes.add(number)
        if is_repaired and has_ended and not self._has_stopped:
            notes.settled_processes[number] = (repaired_at, self.world.now)
        if number in notes.settled_processes or number in notes.undisturbed_processes:
            self._check_closes(number)
        if number in notes.settled_processes:
            for key, parent_id in self.storage.find_orphans():
                if key not in notes.children_left_open:
                    self._report(
                        f"{key.session_id} is open at the end of life {number}, below its closed parent {parent_id}"
                    )

    def _prepare_life(self, number: int, *, is_reading: bool = False) -> None:
        world, choices, plan = self.world, self.world.choices, self.plan
        is_quiet = self.is_last or is_reading
        self._has_stopped = self.storage.has_failed = False
        self._stopped_at = math.inf
        self._quiet_marks.clear()
        self._initializing.clear()
        self.storage.fault_chance = 0.0 if is_quiet else plan.chance["journal"]
        self.storage.slow_chance = 0.0 if is_quiet else plan.chance["slow"]
        self.storage.on_write = self._note_write
        self.storage.on_change = self._check_stored
        self.storage.power_cut_at = 0
        self._kill_at = ""
        if is_reading:
            return
        if number > 1:
            world.record("life", f"life {number} begins")
        if is_quiet or not choices.happens(f"kill of life {number}", plan.chance["kill"]):
            return
        kinds = [
            "write",
            "write",
            "before write",
            "effect",
            "effect",
            "model",
            "handled",
            "returned",
            "time",
            "time",
            "during",
            "during",
        ]
        if self.settings.journal == "sqlite":
            kinds += ["power", "power"]
        self._kill_at = choices.pick("kill at", kinds)
        self._kill_countdown = choices.pick("kill countdown", _COUNTDOWNS.get(self._kill_at, (1,)))
        if self._kill_at == "power":
            self.storage.power_cut_at = choices.number("power cut at", 1, 150)

    def _check_closes(self, number: int) -> None:
        """Report each session that is still open although nothing prevented its close in an earlier simulated process.

        A stop that ends a turn of the session may prevent the close, too.
        """
        if self._is_slow:
            return
        stopped = self.notes.stopped_turns
        for session_id, life in self.notes.close_processes.items():
            may_end = stopped.isdisjoint([(session_id, life), ("", life)])
            if life == number and may_end and self.storage.find_open(session_id):
                self._report(f"aclose() of {session_id} began in life {number}, but did not complete in it")

    def _check_stored(self, heads: Mapping[SessionKey, Head]) -> None:
        """Report each stored session whose state would be wrong after a crash at this moment.

        `heads` are the newest stored rows of all sessions.
        """
        for head in heads.values():
            parent = heads.get(SessionKey(head.parent_agent or "", head.parent_id or ""))
            runtime = self._open_runtime
            if (
                parent is not None
                and parent.closed
                and runtime is not None
                and head.agent not in runtime.agents
            ):
                self.notes.children_left_open.add(head.key)
        # The close of a session may be written before the failed close of its child. The next start ends such a child.
        repeated = {key for key in heads if self.storage.has_failed_batches(key)}
        for problem in check_stored_trees(heads, self.notes.children_left_open | repeated):
            self.report_broken_rule(problem)

    def _note_write(self, moment: str) -> None:
        """Handle the moment before or after a write: kill the simulated process or cancel callers if the seed has chosen it."""
        self._kill_point("before write" if moment == "before write" else "write")
        if not self.world.life.is_dead:
            self.world.note_write(moment)

    def _kill_point(self, kind: str) -> None:
        """Kill the simulated process if the seed has chosen this moment. `kind` is a key of `_KILL_TEXTS`."""
        if kind == self._kill_at and self._kill_countdown > 0:
            self._kill_countdown -= 1
            if not self._kill_countdown:
                self.world.kill(_KILL_TEXTS[kind])

    async def _life(self) -> None:
        world, choices = self.world, self.world.choices
        if self._kill_at == "during":
            kind = choices.pick("kill during", call_kinds(self.plan))

            def kill_during(moment: str) -> None:
                if moment == f"during {kind}":
                    self._kill_point("during")

            self.world.watch(kill_during)
        may_stop = not self.is_last and choices.happens("regular stop", self.plan.chance["stop"])
        # Some stops cancel the block of the runtime from outside, as Ctrl-C does.
        cancels_block = choices.pick("the stop cancels the block", (True, False))
        users: Callers | None = None
        async with trio.open_nursery() as outside:
            with trio.CancelScope() as block:
                async with self._runtime() as (program, journal, runtime):
                    users = self._make_callers(program, runtime)
                    world.on_quiet = partial(self._check_quiet, runtime, users)
                    with trio.CancelScope() as body:
                        scope = block if cancels_block else body
                        if may_stop:
                            self._stop_later(scope)
                        if self.plan.chance["stop"] and not self.is_last:
                            world.watch(partial(self._stop_during_close, scope))
                        # Callers outside keep calling while the runtime stops.
                        continues = may_stop and choices.pick("callers continue", (True, False))
                        await self._run_callers(users, program, outside if continues else None)
                    if body.cancelled_caught:
                        world.record("stop", "the runtime stops")
                        self._note_stop()
                    elif not self._has_stopped:
                        await self._check_loaded(journal, runtime)
            if block.cancelled_caught:
                world.record("stop", "the block of the runtime was cancelled")
                self._note_stop()
            if users is not None and outside.child_tasks:
                await self._check_returned(users)
            outside.cancel_scope.cancel()

    def _note_stop(self) -> None:
        """Record the time of a stop of the runtime. After a stop, the process does not repeat its background work."""
        self._has_stopped, self._stopped_at = True, self.world.now

    def _make_callers(self, program: Program, runtime: Runtime) -> Callers:
        return Callers(
            self.world,
            self.plan,
            self.story,
            self.notes,
            program=program,
            runtime=runtime,
            is_last=self.is_last,
            report=self.report_broken_rule,
            note_stored=self._note_stored,
            last_failure=lambda: self.storage.failed_at,
            on_return=lambda: self._kill_point("returned"),
        )

    async def _run_callers(self, users: Callers, program: Program, outside: trio.Nursery | None) -> None:
        """Run all callers of a simulated process until their work is done, in the nursery `outside` or in a new nursery."""
        finished = {key: trio.Event() for key in range(self.plan.sessions)}
        async with trio.open_nursery() as inside:
            callers = outside or inside
            if self._kill_at == "time":
                inside.start_soon(self._kill_later)
            if not self.is_last and self.plan.chance["restart"]:
                self._has_stopped = True
                callers.start_soon(users.restart_agents)
            for agent in program.all_agents:
                callers.start_soon(users.decide_approvals, agent, finished)
            for number, event in finished.items():
                agent = self.plan.agent_of(number, program.agents)
                callers.start_soon(users.use_session, agent, f"s{number}", event)
            for event in finished.values():
                await event.wait()
            inside.cancel_scope.cancel()

    async def _check_returned(self, users: Callers) -> None:
        """Report calls of callers that have not returned some time after the runtime has closed."""
        running = set(users.running_calls)
        await trio.sleep(SLOW_RETURN_SECONDS if self.storage.slow_chance else RETURN_SECONDS)
        for call in running.intersection(users.running_calls):
            self.report_broken_rule(f"{call.name} did not return, although the runtime had closed")

    async def _check_loaded(self, journal: Journal, runtime: Runtime) -> None:
        """Compare the idle sessions in memory with their records, after failed writes were repeated."""
        self.storage.fault_chance = self.storage.slow_chance = 0.0
        await trio.sleep(REPAIR_SECONDS)
        for context in [each for running in runtime._agents() for each in running.sessions.values()]:
            if context.log is None or _is_changing(context):
                continue
            await context.log.flush()
            for problem in await check_loaded(journal, context):
                if not _is_changing(context):
                    self.report_broken_rule(f"{context.id}: {problem}")

    def _check_quiet(self, runtime: Runtime, users: Callers) -> None:
        """Compare the sessions in memory with the journal while all tasks wait and no write is in progress.

        It changes no state and draws no choice.
        """
        if not self.storage.is_quiet:
            return
        for running in runtime._agents():
            if running.runner.is_stopping:
                continue
            for context in tuple(running.sessions.values()):
                self._check_quiet_session(context)
            # A handler of `on_session`, or a failure of the journal, delays the resumption.
            if runtime.agents.pending_opens_of(running.name) or running.name in users.restarting:
                continue
            for head in self.storage.find_unfinished(running.name):
                if head.session_id in running.sessions or head.session_id.startswith(COPY_PREFIX):
                    continue
                if not self.notes.era(head.session_id):  # a cancelled erasure leaves work to the next use
                    self.report_broken_rule(
                        f"{head.session_id} has unfinished work in the journal, but it is not in memory"
                    )

    def _check_quiet_session(self, context: SessionContext) -> None:
        """Report each difference of a session in memory from the journal, and decisions that are never written."""
        if context.log is None or context.has_moved or context.closed:
            return
        if context.approvals is not None and context.approvals._writing:
            self.report_broken_rule(f"{context.id}: a decision is being written, but no write is in progress")
        if context.log._is_paused or context.log._has_stopped:
            return
        if context.is_busy or has_unwritten_records(context):
            return
        head = self.storage.find_head(context.key)
        mark = None if head is None else state_mark(context, head)
        if self._quiet_marks.get(id(context)) != mark or mark is None:
            self._quiet_marks[id(context)] = mark
            try:
                problems = compare_loaded(context, self.storage.read(context.key), head)
            except Exception as error:  # noqa: BLE001 - the next process would fail with this error
                problems = [f"it cannot be restored from its records: {error!r}"]
            for problem in problems:
                self.report_broken_rule(f"{context.id}: {problem}")

    async def _check_restorable(self, journal: Journal) -> None:
        """Compare the stored summaries and snapshots of all sessions with their records, before the next process restores them."""
        await journal.acquire()
        for summary in await journal.sessions():
            records = await journal.load(summary.session_id, agent=summary.agent)
            found = [*check_summary(summary, records), *await check_snapshot(journal, summary.key, records)]
            for problem in found:
                self.report_broken_rule(f"{summary.session_id}: {problem}")

    def _stop_during_close(self, scope: trio.CancelScope, moment: str) -> None:
        """Cancel the scope of some simulated processes while a close of a session continues in the background."""
        if moment == CLOSE_CONTINUES and self.world.choices.happens("stop during a close", STOP_DURING_CLOSE):
            scope.cancel()

    def _stop_later(self, scope: trio.CancelScope) -> None:
        """Cancel the scope of this process at a drawn moment: after some time, at a write, or after a caller has cancelled a call."""
        choices = self.world.choices
        scope.deadline = trio.current_time() + 10 ** (choices.fraction("stop after") * 5.5 - 3.5)
        wanted = choices.pick("stop at", ("", "write", "cancelled", "during", "during"))
        moments = itertools.count(1)
        countdown = choices.number("writes before the stop", 1, 20) if wanted == "write" else 1
        if wanted == "during":
            wanted = f"during {choices.pick('stop during', call_kinds(self.plan))}"
            countdown = choices.pick("writes before the stop", (1, 1, 2, 3, 5))

        def stop(moment: str) -> None:
            if moment.endswith(wanted) and next(moments) == countdown:
                scope.cancel()

        if wanted:
            self.world.watch(stop)

    def _in_start_order(self, agents: Sequence[Agent]) -> Sequence[Agent]:
        """Return the agents in the order in which this simulated process starts them: the program's order or another order."""
        if not self.plan.chance["order"]:
            return agents
        return sorted(agents, key=lambda agent: self.world.choices.fraction(f"start of {agent.name}"))

    @asynccontextmanager
    async def _runtime(self) -> AsyncIterator[tuple[Program, Journal, Runtime]]:
        """Async context manager: load the program, open the journal and start the agents of a simulated process."""
        program = self._program = load_program(self.settings.program)
        wrapped = dict[int, None]()
        for agent in program.all_agents:
            agent.on_session(self._attach)
            if agent in program.agents:
                agent.on_session(self._make_opener(agent, program.agents))
            bounds = agent._bounds.inbox
            if self.plan.inbox:
                bounds = bounds._replace(session_capacity=self.plan.inbox)
            if self.plan.chance["concurrency"]:
                bounds = bounds._replace(concurrency=1)
            agent._bounds = attrs.evolve(agent._bounds, inbox=bounds)
            for tool in agent.tools:
                if id(tool) not in wrapped:
                    wrapped[id(tool)] = None
                    self._wrap(tool, program)
        async with self.storage.open() as journal:
            if self.world.choices.pick("journal is checked before the start", (True, False, False)):
                await self._check_restorable(journal)
            async with open_runtime(journal=journal) as runtime:
                self._open_runtime = runtime
                await _start(runtime, self._in_start_order(program.agents))
                yield program, journal, runtime

    def _make_resolver(self) -> Callable[[AgentModels], dict[str, LLM]]:
        """Return the function that resolves the models of an agent, for all simulated processes of the seed.

        It must not be patched within a simulated process: a killed simulated process never leaves its context managers.
        """
        if self.settings.uses_own_models:
            return AgentModels.resolve

        def resolve_models(models: AgentModels) -> dict[str, LLM]:
            chance = 0.0 if self.is_last else self.plan.chance["model"]
            second_call = self.plan.second_call
            return {
                # The model of a pipeline calls no provider: it starts the steps.
                role: given
                if isinstance(given, PipelineModel)
                else RandomModel(self.world, role, self, fault_chance=chance, second_call=second_call)
                for role, given in models.named.items()
            }

        return resolve_models

    async def _kill_later(self) -> None:
        await trio.sleep(10 ** (self.world.choices.fraction("kill after") * 5.5 - 3))
        self.world.kill("at a random moment")

    def _is_expected(self, error: BaseException) -> bool:
        """Return True if a simulated process may end with this error, because the disk prevented its start."""
        return not self.is_last and self.plan.chance["journal"] > 0 and bool(_only(error, JournalError))

    def _note_stored(self, kind: ObservationKind, name: str, agent: str, session_id: str) -> None:
        """Record an observation whose record must be stored by now, because a crash must not undo it.

        `name` is the id of the observed reply, call, message or approval.
        """
        series, records = self.storage.find_series(agent, session_id)
        if kind == "request":
            self.notes.requests_by_series[series] += 1
            name = str(self.notes.requests_by_series[series])
        if series or self.settings.journal == "memory":
            self.notes.stored_first.append(StoredFirst(kind, name, agent, session_id, series, records))

    # --- tools and models ------------------------------------------------------------------------

    def _wrap(self, tool: Tool, program: Program) -> None:
        """Wrap a tool: record its runs, make some runs fail, and call its simulated replacement."""
        body = program.bodies.get(id(tool))
        execute = tool.execute
        if body is not None:
            execute = FunctionTool(tool.name, tool.description, body, effect=tool.effect).execute
        fault_chance = 0.0 if self.is_last else self.plan.chance["tool"]
        if tool.effect == "pure":
            fault_chance /= 2

        async def run(arguments: Mapping[str, Any], context: ToolContext) -> Any:
            world, choices, life = self.world, self.world.choices, self.world.life
            name = f"tool {tool.name} of {context.session_id}"
            world.check_alive(life)
            this = ToolRun(
                agent=context.agent,
                session=context.session_id,
                tool=tool.name,
                call_id=context.call_id,
                arguments=dict(arguments),
                idempotency_key=context.idempotency_key,
                process_number=life.number,
                began_at=world.now,
            )
            story = self.story.session(context.agent, context.session_id)
            await trio.sleep(choices.pick(f"{name}: delay", (0, 0.001, 0.1, 3)))
            fault = ""
            if choices.happens(f"{name}: failure", fault_chance):
                # A sync function in the event loop cannot wait, and has no time limit.
                kinds = ("before", "after") if tool.inline else ("before", "hang", "after")
                fault = choices.pick(f"{name}: fault", kinds)
                world.record("tool fault", f"{tool.name} " + _FAULT_TEXTS[fault])
            if fault == "before":
                raise RuntimeError(f"{tool.name} failed")
            if fault == "hang":
                await trio.sleep(SLOW_SECONDS)
            world.check_alive(life)
            self._note_begin(tool, this)
            result = await execute(dict(arguments), context)
            world.check_alive(life)
            story.done.append(this)
            world.record("tool", f"{tool.name} has taken effect", is_shown=tool.effect != "pure")
            if tool.effect != "pure":
                self._kill_point("effect")
                if not world.is_alive(life):
                    await world.wait_for_death()
            await trio.sleep(choices.pick(f"{name}: delay", (0, 0.001, 0.1, 10)))
            if fault == "after":
                raise RuntimeError(f"{tool.name} failed after its effect")
            return result

        tool.execute = run  # type: ignore[method-assign] # until the end of the simulated process
        self._wrapped.append(tool)

    def _note_begin(self, tool: Tool, run: ToolRun) -> None:
        """Record that the function of a tool begins."""
        self.story.session(run.agent, run.session).began.append(run)
        has_effect = tool.effect != "pure"
        if has_effect:
            self._note_stored("tool", run.call_id, run.agent, run.session)
        self.world.record("tool", f"{tool.name} begins, in {run.session}", is_shown=has_effect)

    async def on_request(self, agent: str, chat: ModelRequest) -> None:
        """Check a request to a simulated model, and perhaps kill the simulated process. Implements `ModelObserver`."""
        notes = self.notes
        self.world.record("request", f"{chat.session}: {len(chat.messages)} messages", is_shown=False)
        notes.requests[chat.session] = notes.requests.get(chat.session, 0) + 1
        self._check_open(chat.session, "a model was asked")
        if self._initializing[chat.session]:
            self.report_broken_rule(
                f"a model was asked for {chat.session} before its on_session handler had returned"
            )
        await self._check_not_closing(chat.session)
        if chat.session in notes.limits:
            for owner, session_id in self.story.found:
                if session_id == chat.session:
                    self._note_stored("request", "", owner, session_id)
        if notes.erased_messages and not self.settings.messages:
            said = {part.text for each in chat.messages for part in each.parts if isinstance(part, Text)}
            for message_id in sorted(notes.erased_messages):
                if notes.sent[message_id] == chat.session and self.plan.messages[message_id] in said:
                    self.report_broken_rule(
                        f"a model of {chat.session} was shown {message_id}, which was deleted"
                    )
        for problem in check_transcript(chat):
            self.report_broken_rule(f"a provider would refuse a request of {chat.session}: {problem}")
        self._kill_point("model")
        if self.world.life.is_dead:
            await self.world.wait_for_death()

    async def _check_not_closing(self, session_id: str) -> None:
        """Report a model request of a session that is closed in memory. A close must cancel the turn within a few steps."""
        running = () if self._open_runtime is None else self._open_runtime._agents()
        found = (each.sessions.get(session_id) for each in running)
        if any(each is not None and each.closed for each in found):
            await trio.sleep(CANCEL_SECONDS)
            self.report_broken_rule(f"a model was asked for {session_id} after its close had begun")

    # --- handlers --------------------------------------------------------------------------------

    def _attach(self, session: Session) -> None:  # noqa: C901 - one function for each kind of handler
        """Register handlers of a session that record replies, results and failures for the checks at the end."""
        world, life, notes = self.world, self.world.life, self.notes
        story, era = self.story.session(session.agent_name, session.id), self.notes.era(session.id)

        @session.on_tool_result
        def on_result(result: ToolResult) -> None:
            if world.is_alive(life):
                world.record(
                    "result",
                    f"{result.tool_name} in {session.id}: {result.status}",
                    is_shown=result.status != "success",
                )
                notes.received_statuses.setdefault((session.id, result.call_id), set()).add(
                    (result.id, result.status)
                )
                self._check_open(session.id, "its handlers received a result")
                if CALLER_GONE in (result.error or ""):
                    self.report_broken_rule(
                        f"a result of {session.id} says that the caller of its task is gone"
                    )
                # A cancelled task also closes the sessions below it.
                root, is_open = (
                    root_of(session.id),
                    not session._context.closed and TASK_PREFIX not in session.id,
                )
                if is_open and SESSION_CLOSED in (result.error or "") and root not in ("", *notes.closing):
                    self.report_broken_rule(
                        f"a result of {session.id} says that a session is closed, but no caller closed it"
                    )
                known, _ = notes.last_statuses.get(result.call_id, ("", ""))
                is_relayed = known.startswith(f"{session.id}/")  # by a handoff, from a child session
                if notes.is_valid(session.id, era) and not is_relayed:
                    notes.last_statuses[result.call_id] = (session.id, result.status)
                    self._note_stored("result", result.call_id, session.agent_name, session.id)
                self._kill_point("handled")

        @session.on_conversation
        def on_reply(reply: Reply) -> None:
            if world.is_alive(life):
                world.record("reply", f"{session.id} is answered: {reply.text!r}")
                story.replies.append(reply.text)
                self._check_open(session.id, "its handlers received a reply")
                if notes.is_valid(session.id, era):
                    notes.replies[reply.id] = session.id
                    self._note_stored("reply", reply.id, session.agent_name, session.id)
                self._kill_point("handled")

        @session.on_exception
        def on_failure(failure: Failure) -> None:
            if not world.is_alive(life):
                return
            world.record(
                "failure",
                f"{failure.message_id or session.id} fails: {failure.kind} ({type(failure.error).__name__})",
            )
            story.failures.append(failure.kind)
            if isinstance(failure.error, Stopped):
                notes.stopped_turns.add((root_of(session.id), life.number))
            if failure.kind == "internal":
                self.report_broken_rule(f"internal failure in {session.id}: {_innermost(failure.error)}")
            is_final = not failure.may_continue and failure.kind != "handler"
            if is_final and not session.id.startswith(COPY_PREFIX) and notes.is_valid(session.id, era):
                notes.final_failures[session.id, failure.message_id] = failure.kind
                self._note_stored("failure", failure.message_id, session.agent_name, session.id)
            self._kill_point("handled")

        if self.plan.chance["handler"]:

            async def take_time(_: object) -> None:
                await self._take_time(f"handler of {session.id}")

            session.on_tool_result(take_time)
            session.on_conversation(take_time)
            session.on_exception(take_time)

    def _make_opener(self, agent: Agent, agents: Sequence[Agent]) -> Callable[[Session], Awaitable[None]]:
        """Return an `on_session` handler that takes time or opens another session, which callers may open at the same time."""
        choices, plan = self.world.choices, self.plan
        own = [f"s{number}" for number in range(plan.sessions) if plan.agent_of(number, agents) is agent]

        async def on_session(session: Session) -> None:
            self._initializing[session.id] += 1
            try:
                await prepare(session)
            finally:
                self._initializing[session.id] -= 1

        async def prepare(session: Session) -> None:
            name = f"handler of {session.id}"
            await self._take_time(name)
            others = [] if self.is_last else [each for each in own if each != session.id]
            if others and choices.happens(f"{name} opens another session", plan.chance["handler"]):
                try:
                    await agent.open_session(choices.pick(f"{name}: which", others))
                except EXPECTED_ERRORS:
                    pass
                except ActgentError as error:
                    self.report_broken_rule(f"open_session() in the handler of {session.id} raised {error!r}")

        return on_session

    async def _take_time(self, name: str) -> None:
        """Let a handler take some time, in seeds with slow handlers."""
        if not self.is_last and self.world.choices.happens(f"{name} takes time", self.plan.chance["handler"]):
            await trio.sleep(self.world.choices.pick(f"{name}: delay", HANDLER_SECONDS))

    def _check_open(self, session_id: str, what: str) -> None:
        """Report a problem if a session does work (`what`) after its close or its erasure has returned."""
        if session_id in self.notes.closed:
            self.report_broken_rule(f"aclose() of {session_id} returned, but then {what}")

    # --- the end ---------------------------------------------------------------------------------

    async def _read_journal(self) -> None:
        async with self.storage.open() as journal:
            await journal.acquire()
            for summary in await journal.sessions():
                key = (summary.agent, summary.session_id)
                records = await journal.load(summary.session_id, agent=summary.agent)
                self.notes.parents[key] = None if summary.parent is None else tuple(summary.parent)
                if summary.closed:
                    self.notes.closed_in_journal.add(summary.session_id)
                else:
                    self.notes.open_in_journal.add(key)
                self.story.session(*key).records = records
                self.notes.series[key] = self.storage.find_series(*key)[0]
                found = [
                    *check_summary(summary, records),
                    *await check_snapshot(journal, summary.key, records),
                ]
                self._differences += [f"{summary.session_id}: {each}" for each in found]
                lost = self.notes.annotated_keys.get(key, set()) - summary.annotations.metadata.keys()
                self._differences += [
                    f"annotate() of {summary.session_id} returned, but the journal lost {each!r}"
                    for each in lost
                ]

    def _outcome(self) -> SeedOutcome:
        world, story = self.world, self.story
        story.events, story.lives, story.kills, story.seconds = (
            world.events,
            self.plan.lives,
            world.kills,
            world.now,
        )
        if not self.problems:
            effects = {
                (agent.name, tool.name): tool.effect for agent in self._agents() for tool in agent.tools
            }
            for problem in [*check_run(story, self.notes, effects), *self._differences]:
                self._report(problem)
            for rule in self._program.invariants if self._program is not None else ():
                try:
                    rule(story)
                except AssertionError as error:
                    self._report(f"{rule.__name__}: {str(error) or 'the assertion failed'}")
        rows = sorted(f"{key} {session.records!r}" for key, session in story.found.items())
        world.add_to_digest(row.encode() for row in rows)
        counts = Counter(event.kind for event in world.events)
        return SeedOutcome(
            seed=story.seed,
            problems=self.problems,
            story=story,
            digest=world.digest,
            happened=world.choices.happened,
            counts=counts,
        )

    def _agents(self) -> Sequence[Agent]:
        return () if self._program is None else self._program.all_agents


_KILL_TEXTS = {
    "write": "after a write to the journal",
    "before write": "before a write to the journal",
    "effect": "after the effect of a tool, before its result is written",
    "model": "while a model is asked",
    "handled": "after a handler was called",
    "returned": "after a call of a caller returned",
    "during": "during a call of a caller",
}
"""Moments at which a simulated process may be killed, as texts."""
_COUNTDOWNS = {
    "write": (1, 2, 3, 4, 5, 6, 8, 11, 15, 20),
    "before write": (1, 2, 3, 4, 5, 6, 8, 11, 15, 20),
    "handled": (1, 1, 2, 3, 4, 6),
    "returned": (1, 2, 3, 4, 5, 6, 8, 11),
    "effect": (1, 1, 1, 2, 3),
    "model": (1, 1, 2, 2, 3, 4, 6),
    "during": (1, 1, 2, 3, 4),
}
"""Number of events of a kind at which a process is killed. Most simulated processes end before high numbers, so these are rare."""
_FAULT_TEXTS = {"before": "fails before its effect", "hang": "hangs", "after": "fails after its effect"}


async def _start(runtime: Runtime, agents: Sequence[Agent]) -> None:
    """Start the agents in the given order.

    Agents that another agent has already started as its companion are skipped.
    """
    names = Counter(agent.name for agent in agents)
    for agent in agents:
        if names[agent.name] > 1 or runtime.find(agent.name) is None:  # two agents of one name raise
            await runtime.start(agent)


def _only(error: BaseException, kind: type[Exception]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_only(each, kind) for each in error.exceptions)
    return isinstance(error, kind)


def _innermost(error: BaseException) -> str:
    """Describe the first exception in an exception group by its text and the line of code that raised it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (each for each in reversed(frames) if "/actgent/" in each.filename), frames[-1] if frames else None
    )
    where = "" if place is None else f" at {place.filename.rpartition('/actgent/')[2]}:{place.lineno}"
    return f"{error!r}{where}"


def _is_changing(context: SessionContext) -> bool:
    """Return True if a session is closed or processes a message, so that its records may change."""
    return context.closed or context.is_busy
