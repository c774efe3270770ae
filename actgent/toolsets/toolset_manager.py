"""`ToolsetManager`: runs the toolsets of a runtime, one task per toolset, from its first agent to its last.

A toolset is `connecting`, then `connected` or `lost`. Lost toolsets are reconnected after growing delays. Published
tools go to the registries of all agents that use the toolset.

A ConfigurationError before the first connection ends the toolset, because a retry cannot fix it; starting its agents
raises the error.
"""

import contextvars
import math
from collections.abc import Callable, Sequence
from typing import Literal

import attrs
import trio

from actgent.errors import ConfigurationError, ToolsetUnavailable
from actgent.errors.text_escaping import shown
from actgent.events import EventStream, ToolsetConnected, ToolsetLost
from actgent.messages import ToolSpec
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import convert_user_error, leaves, readable_text
from actgent.tools.outputs.result_text import error_text
from actgent.tools.tool_interface import Tool
from actgent.tools.tool_registry import ToolRegistry

from .toolset import Toolset

OPTIONAL_WAIT_SECONDS = 0.45
"""Time that an agent's start waits for the next optional toolset after one has connected. Half a second in total."""
MIN_RETRY_DELAY_SECONDS = 1.0
"""Delay before the first reconnection; doubles with each failure."""
MAX_RETRY_DELAY_SECONDS = 60.0
"""Maximum delay before a reconnection."""
STABLE_SECONDS = 60.0
"""Duration of a connection after which the delay starts at its minimum again."""

_log = logger_of(__name__)


ConnectionState = Literal["connecting", "connected", "lost", "failed"]
"""State of a toolset. `failed`: its configuration is wrong, and it is not connected again."""


@attrs.frozen(kw_only=True, repr=False)
class ToolsetStatus(FieldRepr):
    """Status of a toolset with a connection, for operators. The texts contain no secrets."""

    name: str
    agents: tuple[str, ...]
    """Names of the agents that use the toolset, sorted."""
    state: ConnectionState
    kind: str
    """Kind of the server: `mcp`; empty for other toolsets."""
    address: str
    """Name of the server program, or origin of the server's URL; empty if unknown."""
    protocol: str
    """Protocol revision of the open connection; empty if it is not connected."""
    server: str
    """Name and version that the connected server reports; empty if it is not connected."""
    tools: tuple[ToolSpec, ...]
    """Tools that the server published last."""
    reconnects: int
    """Number of connections after the first one."""
    error: str
    """Class name of the last error, or `silent` if the server did not respond in time; empty if there was no error."""
    error_text: str
    """Text of the last error without secrets; empty if the toolset does not name its secrets."""
    failed_at: float | None
    """Unix time of the last error in seconds; None if there was no error."""


@attrs.define(eq=False, repr=False)
class _AgentToolset(FieldRepr):
    """A toolset as one agent uses it: the tools of a source, or tools derived from them."""

    toolset: Toolset
    """The toolset that was passed to the agent."""
    registry: ToolRegistry
    """Tool registry of the agent."""
    agent: str
    """Name of the agent that uses the toolset."""
    error: Exception | None = None
    """Exception of the last derivation of the agent's tools; None if it succeeded."""
    is_started: bool = False
    """True if the agent has started. Later errors of the toolset are only logged."""

    def publish(self, tools: Sequence[Tool]) -> None:
        """Derive an agent's tools from the published tools, and put them in the agent's registry.

        An error of user code is stored, and the toolset becomes unavailable.
        """
        try:
            derived = self.toolset.tools_from(tools)
            self.registry.publish(self.toolset.name, derived, outside=self.toolset.source.outside)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - derivation functions are user code
            self.error = convert_user_error(raised, "toolset", self.toolset.name)
            _log.exception("toolset %s: deriving its tools failed", shown(self.toolset.name))
            self.mark_unavailable(readable_text(self.error) or type(self.error).__name__)
        else:
            self.error = None

    def mark_unavailable(self, reason: str) -> None:
        """Make calls of the toolset's tools in this agent fail with `reason`, until the toolset publishes tools again."""
        self.registry.mark_unavailable(self.toolset.name, reason)

    def mark_settled(self) -> None:
        """Wake the tool calls that wait for the toolset, because the toolset has connected or failed."""
        self.registry.mark_settled(self.toolset.name)


@attrs.define(eq=False, repr=False)
class _ToolsetState(FieldRepr):
    """State of a running source toolset."""

    source: Toolset
    """Toolset whose connection this object manages."""
    uses: list[_AgentToolset] = attrs.field(factory=list)
    """Agents' toolsets that get their tools from this source."""
    tools: tuple[Tool, ...] | None = None
    """Tools that were published last; None before the first connection."""
    reason: str = "it has not connected yet"
    """Text for models that says why the toolset is not connected; empty while it is connected."""
    detail: str = ""
    """Text for developers that says why the toolset is not connected, with the text of the error."""
    error: Exception | None = None
    """Exception that ended the last connection; None while connected, and after a timeout."""
    config_error: ConfigurationError | None = None
    """Configuration error that ended the toolset before its first connection; None if there was no error."""
    is_settled: bool = False
    """True if the toolset has connected or failed at least once."""
    changed: trio.Event = attrs.field(factory=trio.Event)
    """Set when the toolset connects or fails; replaced by a new event each time."""
    failures: int = 0
    """Number of failures since the last stable connection."""
    connections: int = 0
    """Number of connections that have published tools."""
    last_error: str = ""
    """Class name of the last error, also after a reconnection; `silent` for a timeout; empty if there was no error."""
    failed_at: float | None = None
    """Unix time of the last error in seconds; None if there was no error."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Cancel scope of the toolset's task."""
    connecting: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Cancel scope of the current connection. Its deadline is removed when the toolset has published tools."""
    run_token: object = None
    """Token of the current connection run; results of earlier runs are discarded. None if the source is not running."""
    is_closed: bool = False
    """True after the last agent has stopped using the toolset."""

    def add(self, use: _AgentToolset) -> None:
        """Add an agent's toolset to the users of this source.

        The agent's toolset receives the current tools, or the reason why none are available.
        """
        self.uses.append(use)
        if self.tools is not None:
            use.publish(self.tools)
        if self.reason:
            use.mark_unavailable(self.reason)
        if not self.is_settled:
            use.registry.mark_connecting(use.toolset.name)

    def note_error(self, kind: str, detail: str, now: float) -> None:
        """Store the last error: its class name `kind`, its text `detail`, and the Unix time `now` in seconds."""
        self.last_error, self.detail, self.failed_at = kind, detail, now

    def describe(self) -> ToolsetStatus:
        """Return the status of the toolset for operators."""
        state: ConnectionState = "connecting"
        if self.config_error is not None:
            state = "failed"
        elif not self.reason:
            state = "connected"
        elif self.is_settled:
            state = "lost"
        info = self.source.connection_info
        return ToolsetStatus(
            name=self.source.name,
            agents=tuple(sorted({use.agent for use in self.uses})),
            state=state,
            kind="" if info is None else info.kind,
            address="" if info is None else info.address,
            protocol="" if info is None else info.protocol,
            server="" if info is None else info.server,
            tools=tuple(
                ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
                for tool in self.tools or ()
            ),
            reconnects=max(0, self.connections - 1),
            error=self.last_error,
            error_text="" if info is None else info.hide_secrets(self.detail),
            failed_at=self.failed_at,
        )

    def notify(self) -> None:
        """Wake all waiting tasks and calls after the toolset has connected or failed."""
        self.is_settled = True
        for use in self.uses:
            use.mark_settled()
        self.changed.set()
        self.changed = trio.Event()


class ToolsetManager:
    """Runs the toolsets of one runtime block."""

    def __init__(self, nursery: trio.Nursery, events: EventStream, now: Callable[[], float]) -> None:
        """Create a manager without toolsets. `now` returns the Unix time in seconds."""
        self._nursery = nursery
        self._events = events
        self._now = now
        self._loop = trio.lowlevel.current_trio_token()
        self._states: dict[Toolset, _ToolsetState] = {}

    def describe(self) -> tuple[ToolsetStatus, ...]:
        """Return the status of each toolset with a connection, sorted by name."""
        found = [state.describe() for source, state in self._states.items() if source.may_change]
        return tuple(sorted(found, key=lambda each: (each.name, each.agents)))

    async def open(self, agent: str, registry: ToolRegistry, toolsets: Sequence[Toolset]) -> None:
        """Add the tools of an agent's toolsets to the agent's registry, and wait for the toolsets to connect.

        Required toolsets are awaited up to their `connect_timeout`. For optional toolsets, wait until one has
        connected, and then for each further one as long as it connects within half a second. Later tools reach
        sessions by a notice.

        Raises:
            ToolsetUnavailable: A required toolset did not connect. None of the toolsets is added.
            ConfigurationError: The configuration of a toolset is wrong, or a derivation does not match its tools.
        """
        uses = [_AgentToolset(toolset, registry, agent) for toolset in toolsets]
        try:
            states = [self._acquire(use) for use in uses]
            async with trio.open_nursery() as nursery:
                for use, state in zip(uses, states, strict=True):
                    if use.toolset.required:
                        nursery.start_soon(_wait_required, state)
                await _wait_optional(states)
            _check_configured(uses, states)
            for use in uses:
                use.is_started = True
        except BaseExceptionGroup as group:
            self.close(registry)
            raise next(leaves(group)) from None
        except BaseException:
            self.close(registry)
            raise

    def close(self, registry: ToolRegistry) -> None:
        """Remove an agent's registry from all toolsets. Cancel the tasks of toolsets that no agent uses."""
        for state in list(self._states.values()):
            for use in state.uses:
                if use.registry is registry:
                    use.mark_settled()
            state.uses = [use for use in state.uses if use.registry is not registry]
            if not state.uses:
                del self._states[state.source]
                state.scope.cancel()
                state.is_closed = True
                state.notify()  # wakes tasks that wait for a connection that will not come

    def _acquire(self, use: _AgentToolset) -> _ToolsetState:
        """Add an agent's toolset to the users of its source toolset, and return the connection state of the source.

        The first call for a source creates the state, and starts the task that keeps the source connected.
        """
        source = use.toolset.source
        state = self._states.get(source)
        if state is None:
            state = self._states[source] = _ToolsetState(source)
            # A new context, so that the connection does not inherit the context of the current request.
            contextvars.Context().run(self._start_task, state)
        state.add(use)
        return state

    def _start_task(self, state: _ToolsetState) -> None:
        """Start the task that keeps a toolset connected."""
        self._nursery.start_soon(self._run, state, name=f"toolset {state.source.name}")

    async def _run(self, state: _ToolsetState) -> None:
        """Keep a toolset connected until it is closed: reconnect it after pauses. Stop if its configuration is wrong."""
        with state.scope:
            while True:
                begun = trio.current_time()
                error = await self._connect(state)
                if state.tools is None and (config_error := _configuration_error_in(error)) is not None:
                    self._fail_configuration(state, config_error)
                    return
                if trio.current_time() - begun > STABLE_SECONDS:
                    state.failures = 0
                pause = min(MIN_RETRY_DELAY_SECONDS * 2**state.failures, MAX_RETRY_DELAY_SECONDS)
                state.failures += 1
                self._handle_disconnect(state, error, pause)
                await trio.sleep(pause)

    async def _connect(self, state: _ToolsetState) -> Exception | None:
        """Run a toolset until its connection ends.

        Return the exception; None if no tools were published within `connect_timeout`.
        """
        toolset = state.source
        run = state.run_token = object()
        with trio.move_on_after(toolset.connect_timeout) as state.connecting:
            try:
                await toolset.run(lambda tools: self._publish(state, run, tools))
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - toolsets are user code
                error = convert_user_error(raised, "toolset", toolset.name)
            else:
                error = ConnectionResetError("its connection ended")
            finally:
                state.run_token = None
            return error
        return None

    def _publish(self, state: _ToolsetState, run: object, tools: Sequence[Tool]) -> None:
        """Pass the tools that a source has published to all agents that use it.

        `run` is the token of the connection run; tools of an ended run are ignored.

        Raises:
            RuntimeError: The caller is in another thread.
        """
        if not trio.lowlevel.in_trio_run() or trio.lowlevel.current_trio_token() is not self._loop:
            raise RuntimeError(
                f"toolset {state.source.name!r} called publish() from another thread: "
                "use trio.from_thread.run_sync(publish, tools)"
            )
        if run is not state.run_token:
            return
        if state.reason:
            state.connections += 1
        state.tools = tuple(tools)
        state.connecting.deadline = math.inf
        state.reason, state.error = "", None
        for use in state.uses:
            use.publish(state.tools)
        if self._events.watched:
            self._events.publish(ToolsetConnected(toolset=state.source.name, tools=len(state.tools)))
        state.notify()

    def _fail_configuration(self, state: _ToolsetState, config_error: ConfigurationError) -> None:
        """Stop a toolset with a wrong configuration. For agents that have already started, only log the error."""
        name = state.source.name
        state.config_error = config_error
        state.note_error(type(config_error).__name__, str(config_error), self._now())
        state.reason = "its configuration is wrong"
        for use in state.uses:
            use.mark_unavailable(state.reason)
        if any(use.is_started for use in state.uses):
            _log.error("the configuration of toolset %s is wrong: %s", shown(name), shown(str(config_error)))
        state.notify()

    def _handle_disconnect(self, state: _ToolsetState, error: Exception | None, pause: float) -> None:
        """Mark a toolset as unavailable for all agents, and log the reason.

        `pause` is the time until the next attempt in seconds.
        """
        name = state.source.name
        state.error = error
        silent = f"it did not answer within {state.source.connect_timeout:g} s"
        state.reason = silent if error is None else "its connection failed"
        detail = silent if error is None else error_text(next(leaves(error)))
        kind = "silent" if error is None else type(next(leaves(error))).__name__
        state.note_error(kind, detail, self._now())
        _log.warning(
            "toolset %s is not available: %s; next attempt in %g s", shown(name), shown(detail), pause
        )
        for use in state.uses:
            use.mark_unavailable(state.reason)
        if self._events.watched:
            self._events.publish(ToolsetLost(toolset=name, error=kind, delay=pause))
        state.notify()


def _configuration_error_in(error: Exception | None) -> ConfigurationError | None:
    """Return the configuration error among the exceptions that ended a connection, also inside of exception groups.

    Return None if the connection ended for another reason.
    """
    leaf = None if error is None else next(leaves(error))
    return leaf if isinstance(leaf, ConfigurationError) else None


def _check_configured(uses: Sequence[_AgentToolset], states: Sequence[_ToolsetState]) -> None:
    """If a toolset has a configuration error or a derivation error, raise the error of the first such toolset.

    `uses` and `states` belong together by index.
    """
    for use, state in zip(uses, states, strict=True):
        if (error := state.config_error or use.error) is not None:
            raise error


async def _wait_required(state: _ToolsetState) -> None:
    """Wait until a required toolset has connected.

    Raises:
        ToolsetUnavailable: The toolset did not connect within its `connect_timeout`, or its agent was stopped.
        ConfigurationError: The configuration of the toolset is wrong.
    """
    with trio.move_on_after(state.source.connect_timeout):
        while state.tools is None and state.config_error is None and not state.is_closed:
            await state.changed.wait()
    if state.config_error is not None:
        raise state.config_error
    if state.tools is None:
        silent = f"it did not answer within {state.source.connect_timeout:g} s"
        reason = "its agent was stopped" if state.is_closed else silent
        raise ToolsetUnavailable(state.source.name, state.detail or reason) from state.error


async def _wait_optional(states: Sequence[_ToolsetState]) -> None:
    """Wait until each toolset has connected or failed, at most `OPTIONAL_WAIT_SECONDS` after the last connection."""
    deadline = math.inf
    while waiting := [state for state in states if not state.is_settled]:
        known = _count_connected(states)
        with trio.move_on_at(deadline) as scope:
            await _wait_any(waiting)
        if scope.cancelled_caught:
            return
        if _count_connected(states) > known:
            deadline = trio.current_time() + OPTIONAL_WAIT_SECONDS


def _count_connected(states: Sequence[_ToolsetState]) -> int:
    """Return the number of connected toolsets.

    Toolsets with fixed tools are not counted, as they need no connection.
    """
    return sum(state.tools is not None and state.source.may_change for state in states)


async def _wait_any(states: Sequence[_ToolsetState]) -> None:
    """Wait until one of the toolsets connects or fails."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for state in states:
            nursery.start_soon(wait, state.changed)
