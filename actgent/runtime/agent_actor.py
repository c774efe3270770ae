"""`AgentActor`: a running agent, an actor that processes many sessions concurrently."""

from collections.abc import Awaitable, Callable

import trio

from actgent.actors.actor_cell import Cell
from actgent.actors.actor_ref import Address
from actgent.errors.text_escaping import counted, shown
from actgent.limits_and_schedules.clock import Clock
from actgent.sessions.context_variable_propagation import Propagation
from actgent.turns.agent_core import AgentCore

from .sessions.session_lifecycle import SessionLifecycle
from .timer_service import TimerService


class AgentActor:
    """Actor of a running agent. It serves until it is cancelled, drains, and stops. Its `runner` runs the turns."""

    def __init__(
        self,
        lifecycle: SessionLifecycle,
        *,
        make_ref: Callable[[], Address],
        core: AgentCore,
        clock: Clock,
        timer_service: TimerService,
        propagation: Propagation,
        on_stop: Callable[[], Awaitable[None]],
        on_left: Callable[[str], object],
    ) -> None:
        """Create the actor of an agent.

        `make_ref` returns the address of the agent. `on_stop` closes the agent's connections within a time limit, and shields itself
        from cancellation. `on_left` is called with the agent's name after the agent has stopped.
        """
        self.name = lifecycle.name
        self._make_ref = make_ref
        self.core = core
        self.lifecycle = lifecycle
        self.runner = lifecycle.runner
        self.inbox = lifecycle.inbox
        self.sessions = lifecycle.sessions
        self.journal = lifecycle.journal
        self.clock = clock
        self.timer_service = timer_service
        self.propagation = propagation
        self._equipped: trio.Event | None = trio.Event()
        """Event that `set_equipped` sets; None after that, because an event takes 270 bytes."""
        self._ready: trio.Event | None = trio.Event()
        """Event that is set when the agent starts turns, or when it has ended; None after that."""
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
    def ref(self) -> Address:
        """Address of the agent."""
        return self._make_ref()

    @property
    def restarts(self) -> int:
        """Number of recent restarts that supervision counts. If the number exceeds the limit of `Supervision`, the agent stops."""
        return 0 if self._cell is None else self._cell.restarts.count

    @property
    def state(self) -> str:
        """State of the agent: `starting`, `running`, `failed`, `draining` or `stopped`."""
        if self.runner.has_failed:
            return "failed"
        if self.runner.is_draining:
            return "draining"
        if not self.runner.is_running:
            return "starting" if self.runner.accepts else "stopped"
        return "running"

    def run_in(self, cell: Cell) -> None:
        """Store the actor cell that starts, restarts and stops this agent."""
        self._cell = cell
        self.runner.run_in(cell)

    def set_equipped(self) -> None:
        """Allow the agent to serve messages, because its toolsets have connected or have stopped trying to connect."""
        equipped, self._equipped = self._equipped, None
        if equipped is not None:
            equipped.set()

    async def wait_ready(self) -> None:
        """Wait until the agent has started turns, or has ended."""
        if self._ready is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._ready.wait()

    def _set_ready(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.set()

    async def live(self) -> None:
        """Serve messages until cancelled, or until the agent was idle for `IDLE_SECONDS`. Timers of an idle agent stay armed."""
        if self._equipped is not None:
            await self._equipped.wait()
        try:
            async with trio.open_nursery() as nursery:
                self.runner.begin(nursery)
                if self.runner.accepts:
                    self.timer_service.begin()
                self._set_ready()
                self.runner.pump()
                try:
                    await self.runner.wait_dormant()
                finally:
                    self.runner.stop_starting()
        finally:
            if not self.runner.is_dormant:
                self.timer_service.end()
                self.runner.end()

    def prepare_restart(self) -> None:
        """Mark the agent as failed before its restart, so that its running turns end with a failure and not as stopped."""
        self.runner.has_failed = True

    def drain(self) -> None:
        """Stop firing timers, and reject new messages except those of running turns and actors."""
        self.timer_service.end()
        self.runner.drain()

    def retire(self) -> None:
        """End the task of the agent if it has no work."""
        self.runner.retire()

    def stop(self) -> None:
        """Stop the agent immediately, without waiting for running turns."""
        if self._cell is not None:
            self._cell.stop()

    async def finish(self, reason: str) -> None:
        """Stop the agent for good: reject further messages, end accepted ones, and close the agent's connections.

        Accepted messages that have not started end with the text `reason` as their error.
        Both steps have a time limit that cancellation does not shorten.
        """
        self.runner.reject_all()
        self.runner.end()
        self._set_ready()  # callers that wait for the first use of a stopped agent go on, and are rejected
        try:
            await self.lifecycle.end_remaining()  # shutdown_scope() shields, with a time limit
            await self._on_stop()
        finally:
            self.lifecycle.has_left = True
            self._on_left(self.name)
