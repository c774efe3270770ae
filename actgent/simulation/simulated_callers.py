"""Callers of a simulated program: clients, approvers and operators who use its sessions at random times.

Each call may be cancelled, or meet the stop of its agent. A caller notes the outcome of its call only if the simulated process
was alive on return, because only then did the caller receive it.
"""

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.approvals import Approval, Approve, Decision, Reject
from actgent.errors import (
    ActgentError,
    ConfigurationError,
    InboxFull,
    Interrupted,
    JournalError,
    NotRunning,
    SessionBusy,
    SessionClosed,
    SessionExists,
    SessionNotFound,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.limits_and_schedules.limits import Limits
from actgent.runtime.runtime import Runtime
from actgent.sessions.session_context import host_of

from .caller_observations import COPY_PREFIX, TASK_PREFIX, CallerObservations, ObservationKind
from .fault_and_workload_plan import FaultKind, SeedPlan, call_kinds
from .random_model import SLOW_SECONDS
from .run_report import Story
from .simulated_program import Program
from .simulated_world import START, World

LAST_LIFE_SECONDS = 1_000_000.0
"""Simulated time after which the last simulated process, in which nothing fails, must have finished all work."""
SECOND_CONTROLLER = 0.5
"""Share of the simulated processes of a session in which two callers interrupt and close it."""
LATE_SECONDS = (50, 6000)
"""Times after the start of a simulated process at which some sessions are used first. Before, work in them resumes by itself."""
APPROVED = 0.67
"""Fraction of the approval decisions that approve the call."""
ENQUEUE_SECONDS = 5.0
"""Time limit of `chat()` in seeds with slow writes."""
MAX_CALL_SECONDS = 10_000.0
"""Maximum duration of a call that does not wait for an answer. Slow writes take minutes."""
SUPERSEDED_SECONDS = 20.0
"""Time after which an urgent message has ended a suspended turn."""
FAILURE_SECONDS = 1.0
"""Time after a failure of the journal in which the calls that it affects return."""
DEADLINE_SECONDS = 100.0
"""Remaining time of an approval below which some approvers decide as it expires."""
ACTIVE_APPROVER = 0.01
"""Factor by which active approvers wait shorter than others."""
MAX_BACKOFF = 16
"""Maximum factor by which approvers without approvals wait longer."""
_SHORT_SECONDS = (0, 0.0001, 0.002, 0.1)
"""Times after which calls are cancelled."""
CLOSE_CONTINUES = "close continues"
"""Moment at which the call of a close has failed or was cancelled, and the close continues in the background."""
_MOMENTS = ("before write", "after write")
"""Moments at which calls are cancelled and other calls begin: most wrong orders are visible only there."""
_RARELY = (True, False, False, False)
_MESSAGE_OPTIONS: tuple[dict[str, Any], ...] = (
    {"priority": "urgent"},
    {"priority": "low"},
    {"on_busy": "collect"},
    {"on_busy": "interrupt"},
    {"on_busy": "reject"},
)
_RETRIED = (InboxFull, SessionBusy, NotRunning, JournalError, SessionNotFound)
"""Errors after which a client sends its message again. The session is not found if its agent was restarted."""
EXPECTED_ERRORS = (JournalError, NotRunning, SessionClosed, SessionNotFound)
"""Errors that calls may raise under faults, except the errors of turns."""


@attrs.frozen(eq=False)
class RunningCall:
    """A call of a caller that has not returned yet."""

    name: str


class Callers:
    """All callers of one simulated process of the program."""

    def __init__(
        self,
        world: World,
        plan: SeedPlan,
        story: Story,
        notes: CallerObservations,
        *,
        program: Program,
        runtime: Runtime,
        is_last: bool,
        report: Callable[[str], None],
        note_stored: Callable[[ObservationKind, str, str, str], None],
        on_return: Callable[[], None],
        last_failure: Callable[[], float],
    ) -> None:
        """Create the callers of one simulated process. `is_last` is True for the last process, in which nothing may fail.

        `report` receives a description of each broken rule.
        `note_stored` gets the kind, the name, the agent and the session of each observation whose record must be stored.
        `on_return` is called after each call that has returned. It may kill the simulated process. `last_failure` returns the
        time of the last failure of the journal.
        """
        self.world, self.plan, self.story, self.notes = world, plan, story, notes
        self._program, self._runtime = program, runtime
        self._is_last, self._report, self._on_return = is_last, report, on_return
        self._note_stored, self._last_failure = note_stored, last_failure
        self._life = world.life
        self._chance: dict[FaultKind, float] = dict.fromkeys(plan.chance, 0.0) if is_last else plan.chance
        self._settles = not (is_last or plan.chance["restart"]) and world.choices.pick(
            "life settles", _RARELY
        )
        """True if the callers of this simulated process also wait until all work is done, as in the last simulated process."""
        notes.in_flight.clear()
        self._deciding: dict[str, list[float]] = {}
        """Times at which running decisions of approvals began, by approval id."""
        self.running_calls: dict[RunningCall, None] = {}
        """Calls that have not returned, oldest first."""
        self.restarting: set[str] = set()
        """Names of the agents that are stopped, and not started again yet."""
        self._opening: dict[str, int] = {}
        """Number of running calls that open a session, by session id."""

    @property
    def _is_alive(self) -> bool:
        return self.world.is_alive(self._life)

    def _happens(self, name: str, kind: FaultKind) -> bool:
        """Draw if the event `name` of a kind of fault happens."""
        return bool(self._chance[kind]) and self.world.choices.happens(name, self._chance[kind])

    @contextmanager
    def _ignoring_errors(self, call: str, *others: type[ActgentError]) -> Iterator[None]:
        """Context manager: ignore the errors that faults may cause in its block. Report other errors of actgent."""
        try:
            yield
        except ActgentError as error:
            if not isinstance(error, (*EXPECTED_ERRORS, *others)) and self._is_alive:
                self._report(f"{call} raised {error!r}")

    @asynccontextmanager
    async def _patience(
        self, kind: str, name: str, options: tuple[float, ...] = _SHORT_SECONDS, *, is_long: bool = False
    ) -> AsyncIterator[trio.CancelScope]:
        """Async context manager for a caller's call. In seeds with cancelled calls, it cancels its block at a drawn moment.

        The moment is some time after the begin, or before or after a write to the journal.
        """
        choices = self.world.choices
        limit = SLOW_SECONDS * 10 if is_long else MAX_CALL_SECONDS
        seconds, moment, countdown = limit, "", 0
        if self._happens(f"{name}: cancelled", "cancel"):
            moment = choices.pick(f"{name}: cancelled at", ("", *_MOMENTS))
            if moment:
                countdown = choices.pick(f"{name}: cancelled at write", (1, 1, 1, 2, 3))
            else:
                seconds = choices.pick(f"{name}: patience", options)
        with (
            self._note_running(name),
            self.world.running_call(kind),
            trio.move_on_after(seconds) as scope,
            self._at_moment(moment, countdown, scope.cancel),
        ):
            yield scope
        if scope.cancelled_caught and not is_long and not moment and seconds == limit:
            self._report(f"{name} took more than {limit:g} s")
        self._on_return()
        if scope.cancelled_caught:
            self.world.record("cancel", f"{name}: the caller cancels", is_shown=False)
            self.world.note_moment("cancelled")

    @contextmanager
    def _note_running(self, name: str) -> Iterator[None]:
        """Context manager: list a call in `running_calls` while its block runs."""
        call = RunningCall(name)
        self.running_calls[call] = None
        try:
            yield
        finally:
            del self.running_calls[call]

    @contextmanager
    def _at_moment(self, moment: str, countdown: int, fn: Callable[[], object]) -> Iterator[None]:
        """Context manager: call `fn` when `moment` occurs for the `countdown`-th time in its block.

        An empty moment never occurs.
        """
        left = countdown

        def watch(name: str) -> None:
            nonlocal left
            if name == moment:
                left -= 1
                if not left:
                    fn()

        if not moment:
            yield
            return
        with self.world.watching(watch):
            yield

    async def _pause(self, name: str, options: tuple[float, ...]) -> None:
        """Wait for a drawn time of `options` in seconds, a write to the journal, or the start of another caller's call."""
        choices = self.world.choices
        seconds = choices.pick(name, options)
        moment = choices.pick(f"{name}: until", ("", "", "begin", *_MOMENTS))
        if moment == "begin":
            moment = f"begin {choices.pick(f'{name}: until begin of', call_kinds(self.plan))}"
        if not moment:
            await trio.sleep(seconds)
            return
        has_come = trio.Event()
        with (
            trio.move_on_after(max(options)),
            self._at_moment(moment, choices.pick(f"{name}: writes", (1, 1, 2, 4)), has_come.set),
        ):
            await has_come.wait()

    # --- sessions ---------------------------------------------------------------------------------

    async def use_session(self, agent: Agent, session_id: str, finished: trio.Event) -> None:
        """Run all callers of one session: two clients, and callers that interrupt, close, schedule, delegate, copy and delete."""
        try:
            if self._life.number > 1 and self.world.choices.pick(f"{session_id} is used late", _RARELY):
                await trio.sleep(self.world.choices.pick(f"{session_id} is used after", LATE_SECONDS))
            session = await self._open(agent, session_id)
            if session is None:
                return
            async with trio.open_nursery() as nursery:
                for caller in range(2):
                    nursery.start_soon(self._send_messages, agent, session_id, caller)
                if not self._is_last:
                    for controller in range(1 + self._has_second_controller(session_id)):
                        nursery.start_soon(self._control, agent, session_id, controller)
                    other_calls: dict[FaultKind, Callable[[Agent, str], Awaitable[None]]] = {
                        "schedule": self._schedule,
                        "task": self._delegate,
                        "fork": self._fork,
                        "erase": self._erase,
                        "annotate": self._annotate,
                    }
                    for kind, fn in other_calls.items():
                        if self._chance[kind]:
                            nursery.start_soon(fn, agent, session_id)
            if not (self._is_last or self._settles):
                return
            with nullcontext() if self._is_last else suppress(ActgentError):
                if (session := await self._open(agent, session_id)) is not None:
                    await self._finish(session)
        finally:
            finished.set()

    def _has_second_controller(self, session_id: str) -> bool:
        """Return True if two tasks interrupt and close this session, possibly at the same time."""
        return bool(self._chance["interrupt"] or self._chance["close"]) and self.world.choices.happens(
            f"second controller of {session_id}", SECOND_CONTROLLER
        )

    async def _open(self, agent: Agent, session_id: str) -> Session | None:
        """Open or create a session. Return None if it is closed, or if the program stops."""
        notes = self.notes
        limit = notes.limits.get(session_id)
        while True:  # noqa: ASYNC913 - each path waits
            notes.open_counts[session_id] = notes.open_counts.get(session_id, 0) + 1
            self._opening[session_id] = self._opening.get(session_id, 0) + 1
            try:
                session = await agent.ensure_session(
                    "ada", session_id, limits=None if limit is None else Limits(model_calls=limit)
                )
            except SessionClosed:
                self._check_closed(session_id)
                return None
            except (NotRunning, SessionNotFound):
                if not self._chance["restart"]:
                    return None
                await trio.sleep(1)
            except JournalError:
                await trio.sleep(1)
            else:
                notes.deleted_sessions.discard(session_id)
                return session
            finally:
                self._opening[session_id] -= 1

    def _check_closed(self, session_id: str) -> None:
        if session_id not in self.notes.closing:
            self._report(f"{session_id} is closed, but no caller has closed it")

    async def _finish(self, session: Session) -> None:
        """Wait until the session has no work and no schedules left. Approve all pending approvals."""
        with trio.move_on_after(LAST_LIFE_SECONDS) as scope:
            while True:
                await session.wait_idle()
                if not session.approvals:
                    await trio.sleep(50)
                    await session.wait_idle()
                    if not (session.approvals or session.schedules or await self._has_open_tasks(session)):
                        return
                for approval in session.approvals:
                    try:
                        await session.answer(approval, Approve(), by="approver")
                    except (
                        NotRunning
                    ):  # the runtime has closed; the next simulated process resumes the session
                        return
                    except ActgentError:
                        pass
                await trio.sleep(0.01)
        if scope.cancelled_caught:
            self._report(f"{session.id} still has work after {LAST_LIFE_SECONDS:g} s in which nothing failed")

    async def _has_open_tasks(self, session: Session) -> bool:
        """Return True if a descendant of a session has work or timers left. It may be only in the journal."""
        found = await self._runtime.sessions(limit=1000)
        known, below = {session._context.key}, set[SessionKey]()
        while below != known:
            below = known
            known = below | {each.key for each in found if each.parent in below}
        descendants = (each for each in found if each.key in below and each.parent is not None)
        return any(each.unfinished or (each.due > 0 and not each.closed) for each in descendants)

    # --- messages ---------------------------------------------------------------------------------

    async def _send_messages(self, agent: Agent, session_id: str, caller: int) -> None:
        notes = self.notes
        prefix = f"{session_id}-{caller}"
        for message_id in self.plan.messages:
            if (
                not message_id.startswith(prefix)
                or message_id in notes.erased_messages
                or message_id in notes.abandoned_messages
            ):
                continue
            copies = 1
            if message_id in notes.accepted:
                copies = int(self._happens(f"repeat of {message_id}", "repeat"))
            elif self._happens(f"two calls of {message_id}", "repeat"):
                copies = 2
            if copies:
                await self._pause(f"pause of {prefix}", (0, 0, 0.01, 1, 30))
            async with trio.open_nursery() as nursery:
                for copy in range(copies):
                    nursery.start_soon(self._send_until_accepted, agent, session_id, message_id, copy)

    async def _send_until_accepted(self, agent: Agent, session_id: str, message_id: str, copy: int) -> None:
        name = f"retry of {message_id.rpartition('-')[0]}" if not copy else f"copy of {message_id}"
        while message_id not in self.notes.erased_messages:
            era = self.notes.era(session_id)
            session = await self._open(agent, session_id)
            if (
                session is None or message_id in self.notes.erased_messages
            ):  # it may have been deleted in the meantime
                return
            if (
                await self._send(agent, session, message_id, era)
                or message_id in self.notes.abandoned_messages
            ):
                return
            await trio.sleep(self.world.choices.pick(name, (0.1, 2)))

    async def _send(  # noqa: C901, PLR0912 - one branch for each outcome of the call
        self, agent: Agent, session: Session, message_id: str, era: int
    ) -> bool:
        """Send a message as a caller. Return True if the message was accepted, or if it can never be accepted.

        `era` is the number of beginnings and ends of deletions of the session before the caller opened it.
        """
        world, notes, text = self.world, self.notes, self.plan.messages[message_id]
        self.story.session(agent.name, session.id).said[message_id] = text
        notes.sent[message_id] = session.id
        options, waits = self._draw_options(message_id, session)
        shown = "".join(f", {name}={value}" for name, value in options.items())
        world.record("call", f"ada {'runs' if waits else 'says'} {text!r} in {session.id}{shown}")
        is_new = message_id not in notes.first_sent
        begun = notes.first_sent.setdefault(message_id, len(world.events))
        notes.abandoned_messages.pop(message_id, None)
        started = world.now
        notes.note_sending(message_id)
        if self._chance["slow"] and not waits:
            options["enqueue_timeout"] = ENQUEUE_SECONDS
        open_before = {each.id for each in session.approvals if each.session_id == session.id}
        notes.in_flight[message_id] += 1
        is_first = notes.in_flight[message_id] == 1
        try:
            async with self._patience("message", f"call of {message_id}", is_long=True) as scope:
                if waits:
                    await agent.run(text, session=session, message_id=message_id)
                else:
                    await session.chat(text, message_id=message_id, **options)
        except _RETRIED as error:
            world.record("call", f"not accepted: {type(error).__name__}")
            if is_first:
                self._check_duration(session.id, started, options)
            if not isinstance(error, JournalError | SessionNotFound):
                self._give_up(message_id, session.id, era, is_certain=True)
            return False
        except Exception as error:  # noqa: BLE001 - the error of a turn, which may be any of the model's
            self._check_refusal(error, session.id, waits=waits)
            return True
        finally:
            notes.in_flight -= Counter([message_id])
        if scope.cancelled_caught:
            world.record("call", "the caller cancels")
            if not waits:
                self._give_up(message_id, session.id, era, is_certain=False)
            return waits
        if is_first:  # a repetition also waits for the first call
            self._check_duration(session.id, started, options)
        if is_new and options.get("priority") == "urgent":  # a repetition keeps the first priority
            await self._check_superseded(session, message_id, open_before)
        if self._is_alive and notes.is_valid(session.id, era):
            notes.accepted[message_id] = session.id
            self._note_stored("acceptance", message_id, agent.name, session.id)
            if not waits and not options:
                notes.chat_calls.append((begun, len(world.events), message_id, session.id))
        return True

    async def _check_superseded(self, session: Session, message_id: str, open_before: set[str]) -> None:
        """Report approvals of a suspended turn that are still open some time after an urgent message was accepted.

        `open_before` are the ids of the approvals that were open before the call that sent the message. A message that was
        interrupted ends no turn.
        """
        if not open_before or message_id in self.notes.interrupting:
            return
        if self._chance["slow"] or self._chance["restart"]:
            return
        began = self.world.now
        await trio.sleep(SUPERSEDED_SECONDS)
        if began - SUPERSEDED_SECONDS < self._last_failure():
            return
        with suppress(ActgentError):
            self._runtime._check_open()
            if open_before & {each.id for each in session.approvals} and self._is_alive:
                self._report(f"an urgent message did not end the suspended turn of {session.id}")

    def _give_up(self, message_id: str, session_id: str, era: int, *, is_certain: bool) -> None:
        """Draw if a client never sends a message again whose call was refused or cancelled, and record this.

        `is_certain` is False if a crash may restore the message.
        """
        notes = self.notes
        if (
            self._is_alive
            and not notes.in_flight[message_id]
            and message_id not in notes.accepted
            and notes.is_valid(session_id, era)
            and self._happens(f"{message_id} is given up", "cancel")
        ):
            self.world.record("call", f"ada gives {message_id} up")
            notes.abandoned_messages[message_id] = (self.world.now, self._life.number, is_certain)

    def _draw_options(self, message_id: str, session: Session) -> tuple[dict[str, Any], bool]:
        """Draw the options of `chat()`. Also return True if the caller waits for the answer.

        Half of the messages to a suspended turn that have options are urgent.
        """
        options: dict[str, Any] = {}
        if self._happens(f"priority of {message_id}", "priority"):
            urgent = _MESSAGE_OPTIONS[:1] * (len(_MESSAGE_OPTIONS) if session.approvals else 0)
            options = dict(self.world.choices.pick(f"options of {message_id}", _MESSAGE_OPTIONS + urgent))
        waits = not options and self.world.choices.pick(f"waits for {message_id}", (True, False, False))
        return options, waits

    def _check_refusal(self, error: Exception, session_id: str, *, waits: bool) -> None:
        """Report a broken rule if `chat()` or `send()` must not raise this error in this state of the session.

        `waits` is True if the caller waits for the answer, and therefore also receives the errors of the turn.
        """
        if isinstance(error, SessionClosed):
            self._check_closed(session_id)
        elif not waits and not isinstance(error, Interrupted):
            self._report(f"chat() raised {error!r}")

    def _check_duration(self, session_id: str, started: float, options: Mapping[str, Any]) -> None:
        """Report a problem if a call of `chat()` took longer than its time limit."""
        limit = options.get("enqueue_timeout")
        seconds = self.world.now - started
        if limit is not None and seconds > limit + 1:
            self._report(f"chat(enqueue_timeout={limit:g}) in {session_id} took {seconds:g} s")

    # --- interrupting and closing -----------------------------------------------------------------

    async def _control(self, agent: Agent, session_id: str, controller: int) -> None:
        """Interrupt messages at random times, even messages that have not arrived yet, or close the session.

        Some of these calls are cancelled.
        """
        world, choices = self.world, self.world.choices
        name = f"controller {controller} of {session_id}"
        ids = [each for each in self.plan.messages if each.startswith(f"{session_id}-")]
        for _ in range(4):
            await self._pause(f"{name}: pause", (0, 0.002, 0.05, 1, 15))
            era = self.notes.era(
                session_id
            )  # before the open: the handle may be of a session that is deleted later
            if ids and self._happens(f"{name}: interrupt", "interrupt"):
                if (session := await self._open(agent, session_id)) is None:
                    return
                message_id = choices.pick(f"{name}: message", (*ids, ""))
                async with trio.open_nursery() as nursery:
                    for _ in range(choices.pick(f"{name}: interrupts", (1, 1, 2))):
                        nursery.start_soon(self._interrupt, session, message_id, era)
            elif self._happens(f"{name}: close", "close"):
                if (session := await self._open(agent, session_id)) is None:
                    return
                world.record("close", f"ada closes {session_id}")
                await self._close(session, era)
                return
            elif self._happens(f"{name}: child", "interrupt"):
                await self._interrupt_child(name)
            else:
                await self._wait_idle(agent, session_id)

    async def _interrupt_child(self, name: str) -> None:
        """Stop all work of a child session, as an operator does."""
        with self._ignoring_errors("interrupt() of a child session"):
            found = await self._runtime.sessions(limit=1000)
            if not (children := [each for each in found if each.parent is not None and not each.closed]):
                return
            child = self.world.choices.pick(f"{name}: which child", children)
            agent = next(each for each in self._program.all_agents if each.name == child.agent)
            self.world.record("interrupt", f"ada stops all messages of {child.session_id}")
            async with self._patience("interrupt", f"interrupt of {child.session_id}"):
                session = await agent.open_session(child.session_id)
                await session.interrupt(drop_queued=True)

    async def _interrupt(self, session: Session, message_id: str, era: int) -> None:
        """Stop a message of a session; if the id is empty, stop the running turn and all queued messages."""
        world, notes = self.world, self.notes
        world.record("interrupt", f"ada stops {message_id or 'all messages'} of {session.id}")
        notes.interrupting.add(message_id)
        known = [each for each, where in notes.accepted.items() if where == session.id]
        dropped = [each for each in known if not notes.in_flight[each]]
        with self._ignoring_errors(f"interrupt() of {session.id}"):
            async with self._patience("interrupt", f"interrupt of {session.id}"):
                if message_id:
                    await session.interrupt(message_id=message_id)
                else:
                    await session.interrupt(drop_queued=True)
                if self._is_alive and notes.is_valid(session.id, era):
                    if message_id:
                        notes.interrupted_at.setdefault(message_id, world.now)
                        self._note_stored("interrupt", message_id, session.agent_name, session.id)
                    for each in () if message_id else dropped:
                        notes.dropped_at.setdefault(each, world.now)

    async def _close(self, session: Session, era: int) -> None:
        notes = self.notes
        notes.closing.add(session.id)
        is_known = continues = True
        try:
            async with self._patience("close", f"close of {session.id}"):
                await session.aclose()
                if self._is_alive and notes.is_valid(session.id, era):
                    notes.closed.add(session.id)
                    self._note_stored("close", session.id, session.agent_name, session.id)
                continues = False
        except ActgentError as error:
            is_known = continues = isinstance(error, JournalError)
            host = host_of(session._context)
            is_running = (
                not (host.is_stopping or host.has_stopped) and session.agent_name in self._runtime.agents
            )
            if isinstance(error, NotRunning) and self._is_alive and is_running:
                self._report(f"aclose() of {session.id} raised {error!r}, but its agent is running")
        if is_known and self._is_alive and notes.is_valid(session.id, era):
            notes.close_processes.setdefault(session.id, self._life.number)
        if continues and self._is_alive:
            self.world.note_moment(CLOSE_CONTINUES)

    async def _wait_idle(self, agent: Agent, session_id: str) -> None:
        """Wait until a session is idle. Report a problem if a decision about one of its approvals is not in the journal then."""
        with (
            self._note_running(f"wait_idle() of {session_id}"),
            self._ignoring_errors(f"wait_idle() of {session_id}"),
            trio.move_on_after(SLOW_SECONDS) as scope,
        ):
            session = await agent.open_session(session_id)
            await session.wait_idle()
            if scope.cancel_called or not self._is_alive or self.plan.evicts:  # an evicted session is idle
                return
            if self.world.now < self._last_failure() + FAILURE_SECONDS:  # a failed decision is open again
                return
            own = [each.id for each in session.approvals if each.session_id == session_id]  # not of its tasks
            running = [self._deciding.get(each, []) for each in own]
            if running and all(len(each) == 1 and each[0] < self.world.now for each in running):
                self._report(f"wait_idle() of {session_id} returned while its approvals were being decided")

    # --- approvals --------------------------------------------------------------------------------

    async def decide_approvals(self, agent: Agent, finished: Mapping[int, trio.Event]) -> None:
        """Decide the open approvals of an agent at random times, some of them by two approvers at once."""
        choices = self.world.choices
        is_active, factor = bool(self._chance["approver"]), 1.0
        if is_active:
            factor = ACTIVE_APPROVER
        elif not (self._is_last or self._settles) and choices.pick("approvers are absent", _RARELY):
            return
        backoff = 1
        while not all(event.is_set() for event in finished.values()):
            await self._pause("approver delay", tuple(factor * backoff * each for each in (0.5, 5, 60, 900)))
            decided = set(self.notes.decisions)
            found: tuple[Approval, ...] = ()
            with self._ignoring_errors("approvals()"):
                found = await agent.approvals()
            backoff = 1 if found else min(2 * backoff, MAX_BACKOFF)
            async with trio.open_nursery() as nursery:
                for approval in found:
                    if approval.id in decided and self._is_alive:
                        self._report(f"the approval {approval.id} is open, although answer() has returned")
                    left = approval.deadline - START - self.world.now
                    if 0 < left < DEADLINE_SECONDS and choices.pick(
                        "decision at the deadline", (True, False)
                    ):
                        await trio.sleep(
                            max(0.0, left - choices.pick("before the deadline", (0, 0.0005, 0.01, -0.002)))
                        )
                    for _ in range(choices.pick("decisions", (1, 1, 2))):
                        nursery.start_soon(self._decide, agent, approval)
                    if not self._is_last and choices.pick("waiter during a decision", (True, False, False)):
                        await trio.sleep(choices.pick("waiter: pause", (0.0001, 0.001, 0.01)))
                        nursery.start_soon(self._wait_idle, agent, approval.session_id)

    async def _decide(self, agent: Agent, approval: Approval) -> None:
        world, notes = self.world, self.notes
        await trio.sleep(world.choices.pick("decision delay", (0, 0, 0.0005, 0.01)))
        decision: Decision = Approve() if world.choices.fraction("decision") < APPROVED else Reject("no")
        name, era = type(decision).__name__, notes.era(approval.session_id)
        waits = world.choices.pick("the approver waits for the answer", _RARELY)
        world.record("approval", f"{approval.tool_name} in {approval.session_id}: {name}")
        begun = self._deciding.setdefault(approval.id, [])
        # A session that is being loaded receives the decision at an unknown time.
        is_loaded = self._runtime._find_session(SessionKey(agent.name, approval.session_id)) is not None
        is_loaded = is_loaded and approval.session_id not in self._runtime.agents.pending_opens_of(agent.name)
        begun.append(world.now if is_loaded else math.inf)
        try:
            async with self._patience(
                "decision", f"decision of {approval.session_id}", is_long=waits
            ) as scope:
                if waits:
                    await agent.resume({approval.id: decision}, by="approver")
                else:
                    await agent.answer(approval.id, decision, by="approver")
        except ActgentError:
            begun[:] = [world.now] * len(begun)  # another decision has waited for this one, and begins now
            return
        finally:
            begun.pop()
        if self._is_alive and not scope.cancelled_caught and notes.is_valid(approval.session_id, era):
            notes.decisions.setdefault(approval.id, []).append((approval.session_id, approval.call_id, name))
            self._note_stored("decision", approval.id, agent.name, approval.session_id)

    # --- schedules and tasks ----------------------------------------------------------------------

    async def _schedule(self, agent: Agent, session_id: str) -> None:
        """Set schedules, and remove some of them, including schedules from earlier simulated processes."""
        choices = self.world.choices
        for number in range(2):
            name = f"schedule {number} of {session_id}"
            await self._pause(f"{name}: pause", (0, 0.05, 2))
            await self._repeat_or_remove_schedule(agent, session_id, name)
            if not self._happens(name, "schedule"):
                continue
            if (session := await self._open(agent, session_id)) is None:
                return
            text = f"timer {number} of life {self._life.number} of {session_id}"
            after = choices.pick(f"{name}: after", (0.0001, 0.01, 0.05, 1, 60, 5000))
            self.world.record("schedule", f"ada sets {text} after {after:g} s")
            set_up = await self._note(
                text, session_id, partial(session.schedule, text, after=after, key=text)
            )
            if set_up is not None:
                self.notes.schedule_ids[text] = set_up.id
                if not self.plan.inbox:  # a full inbox delays the message
                    self.notes.schedule_times[text] = (set_up.at - START, self.world.now)
            if set_up is not None and self._happens(f"{name}: removal", "schedule"):
                await self._pause(f"{name}: removal after", (0, 0.01, 1))
                self.world.record("schedule", f"ada removes {text}")
                await self._note(text, session_id, partial(session.unschedule, set_up.id), begins="removing")

    async def _repeat_or_remove_schedule(self, agent: Agent, session_id: str, name: str) -> None:
        """Set a schedule of an earlier simulated process again, which has no effect, or remove it."""
        notes, choices = self.notes, self.world.choices
        known = [text for text in notes.schedule_ids if notes.timed_states[text] == (session_id, "set")]
        if not known or not self._happens(f"{name}: earlier one", "schedule"):
            return
        if (session := await self._open(agent, session_id)) is None:
            return
        text = choices.pick(f"{name}: which", known)
        if notes.timed_states[text] != (session_id, "set"):  # it was removed in the meantime
            return
        if choices.pick(f"{name}: repeat", (True, False)):
            self.world.record("schedule", f"ada sets {text} again")
            with suppress(ActgentError):
                async with self._patience("schedule", f"repeat of {text}"):
                    await session.schedule(text, after=1, key=text)
            return
        self.world.record("schedule", f"ada removes {text}")
        await self._note(
            text, session_id, partial(session.unschedule, notes.schedule_ids[text]), begins="removing"
        )

    async def _delegate(self, agent: Agent, session_id: str) -> None:
        """Delegate tasks of a session to another agent, some by two callers at once, and cancel some tasks."""
        choices = self.world.choices
        others = [each.name for each in self._program.all_agents if each is not agent]
        for number in range(2 if others else 0):
            name = f"task {number} of {session_id}"
            await self._pause(f"{name}: pause", (0, 0.05, 2))
            earlier = [
                each
                for each, (known, state) in self.notes.timed_states.items()
                if known == session_id and state == "set" and each.startswith(TASK_PREFIX)
            ]
            if earlier and self._happens(f"{name}: earlier one", "task"):
                await self._cancel_task(agent, session_id, choices.pick(f"{name}: which", earlier))
            if not self._happens(name, "task") or (session := await self._open(agent, session_id)) is None:
                continue
            task = f"{TASK_PREFIX}{session_id}-{self._life.number}{number}"
            deadline = choices.pick(f"{name}: deadline", (3600.0, 3600.0, 1.0, 20.0))
            other = choices.pick(f"{name}: agent", others)
            self.world.record("task", f"ada gives {task} to {other}")
            call = partial(session.delegate, other, "do it", task_id=task, deadline=deadline)
            given = await self._note(task, session_id, call)
            if given is not None and self._happens(f"{name}: removal", "task"):
                await self._pause(f"{name}: removal after", (0, 0.5, 5))
                await self._cancel_task(agent, session_id, task)

    async def _cancel_task(self, agent: Agent, session_id: str, task: str) -> None:
        session = await self._open(agent, session_id)
        if session is None or self.notes.timed_states[task] != (session_id, "set"):
            return
        self.world.record("task", f"ada cancels {task}")
        await self._note(task, session_id, partial(session.cancel_task, task), begins="removing")

    async def _note(
        self, key: str, session_id: str, call: Callable[[], Awaitable[Any]], *, begins: str = "setting"
    ) -> Any:
        """Make a call that sets or removes a schedule or a task, and record the outcome of the call.

        Return the result of the call; None if it failed or was cancelled. `key` is the text of the schedule or the id of the
        task, and `begins` the recorded state during the call.
        """
        notes, era = self.notes, self.notes.era(session_id)
        notes.timed_states[key] = (session_id, begins)
        state, result = begins, None
        try:
            async with self._patience("task" if key.startswith(TASK_PREFIX) else "schedule", key) as scope:
                result = await call()
        except JournalError:
            if begins == "setting":
                state = "failed"
            elif not key.startswith(TASK_PREFIX):
                state = "kept"
        except ActgentError:
            pass
        else:
            if scope.cancelled_caught:
                state = "cancelled" if begins == "setting" and not key.startswith(TASK_PREFIX) else begins
            else:
                state = "set" if begins == "setting" else "removed" if result else "sent"
        if not self._is_alive:
            return None
        notes.timed_states[key] = (session_id, state if notes.is_valid(session_id, era) else "unknown")
        if begins == "removing" or state in ("failed", "cancelled"):
            notes.removal_ends[key] = (self.world.now, self._life.number)
        return result

    # --- copies and erasure -----------------------------------------------------------------------

    async def _fork(self, agent: Agent, session_id: str) -> None:
        """Copy a session under one new id by two callers at once."""
        name, done = f"copy of {session_id}", list[str]()
        await self._pause(f"{name}: pause", (0, 0.05, 2, 60))
        if not self._happens(name, "fork"):
            return
        new_id = f"{COPY_PREFIX}{session_id}-{self._life.number}"
        self.world.record("fork", f"two callers copy {session_id}")

        async def fork() -> None:
            with self._ignoring_errors("fork()", SessionExists):
                async with self._patience("fork", name) as scope:
                    await self._runtime.fork(session_id, agent=agent.name, new_id=new_id)
                if not scope.cancelled_caught:
                    done.append(new_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fork)
            nursery.start_soon(fork)
        if len(done) > 1 and self._is_alive:
            self._report(f"two calls of fork() returned for the new id {new_id}")

    async def _erase(self, agent: Agent, session_id: str) -> None:
        """Delete a session. Other callers may use the session at the same time, and create it again afterwards."""
        name, notes = f"erasure of {session_id}", self.notes
        await self._pause(f"{name}: pause", (0, 0.01, 0.5, 3, 30))
        if not self._happens(name, "erase"):
            return
        self.world.record("erase", f"ada deletes {session_id}")
        notes.begin_erasure(session_id)
        opened = None if self._opening.get(session_id) else notes.open_counts.get(session_id, 0)
        try:
            async with self._patience("erase", name) as scope:
                await self._runtime.delete_session(session_id, agent=agent.name)
        except ActgentError:  # the runtime may have closed
            return
        if self._is_alive and not scope.cancelled_caught:
            notes.end_erasure(session_id)
            if opened == notes.open_counts.get(session_id, 0):
                notes.deleted_sessions.add(session_id)

    async def _annotate(self, agent: Agent, session_id: str) -> None:
        """Add metadata to a session, which may be in the journal only."""
        notes = self.notes
        for number in range(3):
            name = f"annotation {number} of {session_id}"
            await self._pause(f"{name}: pause", (0, 0.01, 0.5, 3, 30))
            if not self._happens(name, "annotate"):
                continue
            era, key = notes.era(session_id), f"life-{self._life.number}-annotation-{number}"
            self.world.record("annotate", f"ada annotates {session_id}")
            with self._ignoring_errors("annotate()"):
                async with self._patience("annotate", name):
                    await self._runtime.annotate(session_id, agent=agent.name, metadata={key: "x"})
                    if self._is_alive and notes.is_valid(session_id, era):
                        notes.annotated_keys.setdefault((agent.name, session_id), set()).add(key)

    # --- agents -----------------------------------------------------------------------------------

    async def restart_agents(self) -> None:
        """Stop agents of the program at random times, and start them again."""
        choices = self.world.choices
        for number in range(3):
            await self._pause(f"restart {number}: pause", (0.001, 0.05, 1, 5, 30))
            if not self._happens(f"restart {number}", "restart"):
                continue
            agent = choices.pick(f"restart {number}: agent", self._program.agents)
            self.world.record("restart", f"the agent {agent.name} is stopped")
            with self.world.running_call("restart"):
                self.restarting.add(agent.name)
                self._runtime.stop(agent.name)
                await trio.sleep(choices.pick(f"restart {number}: after", (0, 0.01, 2, 30)))
                if await self._start_again(agent):
                    self.restarting.discard(agent.name)

    async def _start_again(self, agent: Agent) -> bool:
        """Start a stopped agent. Return False if the runtime is closing; then the next simulated process resumes its sessions."""
        while True:  # noqa: ASYNC913 - start() has a checkpoint, and so has each branch that repeats
            try:
                await self._runtime.start(agent)
            except ConfigurationError:  # the agent has not ended yet
                await trio.sleep(0.1)
            except JournalError:
                self._runtime.stop(agent.name)
                await trio.sleep(1)
            except ActgentError:
                return False
            else:
                return True
