"""An agent while its block is open: an actor of its runtime's system, whose body serves many sessions side by side."""

from collections.abc import Awaitable, Callable
from threading import get_ident

import trio

from actgent.actors.cell import Cell
from actgent.actors.event_loop import call_from_outside, check_loop
from actgent.actors.ref import Address
from actgent.control.clock import Clock
from actgent.errors.printable import counted, shown
from actgent.sessions.propagation import Propagation
from actgent.turns.core import AgentCore

from .sessions.lifecycle import SessionLifecycle
from .timer_service import TimerService

CLEANUP = 1.0
"""Seconds to close connections when the agent stops."""


class AgentActor:
    """The actor: it serves until it is cancelled, drains and stops. Its turns are run by its `runner`."""

    def __init__(
        self,
        lifecycle: SessionLifecycle,
        *,
        ref: Address,
        core: AgentCore,
        clock: Clock,
        timer_service: TimerService,
        propagation: Propagation,
        on_stop: Callable[[], Awaitable[None]],
        on_left: Callable[[str], object],
    ) -> None:
        """Args: `on_stop` closes what the agent has open, `on_left` hears that it is gone."""
        self.name = lifecycle.name
        self.ref = ref
        self.core = core
        self.lifecycle = lifecycle
        self.runner = lifecycle.runner
        self.inbox = lifecycle.inbox
        self.sessions = lifecycle.sessions
        self.journal = lifecycle.journal
        self.clock = clock
        self.timer_service = timer_service
        self.propagation = propagation
        self.equipped = trio.Event()
        """Set when its toolsets have connected, as far as they are waited for; it serves from then on."""
        self.ready = trio.Event()
        self._words = f"agent {lifecycle.name!r}"
        self.call_from_outside = call_from_outside.get()
        """Calls something where it runs, for other threads, if it runs in a portal."""
        self._loop = trio.lowlevel.current_trio_token()
        self._thread: int | None = None
        """The thread that it lives in, while it does."""
        self._on_stop = on_stop
        self._on_left = on_left
        self._cell: Cell | None = None

    def __repr__(self) -> str:
        inbox = self.inbox.statistics()
        return (
            f"<{type(self).__name__} {shown(self.name)} {self.state}, {counted(len(self.sessions), 'session')}, "
            f"{inbox.claimed:,} working, {counted(inbox.waiting + inbox.urgent, 'message')} queued>"
        )

    @property
    def restarts(self) -> int:
        """Its restarts that still count against it."""
        return 0 if self._cell is None else self._cell.restarts.count

    @property
    def state(self) -> str:
        """In a word: `starting`, `running`, `failed`, `draining` or `stopped`."""
        if self.runner.has_failed:
            return "failed"
        if self.lifecycle.is_draining:
            return "draining"
        if not self.runner.is_running:
            return "starting" if self.lifecycle.accepts else "stopped"
        return "running"

    def check_loop(self, what: str = "") -> None:
        """Refuse a call from outside of the event loop that the agent runs on; `what` is the call, in words.

        Raises:
            OutsideTrio: it is one.
        """
        if (
            get_ident() != self._thread
        ):  # each message comes by here, and while it lives its thread runs no other loop
            check_loop(what or self._words, self._loop)

    def run_in(self, cell: Cell) -> None:
        """Note the cell that runs this agent."""
        self._cell = cell
        self.runner.run_in(cell)

    async def live(self) -> None:
        """Serve until cancelled."""
        await self.equipped.wait()
        self._thread = get_ident()
        try:
            async with trio.open_nursery() as nursery:
                self.runner.begin(nursery)
                if self.lifecycle.accepts:
                    self.timer_service.begin(nursery)
                self.ready.set()
                self.runner.pump()
                try:
                    await trio.sleep_forever()
                finally:
                    self.runner.cut_off()
        finally:
            self._thread = None
            self.timer_service.end()
            self.runner.end()

    def cut(self) -> None:
        """Prepare for a restart: turns that are cut by it are failed by the next life, and not as stopped ones."""
        self.runner.has_failed = True

    def drain(self) -> None:
        """Take no more messages but from turns that still run."""
        self.timer_service.end()
        self.lifecycle.drain()

    def stop(self) -> None:
        """End where it is."""
        if self._cell is not None:
            self._cell.stop()

    async def finish(self, reason: str) -> None:
        """End whatever was accepted and not answered as a Failure, and close what the agent has open."""
        self.lifecycle.refuse_all()
        try:
            await self.lifecycle.end_rest()  # last_words() shields, with a time limit
            with trio.move_on_after(CLEANUP, shield=True):
                await self._on_stop()
        finally:
            self._on_left(self.name)
