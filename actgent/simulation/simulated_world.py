"""The simulated world of one seed: virtual time, a seeded scheduler, seeded ids, and processes that can be killed.

A *simulated process* is one process of the user's program: one run of trio that this module drives step by step. When it is
killed, it is never resumed. Storage, tools with effects and callers check `World.is_alive` before each effect.
So code that still runs in the step of the kill has no effect outside of the process.

Real time, threads and random numbers are replaced inside `World.installed()` only. No other part of the package depends on simulations.
"""

import contextlib
import contextvars
import functools
import gc
import hashlib
import heapq
import importlib
import itertools
import logging
import math
import os
import random
import secrets
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Literal, NoReturn, TypeVar
from unittest import mock

import attrs
import trio
from trio._core import _run as trio_run

from actgent import messages
from actgent.errors import ActgentError

from .seeded_choices import Choices

T = TypeVar("T")
START = 1_790_000_000.0
"""Unix time in seconds at which each simulation starts."""
MAX_STEPS, STEPS_PER_SECOND = 50_000, 5
"""Maximum steps of trio's event loop in one simulated process: a constant, and the steps for each simulated second. More are
reported as an endless loop. Most processes have less than 1,000. Callers of a turn that hangs for hours retry for hours.
"""
FULL_COLLECTIONS = 50
"""Number of worlds after which objects of earlier worlds are also collected. They take about 150 kB per world."""
QUIET_SECONDS = 0.4
"""Minimum time in which all tasks wait, for the checks of a quiet moment."""
THREAD_DELAYS_SECONDS = (0, 0, 0.001, 0.01, 0.3)
Verdict = Literal["ended", "killed", "stuck", "endless"]
"""How a simulated process ended. "stuck": every task waits, and nothing will ever wake one."""


class ForbiddenInSimulation(ActgentError):
    """Error: a tool or a model used the network or started a program. Give the tool another function with `@simulated`."""


class LifeEnded(BaseException):
    """Exception in code of an ended simulated process that tries to have an effect."""


@attrs.frozen
class SimulatedEvent:
    """Event of a simulation, for the report of a seed."""

    at: float
    """Time of the event, in seconds since the start of the simulation."""
    kind: str
    """Short name of the kind of event, for example `kill` or `tool begins`."""
    text: str
    """Description of the event."""
    is_shown: bool = True
    """True if the event is shown in a report; False if it is only part of the digest."""


class SimulatedProcess:
    """One process of the program, from its start to its end or its death."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Number of the simulated process, from 1."""
        self.is_dead = False
        """True once the process was killed."""


class World:
    """The simulated world of one seed: clock, events and processes."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now = 0.0
        """Current simulated time, in seconds since the start of the simulation."""
        self.life = SimulatedProcess(0)
        """The simulated process that runs now."""
        self.events: list[SimulatedEvent] = []
        """All events so far, oldest first."""
        self.kills = 0
        """Number of simulated processes that were killed."""
        self.favorites: dict[str, float] = {}
        """Place among its tools, from 0 to 1, of the tool that the random model of an agent calls most, by agent."""
        self._hash = hashlib.sha256()
        self._reads = 0
        self._watchers: list[Callable[[str], object]] = []
        self._running: dict[str, int] = {}
        """Number of running calls of callers, by kind."""
        self.on_quiet: Callable[[], None] | None = None
        """Function that is called while all tasks wait for `QUIET_SECONDS` or longer, until the end of the simulated process.

        It must not change the state of the simulated process, and must not draw choices."""

    def record(self, kind: str, text: str, *, is_shown: bool = True) -> None:
        """Add an event to the report and to the digest.

        `is_shown` is False for events that only the digest needs.
        """
        event = SimulatedEvent(self.now, kind, text, is_shown)
        self.events.append(event)
        self._hash.update(f"{event.at:.6f} {kind} {text}\n".encode())

    def add_to_digest(self, data: Iterable[bytes]) -> None:
        """Add bytes, such as the journal's records, to the digest."""
        for each in data:
            self._hash.update(each)

    @property
    def digest(self) -> str:
        """Hash of all events of the run with their times.

        If the program is deterministic, two runs of a seed have equal hashes.
        """
        return self._hash.hexdigest()[:12]

    def watch(self, watcher: Callable[[str], object]) -> None:
        """Call `watcher` with the name of each moment, such as `before write`, until the end of the simulated process."""
        self._watchers.append(watcher)

    @contextlib.contextmanager
    def watching(self, watcher: Callable[[str], object]) -> Iterator[None]:
        """Context manager: call `watcher` at each recorded moment in its block, such as a write to the journal.

        The argument is the name of the moment.
        """
        self.watch(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def note_moment(self, name: str) -> None:
        """Call the watchers with the name of a step. At such a step, a simulated crash or cancellation can show a wrong order of effects."""
        for watcher in tuple(self._watchers):
            watcher(name)

    def note_write(self, moment: str) -> None:
        """Call the watchers for a write to the journal: with `moment`, and with `during KIND` for each kind of running call."""
        self.note_moment(moment)
        for kind in [each for each, count in self._running.items() if count]:
            self.note_moment(f"during {kind}")

    @contextlib.contextmanager
    def running_call(self, kind: str) -> Iterator[None]:
        """Context manager: count a caller's call as running while its block runs, and record the moment `begin KIND`."""
        self.note_moment(f"begin {kind}")
        self._running[kind] = self._running.get(kind, 0) + 1
        try:
            yield
        finally:
            self._running[kind] -= 1

    def note_quiet(self) -> None:
        """Call `on_quiet` at a moment at which all tasks wait. The simulated time does not change."""
        if self.on_quiet is not None and not self.life.is_dead:
            reads = self._reads
            self.on_quiet()
            self._reads = reads

    def kill(self, text: str) -> None:
        """Kill the running simulated process, and record `text` as the reason.

        The caller must not return into its code; see `wait_for_death`.
        """
        if not self.life.is_dead:
            self.record("kill", f"THE PROCESS IS KILLED {text}")
            self.kills += 1
            self.life.is_dead = True

    def is_alive(self, life: SimulatedProcess) -> bool:
        """Return True if `life` is the current simulated process and was not killed."""
        return life is self.life and not life.is_dead

    async def wait_for_death(self) -> NoReturn:
        """Suspend a task of a killed simulated process forever, so that its code does not continue."""
        await trio.sleep_forever()
        raise LifeEnded

    def check_alive(self, life: SimulatedProcess) -> None:
        """Raise `LifeEnded` if this simulated process has ended or was killed."""
        if not self.is_alive(life):
            raise LifeEnded

    def wall_time(self) -> float:
        """Return the simulated Unix time. Two readings are never equal."""
        self._reads += 1
        return START + self.now + (self._reads % 1_000_000) * 1e-9

    # --- one simulated process ---------------------------------------------------------------------

    def run_life(self, main: Callable[[], Awaitable[object]]) -> tuple[Verdict, Any]:
        """Run `main` as one simulated process until it ends, is killed, or is stuck.

        Return the verdict and a detail. For "ended" the detail is the exception of `main` or None. For "stuck" and "endless" it
        describes the waiting tasks.
        """
        self.life = life = SimulatedProcess(self.life.number + 1)
        self._watchers.clear()
        self._running, self.on_quiet = {}, None
        trio_run._r = self.choices.generator(f"scheduler of life {life.number}")
        clock = _Clock(self)
        runner = trio_run.setup_runner(clock, (), True, True)  # noqa: FBT003 - positional only in trio
        clock.runner = runner
        loop = trio_run.unrolled_run(runner, main, ())
        verdict: Verdict = "ended"
        events: Any = None
        steps, began_at = 0, self.now
        while verdict == "ended":
            try:
                loop.send(events)
            except StopIteration:
                break
            steps += 1
            if life.is_dead:
                verdict = "killed"
            elif clock.is_stuck and not runner.runq:
                verdict = "stuck"
            elif steps > MAX_STEPS + STEPS_PER_SECOND * (self.now - began_at):
                verdict = "endless"
            events = runner.io_manager.get_events(0) if _has_calls(runner) else ()
        if verdict == "ended":
            result = runner.main_task_outcome
            return "ended", getattr(result, "error", None)
        waiting = "" if verdict == "killed" else _describe_tasks(runner)
        life.is_dead = True
        _discard(runner, loop)
        return verdict, waiting

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Context manager: replace time, random numbers, threads and ids by values that the seed determines.

        The standard library, trio and a few modules of actgent are patched, so only one world can be installed at a time.
        """
        state, was_collecting, was_frozen = random.getstate(), gc.isenabled(), gc.get_freeze_count() > 0
        with contextlib.ExitStack() as stack:
            for target, name, value in self._replacements():
                stack.enter_context(mock.patch.object(target, name, value))
            stack.enter_context(mock.patch.object(_Installed, "world", self))
            for namespace, name in _time_factories(len(sys.modules)):
                stack.enter_context(mock.patch.dict(namespace, {name: _wall_time}))
            messages._secrets.clear()
            random.seed(self.choices.seed)
            logging_level = logging.root.manager.disable
            logging.disable(logging.CRITICAL)
            gc.disable()  # a collection would close generators of killed simulated processes at a moment that is not of the seed
            if not was_frozen and next(_worlds) % FULL_COLLECTIONS:
                gc.freeze()  # the collection at the end then visits only objects of this seed: 1 ms, not 60 ms
            try:
                yield
            finally:
                messages._secrets.clear()
                with warnings.catch_warnings():
                    # Killed simulated processes leave coroutines that are never awaited.
                    warnings.simplefilter("ignore", RuntimeWarning)
                    gc.collect()
                if not was_frozen:
                    gc.unfreeze()
                if was_collecting:
                    gc.enable()
                logging.disable(logging_level)
                random.setstate(state)

    def _replacements(self) -> Iterator[tuple[Any, str, Any]]:
        yield time, "time", _wall_time
        yield time, "time_ns", lambda: int(_wall_time() * 1e9)
        yield time, "monotonic", _monotonic
        yield time, "perf_counter", _monotonic
        yield time, "sleep", self._sleep_blocking
        random_bytes = self.choices.generator("random bytes").randbytes
        yield os, "urandom", random_bytes
        yield random, "_urandom", random_bytes  # SystemRandom, and with it the functions of `secrets`
        yield secrets, "token_bytes", lambda size=32: random_bytes(size)
        yield messages, "_process", f"{self.choices.generator('process id').getrandbits(48):012x}"
        yield messages, "_serial", itertools.count()
        yield trio.to_thread, "run_sync", self._run_in_thread
        yield trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True
        yield trio_run, "_r", random.Random(0)  # noqa: S311 - replaced in each simulated process
        yield trio_run.Deadlines, "add", _deadline_adder()
        yield trio_run.CancelStatus, "__init__", _ordered_init(trio_run.CancelStatus.__init__)
        # A killed simulated process leaves nurseries with children.
        yield trio_run.Nursery, "__del__", lambda _: None
        yield sys, "unraisablehook", lambda _: None
        yield importlib.import_module("actgent.runtime.runtime"), "tuned_gc", contextlib.nullcontext
        watchdog = importlib.import_module("actgent.turns.event_loop_watchdog")
        yield watchdog._guard, "add", lambda _: None
        yield watchdog._guard, "remove", lambda _: None
        yield socket.socket, "connect", _forbid("opened a network connection")
        yield subprocess.Popen, "__init__", _forbid("started a program")

    def _sleep_blocking(self, seconds: float) -> None:
        self.now += seconds

    async def _run_in_thread(self, fn: Callable[..., T], *args: Any, **_: Any) -> T:
        """Run a blocking function in the event loop after a delay of the seed. Replaces `trio.to_thread.run_sync`."""
        await trio.sleep(self.choices.pick("thread delay", THREAD_DELAYS_SECONDS))
        return contextvars.copy_context().run(functools.partial(fn, *args))


class _Installed:
    """Holder of the installed world."""

    world: World | None = None


_worlds = itertools.count(1)
_real_time, _real_monotonic = time.time, time.monotonic


def _wall_time() -> float:
    """Return the Unix time of the installed world. A module imported in a simulation may keep a reference to this function."""
    return _real_time() if _Installed.world is None else _Installed.world.wall_time()


def _monotonic() -> float:
    return _real_monotonic() if _Installed.world is None else _Installed.world.now


class _Clock(trio.abc.Clock):
    """Virtual clock that jumps to the next deadline as soon as no task can run before it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runner: Any = None
        self.is_stuck = False

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.world.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if _has_calls(self.runner):
            return 0.0
        if self.runner.waiting_for_idle:
            return max(0.0, deadline - self.world.now)
        if deadline == math.inf:
            self.is_stuck = True
        elif deadline > self.world.now:
            if deadline - self.world.now >= QUIET_SECONDS:
                self.world.note_quiet()
            self.world.now = deadline
        return 0.0


def _has_calls(runner: Any) -> bool:
    """Return True if a call of `TrioToken.run_sync_soon` waits in trio's queue.

    Trio waits for such calls on a real pipe, which the virtual clock must not skip.
    """
    return bool(runner.entry_queue.queue or runner.entry_queue.idempotent_queue)


def _describe_tasks(runner: Any) -> str:
    """Describe the lines of code at which each task waits, to explain a run that is stuck."""
    lines = []
    for task in sorted(runner.tasks, key=lambda each: each._counter):
        places = [
            f"{frame.f_code.co_filename.rpartition('/actgent/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
            for frame in _frames(task.coro)
        ]
        lines.append(f"{task.name}: {' > '.join(places[-3:])}")
    return "\n    ".join(lines)


def _frames(coroutine: Any) -> Iterator[Any]:
    while coroutine is not None:
        frame = next(
            (f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(coroutine, name, None))),
            None,
        )
        if frame is None:
            return
        yield frame
        inner = (getattr(coroutine, name, None) for name in ("cr_await", "gi_yieldfrom", "ag_await"))
        coroutine = next((each for each in inner if each is not None), None)


def _discard(runner: Any, loop: Any) -> None:
    """Close the coroutines of all tasks of a killed simulated process, newest first. Their `finally` blocks have no effect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop.close()
        for task in sorted(runner.tasks, key=lambda each: -each._counter):
            with contextlib.suppress(BaseException):
                task.coro.close()
        trio_run.GLOBAL_RUN_CONTEXT.__dict__.clear()
        runner.tasks.clear()


class _OrderedSet(dict[Any, None]):
    """A set that iterates in insertion order. Trio's own sets iterate in the order of memory addresses."""

    def __init__(self, members: Iterable[Any] = ()) -> None:
        super().__init__(dict.fromkeys(members))

    def add(self, member: Any) -> None:
        self[member] = None

    def remove(self, member: Any) -> None:
        del self[member]

    def discard(self, member: Any) -> None:
        self.pop(member, None)

    def update(self, members: Iterable[Any]) -> None:  # type: ignore[override] # of a set
        for each in members:
            self[each] = None


def _ordered_init(original: Callable[..., None]) -> Callable[..., None]:
    def init(status: Any, *args: Any, **kwargs: Any) -> None:
        original(status, *args, **kwargs)
        status._tasks, status._children = _OrderedSet(status._tasks), _OrderedSet(status._children)

    return init


def _deadline_adder() -> Callable[[Any, float, Any], None]:
    """Return a replacement of trio's `Deadlines.add` in which equal deadlines expire in the order of their addition."""
    numbers = itertools.count()

    def add(deadlines: Any, deadline: float, scope: Any) -> None:
        heapq.heappush(deadlines._heap, (deadline, next(numbers), scope))
        deadlines._active += 1

    return add


def _forbid(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ForbiddenInSimulation(
            f"code {what} in a simulation: give the tool another function with @simulated(TOOL)"
        )

    return refuse


@functools.lru_cache(maxsize=1)
def _time_factories(_modules: int) -> list[tuple[dict[str, Any], str]]:
    """Find the constructors of actgent's classes that call `time.time` for a default. Return (globals, name) of each."""
    found = dict[tuple[int, str], tuple[dict[str, Any], str]]()
    for module in [m for name, m in sys.modules.items() if name.startswith("actgent.")]:
        for value in vars(module).values():
            init = getattr(value, "__init__", None) if isinstance(value, type) else value
            namespace = getattr(init, "__globals__", None)
            if namespace is None or namespace is getattr(
                sys.modules.get(str(namespace.get("__name__"))), "__dict__", None
            ):
                continue  # not a generated function
            for name, each in namespace.items():
                if each is _real_time:
                    found[id(namespace), name] = (namespace, name)
    return list(found.values())
