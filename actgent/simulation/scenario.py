"""One seed: lives of the program, callers, approvers and faults, and the checks at the end."""

import sys
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args
from unittest import mock

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.assembly import AgentModels
from actgent.agents.session import Session
from actgent.approvals import Approve, Decision, Reject
from actgent.errors import (
    ActgentError,
    InboxFull,
    Interrupted,
    JournalError,
    NotRunning,
    SessionBusy,
    SessionClosed,
)
from actgent.llm.base import LLM, ModelRequest
from actgent.llm.scripted import ScriptedLLM
from actgent.messages import Failure, Reply, ToolResult
from actgent.runtime.runtime import Runtime, open_runtime
from actgent.runtime.sessions import session_table
from actgent.testing.transcript_validation import check_transcript
from actgent.tools import FunctionTool, Tool, ToolContext

from .promise_checks import Notes, check_run
from .random_model import SLOW_SECONDS, RandomModel
from .run_story import Story, ToolRun
from .seeded_choices import Choices, EventKey
from .simulated_program import Program, load_program, own_modules
from .simulated_storage import JournalKind, Storage
from .simulated_world import World

FaultKind = Literal[
    "kill", "stop", "model", "tool", "journal", "cancel", "interrupt", "close", "priority", "memory"
]
FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)
"""Kinds of faults that a seed may have."""
MAX_SESSIONS, MAX_MESSAGES = 3, 3
LIVES = (1, 2, 3, 3, 4, 4)
"""Numbers of lives of a seed. Most deaths are in seeds with several lives."""
LAST_LIFE_SECONDS = 1_000_000.0
"""Simulated time after which the last life, in which nothing fails, must have finished all work."""
DEFAULT_MESSAGE = "message {number}"
MAX_REPEATS = 3
"""Maximum number of runs of one seed while runs import modules."""
SECOND_CONTROLLER = 0.5
"""Share of the lives of a session in which two callers interrupt and close it."""
APPROVED = 0.67
"""Fraction of the approval decisions that approve the call."""


@attrs.frozen(kw_only=True)
class Settings:
    """What `simulate` was asked for."""

    program: Path
    """Python file of the agents."""
    faults: frozenset[FaultKind] = frozenset(FAULTS)
    """Kinds of faults that may happen."""
    journal: JournalKind = "memory"
    sessions: int = MAX_SESSIONS
    """Maximum number of sessions of a seed."""
    messages: tuple[str, ...] = ()
    """Texts that callers send; empty for `message 1`, `message 2`, and so on."""
    uses_own_models: bool = False
    """True to use the models of the program instead of random ones."""


@attrs.define(kw_only=True)
class SeedOutcome:
    """Result of one run of a seed."""

    seed: int
    problems: list[str]
    """What went wrong, one line each; empty if everything held."""
    story: Story
    digest: str
    """Hash of everything that happened."""
    happened: list[EventKey]
    """Optional events that happened, which the shrinker may leave out."""
    counts: Counter[str]
    """Number of events by kind."""


@attrs.define
class _Plan:
    """What one seed may do. Each seed has some kinds of faults and not others, so a rare one is not hidden by frequent ones."""

    messages: dict[str, str]
    """Texts by message id; the session's number and the caller are part of the id."""
    sessions: int
    lives: int
    chance: dict[FaultKind, float]
    loaded: int
    """Number of idle sessions that stay in memory."""


def play(seed: int, settings: Settings, left_out: Iterable[EventKey] = ()) -> SeedOutcome:
    """Run one seed, and check it.

    Args:
        seed: The seed.
        settings: Program and kinds of faults.
        left_out: Optional events of the seed that must not happen.
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
    """Run the seed whose world is installed, and check the run.

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


def _draw_plan(choices: Choices, settings: Settings) -> _Plan:
    chance: dict[FaultKind, float] = {}
    for kind in FAULTS:
        is_on = kind in settings.faults and choices.pick(f"has {kind}", (True, False))
        chance[kind] = {"model": 0.25, "tool": 0.3, "journal": 0.2}.get(kind, 0.3) if is_on else 0.0
    if "kill" in settings.faults:
        chance["kill"] = 0.9
    sessions = choices.number("sessions", 1, settings.sessions)
    texts = settings.messages
    messages = dict[str, str]()
    for session in range(sessions):
        for caller in range(2):
            for number in range(choices.number("messages", 1 - caller, MAX_MESSAGES)):
                if choices.happens(f"message {number} of caller {caller} to s{session}", 1.0):
                    text = (
                        choices.pick("text", texts)
                        if texts
                        else DEFAULT_MESSAGE.format(number=len(messages) + 1)
                    )
                    messages[f"s{session}-{caller}{number}"] = text
    return _Plan(
        messages=messages,
        sessions=sessions,
        lives=choices.pick("lives", LIVES),
        chance=chance,
        loaded=choices.pick("loaded sessions", (1, 2, 1024)) if chance["memory"] else 1024,
    )


class _Run:
    """State of one seed that is outside of the simulated processes."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.plan = _draw_plan(world.choices, settings)
        self.storage = Storage(world, settings.journal, 0.0)
        self.story = Story(seed=world.choices.seed)
        self.problems: list[str] = []
        self.notes = Notes()
        self.is_last = False
        self._program: Program | None = None
        self._kill_at = ""
        self._kill_countdown = 0
        self._wrapped: list[Tool] = []
        """Tools whose runs are recorded in this life. Some belong to all agents of the process."""

    def wrong(self, text: str) -> None:
        """Record a broken rule.

        It is ignored if the simulated process was killed, because the code of a dead process has no effects.
        """
        if not self.world.life.is_dead:
            self._report(text)

    def _report(self, text: str) -> None:
        if text not in self.problems:
            self.world.record("wrong", text)
            self.problems.append(text)

    # --- lives -----------------------------------------------------------------------------------

    def play(self) -> SeedOutcome:
        world = self.world
        with (
            own_modules(self.settings.program) as end_process,
            mock.patch.object(session_table, "MAX_LOADED_IDLE", self.plan.loaded),
            mock.patch.object(AgentModels, "resolve", self._make_resolver()),
        ):
            for number in range(1, self.plan.lives + 1):
                self.is_last = number == self.plan.lives
                self._prepare_life(number)
                end_process()  # the invariants use the modules of the last life
                verdict, result = world.run_life(self._life)
                self.storage.end_life(verdict)
                while self._wrapped:
                    del self._wrapped.pop().execute
                world.record("life", f"life {number} {verdict}", is_shown=False)
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

    def _prepare_life(self, number: int, *, is_reading: bool = False) -> None:
        world, choices, plan = self.world, self.world.choices, self.plan
        is_quiet = self.is_last or is_reading
        self.storage.fault_chance = 0.0 if is_quiet else plan.chance["journal"]
        self.storage.on_write = lambda: self._kill_point("write")
        self.storage.power_cut_at = 0
        self._kill_at = ""
        if is_reading:
            return
        if number > 1:
            world.record("life", f"life {number} begins")
        if is_quiet or not choices.happens(f"kill of life {number}", plan.chance["kill"]):
            return
        kinds = ["write", "write", "effect", "effect", "model", "time", "time"]
        if self.settings.journal == "sqlite":
            kinds += ["power", "power"]
        self._kill_at = choices.pick("kill at", kinds)
        self._kill_countdown = choices.pick("kill countdown", _COUNTDOWNS.get(self._kill_at, (1,)))
        if self._kill_at == "power":
            self.storage.power_cut_at = choices.number("power cut at", 1, 150)

    def _kill_point(self, kind: str) -> None:
        """Kill the simulated process if this is the moment that the seed has chosen.

        `kind` is `write`, `effect` or `model`.
        """
        if kind == self._kill_at and self._kill_countdown > 0:
            self._kill_countdown -= 1
            if not self._kill_countdown:
                where = {
                    "write": "after a write to the journal",
                    "effect": "after the effect of a tool, before its result is written",
                    "model": "while a model is asked",
                }
                self.world.kill(where[kind])

    async def _life(self) -> None:
        world, choices = self.world, self.world.choices
        may_stop = not self.is_last and choices.happens("regular stop", self.plan.chance["stop"])
        async with trio.open_nursery() as outside:
            async with self._runtime() as program:
                agents = program.agents
                finished = {key: trio.Event() for key in range(self.plan.sessions)}
                with trio.CancelScope() as working:
                    if may_stop:
                        working.deadline = trio.current_time() + 10 ** (
                            choices.fraction("stop after") * 5.5 - 3.5
                        )
                    async with trio.open_nursery() as inside:
                        # Callers outside keep calling while the runtime stops.
                        callers = (
                            outside
                            if may_stop and choices.pick("callers continue", (True, False))
                            else inside
                        )
                        if self._kill_at == "time":
                            inside.start_soon(self._kill_later)
                        for agent in program.all_agents:
                            callers.start_soon(self._decide_approvals, agent, finished)
                        for number, event in finished.items():
                            callers.start_soon(
                                self._converse, agents[number % len(agents)], f"s{number}", event
                            )
                        for event in finished.values():
                            await event.wait()
                        inside.cancel_scope.cancel()
                if working.cancelled_caught:
                    world.record("stop", "the runtime stops")
                self.notes.is_stopping = True
            outside.cancel_scope.cancel()
        self.notes.is_stopping = False

    @asynccontextmanager
    async def _runtime(self) -> AsyncIterator[Program]:
        """Start a simulated process: load the program, open the journal and start the agents."""
        program = self._program = load_program(self.settings.program)
        wrapped = dict[int, None]()
        for agent in program.all_agents:
            agent.on_session(self._attach)
            for tool in agent.tools:
                if id(tool) not in wrapped:
                    wrapped[id(tool)] = None
                    self._wrap(tool, program)
        async with self.storage.open() as journal, open_runtime(journal=journal) as runtime:
            await _start(runtime, program.agents)
            yield program

    def _make_resolver(self) -> Callable[[AgentModels], dict[str, LLM]]:
        """Return the function that resolves the models of an agent, for all lives of the seed.

        It must not be patched within a life: a killed life never leaves its context managers.
        """
        if self.settings.uses_own_models:
            return AgentModels.resolve

        def resolve_models(models: AgentModels) -> dict[str, LLM]:
            chance = 0.0 if self.is_last else self.plan.chance["model"]
            return {role: RandomModel(self.world, role, self, chance) for role in models.named}

        return resolve_models

    async def _kill_later(self) -> None:
        await trio.sleep(10 ** (self.world.choices.fraction("kill after") * 5.5 - 3))
        self.world.kill("at a random moment")

    def _is_expected(self, error: BaseException) -> bool:
        """Return True if a simulated process may end with this error. The disk then prevented its start."""
        return not self.is_last and self.plan.chance["journal"] > 0 and bool(_only(error, JournalError))

    # --- tools and models ------------------------------------------------------------------------

    def _wrap(self, tool: Tool, program: Program) -> None:
        """Wrap a tool: record its runs, make some of them fail, and use its simulated function."""
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
                life=life.number,
                began_at=world.now,
            )
            story = self.story.session(context.agent, context.session_id)
            await trio.sleep(choices.pick(f"{name}: delay", (0, 0.001, 0.1, 3)))
            fault = ""
            if choices.happens(f"{name}: failure", fault_chance):
                fault = choices.pick(f"{name}: fault", ("before", "hang", "after"))
                world.record("tool fault", f"{tool.name} " + _FAULT_TEXTS[fault])
            if fault == "before":
                raise RuntimeError(f"{tool.name} failed")
            if fault == "hang":
                await trio.sleep(SLOW_SECONDS)
            world.check_alive(life)
            story.began.append(this)
            world.record(
                "tool", f"{tool.name} begins, in {context.session_id}", is_shown=tool.effect != "pure"
            )
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

        tool.execute = run  # type: ignore[method-assign] # until the end of the life
        self._wrapped.append(tool)

    async def on_request(self, agent: str, chat: ModelRequest) -> None:
        """Check a request to a simulated model; see `ModelObserver`."""
        self.world.record("request", f"{chat.session}: {len(chat.messages)} messages", is_shown=False)
        for problem in check_transcript(chat):
            self.wrong(f"a provider would refuse a request of {chat.session}: {problem}")
        self._kill_point("model")
        if self.world.life.is_dead:
            await self.world.wait_for_death()

    # --- handlers --------------------------------------------------------------------------------

    def _attach(self, session: Session) -> None:
        """Register handlers of a session that note its deliveries, for the checks at the end."""
        world, life, notes = self.world, self.world.life, self.notes
        story = self.story.session(session.agent_name, session.id)

        @session.on_tool_result
        def on_result(result: ToolResult) -> None:
            if world.is_alive(life):
                world.record(
                    "result",
                    f"{result.tool_name} in {session.id}: {result.status}",
                    is_shown=result.status != "success",
                )
                notes.results.setdefault((session.id, result.call_id), set()).add((result.id, result.status))

        @session.on_conversation
        def on_reply(reply: Reply) -> None:
            if world.is_alive(life):
                world.record("reply", f"{session.id} is answered: {reply.text!r}")
                story.replies.append(reply.text)

        @session.on_exception
        def on_failure(failure: Failure) -> None:
            if not world.is_alive(life):
                return
            world.record(
                "failure",
                f"{failure.message_id or session.id} fails: {failure.kind} ({type(failure.error).__name__})",
            )
            story.failures.append(failure.kind)
            if failure.kind == "internal":
                self.wrong(f"internal failure in {session.id}: {_innermost(failure.error)}")
            if not failure.may_continue and failure.kind != "handler":
                notes.final[failure.message_id] = failure.kind

    # --- callers ---------------------------------------------------------------------------------

    async def _decide_approvals(self, agent: Agent, finished: Mapping[int, trio.Event]) -> None:
        """Decide the open approvals of an agent at random times, some of them twice."""
        choices = self.world.choices
        while not all(event.is_set() for event in finished.values()):
            await trio.sleep(choices.pick("approver delay", (0.5, 5, 60, 900)))
            with suppress(ActgentError):
                for approval in await agent.approvals():
                    for _ in range(choices.pick("decisions", (1, 1, 2))):
                        decision: Decision = (
                            Approve() if choices.fraction("decision") < APPROVED else Reject("no")
                        )
                        self.world.record(
                            "approval",
                            f"{approval.tool_name} in {approval.session_id}: {type(decision).__name__}",
                        )
                        await agent.answer(approval.id, decision, by="approver")

    async def _converse(self, agent: Agent, session_id: str, finished: trio.Event) -> None:
        """Let two callers use one session, and one or two other tasks interrupt and close it."""
        try:
            session = await self._open_session(agent, session_id)
            if session is None:
                return
            async with trio.open_nursery() as nursery:
                for caller in range(2):
                    nursery.start_soon(self._call, agent, session, caller)
                for controller in range(0 if self.is_last else 1 + self._has_second_controller(session)):
                    nursery.start_soon(self._disturb, session, controller)
            if self.is_last:
                await self._finish_session(agent, session)
        finally:
            finished.set()

    def _has_second_controller(self, session: Session) -> bool:
        """Return True if a second task interrupts and closes a session.

        It may act at the same time as the first.
        """
        chance = self.plan.chance
        return bool(chance["interrupt"] or chance["close"]) and self.world.choices.happens(
            f"second controller of {session.id}", SECOND_CONTROLLER
        )

    async def _open_session(self, agent: Agent, session_id: str) -> Session | None:
        while True:  # noqa: ASYNC913 - each path waits
            try:
                return await agent.ensure_session("ada", session_id)
            except SessionClosed:
                if session_id not in self.notes.closing:
                    self.wrong(f"{session_id} is closed, but no caller has closed it")
                return None
            except NotRunning:
                return None
            except JournalError:
                await trio.sleep(1)

    async def _call(self, agent: Agent, session: Session, caller: int) -> None:
        choices = self.world.choices
        prefix = f"{session.id}-{caller}"
        for message_id, text in self.plan.messages.items():
            if not message_id.startswith(prefix) or message_id in self.notes.accepted:
                continue
            await trio.sleep(choices.pick(f"pause of {prefix}", (0, 0, 0.01, 1, 30)))
            while not await self._send(agent, session, message_id, text):  # noqa: ASYNC110 - a client retries
                await trio.sleep(choices.pick(f"retry of {prefix}", (0.1, 2)))

    async def _send(self, agent: Agent, session: Session, message_id: str, text: str) -> bool:
        """Send a message as a caller. Return True if it was accepted, or if it can never be accepted."""
        world, life, notes = self.world, self.world.life, self.notes
        self.story.session(agent.name, session.id).said[message_id] = text
        notes.sent[message_id] = session.id
        options, patience, waits = self._draw_options(message_id)
        shown = "".join(f", {name}={value}" for name, value in options.items())
        world.record("call", f"ada {'runs' if waits else 'says'} {text!r} in {session.id}{shown}")
        begun = notes.first_sent.setdefault(message_id, len(world.events))
        try:
            with trio.move_on_after(patience) as scope:
                if waits:
                    await agent.run(text, session=session, message_id=message_id)
                else:
                    await session.chat(text, message_id=message_id, **options)
        except (InboxFull, SessionBusy, NotRunning, JournalError) as error:
            world.record("call", f"not accepted: {type(error).__name__}")
            return False
        except Exception as error:  # noqa: BLE001 - the error of a turn, which may be any of the model's
            self._check_refusal(error, session, waits=waits)
            return True
        if scope.cancelled_caught:
            world.record("call", "the caller cancels")
            return waits
        if world.is_alive(life):
            notes.accepted[message_id] = session.id
            if not waits and not options:
                notes.order.append((begun, len(world.events), message_id, session.id))
        return True

    def _draw_options(self, message_id: str) -> tuple[dict[str, Any], float, bool]:
        """Draw the options of `chat()`.

        Also return the caller's patience in seconds, and True if the caller waits for the answer.
        """
        choices, chance = self.world.choices, self.plan.chance
        options: dict[str, Any] = {}
        patience = SLOW_SECONDS * 10
        if not self.is_last and choices.happens(f"priority of {message_id}", chance["priority"]):
            options = choices.pick(f"options of {message_id}", _MESSAGE_OPTIONS)
        if not self.is_last and choices.happens(f"cancelled call of {message_id}", chance["cancel"]):
            patience = choices.pick(f"patience of {message_id}", (0, 0.0001, 0.002, 0.1))
        return (
            options,
            patience,
            not options and choices.pick(f"waits for {message_id}", (True, False, False)),
        )

    def _check_refusal(self, error: Exception, session: Session, *, waits: bool) -> None:
        """Report a broken rule if no caller should receive this error of a call.

        A caller that waits receives the errors of the turn.
        """
        if isinstance(error, SessionClosed):
            if session.id not in self.notes.closing:
                self.wrong(f"{session.id} is closed, but no caller has closed it")
        elif not waits and not isinstance(error, Interrupted):
            self.wrong(f"chat() raised {error!r}")

    async def _disturb(self, session: Session, controller: int) -> None:
        """Interrupt messages at random times, also ones that have not arrived, and close the session.

        Some of these calls are cancelled.
        """
        world, choices, life, chance = self.world, self.world.choices, self.world.life, self.plan.chance
        name = f"controller {controller} of {session.id}"
        ids = [each for each in self.plan.messages if each.startswith(f"{session.id}-")]
        for _ in range(4):
            await trio.sleep(choices.pick(f"{name}: pause", (0, 0.002, 0.05, 1, 15)))
            patience = choices.pick(
                f"{name}: patience", (0, 0.0005, 0.02, SLOW_SECONDS, SLOW_SECONDS, SLOW_SECONDS)
            )
            if ids and choices.happens(f"{name}: interrupt", chance["interrupt"]):
                message_id = choices.pick(f"{name}: message", ids)
                world.record("interrupt", f"ada stops {message_id}")
                with suppress(ActgentError), trio.move_on_after(patience) as scope:
                    await session.interrupt(message_id=message_id)
                    if world.is_alive(life) and not scope.cancelled_caught:
                        self.notes.stopped.setdefault(message_id, world.now)
            elif choices.happens(f"{name}: close", chance["close"]):
                world.record("close", f"ada closes {session.id}")
                self.notes.closing.add(session.id)
                with suppress(ActgentError), trio.move_on_after(patience) as scope:
                    await session.aclose()
                    if world.is_alive(life) and not scope.cancelled_caught:
                        self.notes.closed.add(session.id)
                return

    async def _finish_session(self, agent: Agent, session: Session) -> None:
        """Wait until the session has no work left. Approve all pending approvals."""
        with trio.move_on_after(LAST_LIFE_SECONDS) as scope:
            while True:
                await session.wait_idle()
                if not session.approvals:
                    await trio.sleep(50)
                    await session.wait_idle()
                    if not session.approvals:
                        return
                for approval in session.approvals:
                    with suppress(ActgentError):
                        await agent.answer(approval.id, Approve(), by="approver")
        if scope.cancelled_caught:
            self.wrong(f"{session.id} still has work after {LAST_LIFE_SECONDS:g} s in which nothing failed")

    # --- the end ---------------------------------------------------------------------------------

    async def _read_journal(self) -> None:
        async with self.storage.open() as journal:
            await journal.acquire()
            for summary in await journal.sessions():
                session = self.story.session(summary.agent, summary.session_id)
                session.records = await journal.load(summary.session_id, agent=summary.agent)
                if summary.closed:
                    self.notes.closed_in_journal.add(summary.session_id)

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
            for problem in check_run(story, self.notes, effects):
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


_COUNTDOWNS = {
    "write": (1, 2, 3, 4, 5, 6, 8, 11, 15, 20),
    "effect": (1, 1, 1, 2, 3),
    "model": (1, 1, 2, 2, 3, 4, 6),
}
"""Number of events of a kind at which a life is killed. Most lives end before high numbers, so these are rare."""
_MESSAGE_OPTIONS: tuple[dict[str, Any], ...] = (
    {"priority": "urgent"},
    {"priority": "low"},
    {"on_busy": "collect"},
    {"on_busy": "interrupt"},
    {"on_busy": "reject"},
)
_FAULT_TEXTS = {"before": "fails before its effect", "hang": "hangs", "after": "fails after its effect"}


async def _start(runtime: Runtime, agents: Sequence[Agent]) -> None:
    """Start the agents in the order of the program.

    Agents that another agent has started as its companion are skipped.
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
    """Describe the first exception of an exception group, with the line of code that raised it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (each for each in reversed(frames) if "/actgent/" in each.filename), frames[-1] if frames else None
    )
    where = "" if place is None else f" at {place.filename.rpartition('/actgent/')[2]}:{place.lineno}"
    return f"{error!r}{where}"
