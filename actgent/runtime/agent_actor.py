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
    """Actor of a running agent, which processes the messages of all its sessions. `runner` runs the turns."""

    def __init__(
        self,
        lifecycle: SessionLifecycle,
        *,
        make_ref: Callable[[], Address],
        core: AgentCore,
        clock: Clock,
        timer_service: TimerService,
        propagation: Propagation,
        close_connections: Callable[[], Awaitable[None]],
        on_stopped: Callable[[str], object],
    ) -> None:
        """Create the actor of an agent.

        `make_ref` returns the address of the agent. `close_connections` closes the agent's connections within a time limit, and
        shields itself from cancellation. `on_stopped` is called with the agent's name after the agent has stopped.
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
        self._toolsets_ready: trio.Event | None = trio.Event()
        """Event that `set_toolsets_ready` sets; None after that, because an event takes 270 bytes."""
        self._ready: trio.Event | None = trio.Event()
        """Event that is set when the agent can start turns, or when it has stopped; None after that."""
        self._close_connections = close_connections
        self._on_stopped = on_stopped
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
        """Number of recent restarts after failures. If the number exceeds the limit of `Supervision`, the agent stops."""
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
        """Store the actor cell, which starts, restarts and stops the task of this agent."""
        self._cell = cell
        self.runner.run_in(cell)

    def set_toolsets_ready(self) -> None:
        """Let `live` start turns: the toolsets of the agent have connected, or their connection has failed."""
        equipped, self._toolsets_ready = self._toolsets_ready, None
        if equipped is not None:
            equipped.set()

    async def wait_ready(self) -> None:
        """Wait until the agent can start turns, or has stopped."""
        if self._ready is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._ready.wait()

    def _set_ready(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.set()

    async def live(self) -> None:
        """Run turns until cancelled, or until the agent was idle for `IDLE_SECONDS`. Timers of an idle agent stay armed."""
        if self._toolsets_ready is not None:
            await self._toolsets_ready.wait()
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
        """End the trio task of the agent if the agent has no work."""
        self.runner.retire()

    def stop(self) -> None:
        """Stop the agent immediately, without waiting for running turns."""
        if self._cell is not None:
            self._cell.stop()

    async def finish(self, reason: str) -> None:
        """Stop the agent for good: reject further messages, end accepted ones, and close the agent's connections.

        Accepted messages that have not started end with the text `reason` as their error.
        Ending the messages and closing the connections have time limits. Cancellation does not shorten them.
        """
        self.runner.reject_all()
        self.runner.end()
        self._set_ready()  # wakes callers that wait for the first use of the agent; their calls are rejected
        try:
            await self.lifecycle.end_remaining()  # shutdown_scope() shields, with a time limit
            await self._close_connections()
        finally:
            self.lifecycle.has_stopped = True
            self._on_stopped(self.name)
