"""Runs the toolsets of a runtime: one task each, from the first agent that has it to the last.

A toolset is `connecting`, then `connected` or `lost`. Lost toolsets are connected again after pauses that grow. Whatever a
toolset publishes reaches the registries of all agents that have it.

A ConfigurationError before the first connection ends the toolset: no pause repairs a configuration, so the start of its
agents raises the error.
"""

import contextvars
import math
from collections.abc import Sequence

import attrs
import trio

from actgent.errors import ConfigurationError, ToolsetUnavailable
from actgent.errors.printable import shown
from actgent.events import EventStream, ToolsetConnected, ToolsetLost
from actgent.support.foreign import failure_of, leaves, readable_text
from actgent.support.logs import logger_of
from actgent.tools.base import Tool
from actgent.tools.outputs.results import worded
from actgent.tools.registry import ToolRegistry

from .toolset import Toolset

PATIENCE = 0.45
"""Seconds that an agent's start waits for the next optional toolset after one has connected; with its own work half a second."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds between two tries to connect; each pause doubles the one before."""
STABLE = 60.0
"""Seconds of connection after which the pauses begin anew."""

_log = logger_of(__name__)


@attrs.define(eq=False)
class _Use:
    """A toolset that an agent has: the tools of a source, or some that are derived from them."""

    toolset: Toolset
    registry: ToolRegistry
    error: Exception | None = None
    """Why nothing could be derived from what the source published."""
    is_started: bool = False
    """True after the agent's start succeeded: it can raise no error of the toolset any more."""

    def publish(self, tools: Sequence[Tool]) -> None:
        """Give the agent what the source published."""
        try:
            derived = self.toolset.tools_from(tools)
            self.registry.publish(self.toolset.name, derived, outside=self.toolset.source.outside)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code: functions of the user
            self.error = failure_of(raised, "toolset", self.toolset.name)
            _log.exception("toolset %s: its tools cannot be derived", shown(self.toolset.name))
            self.withdraw(readable_text(self.error) or type(self.error).__name__)
        else:
            self.error = None

    def withdraw(self, reason: str) -> None:
        self.registry.withdraw(self.toolset.name, reason)

    def settle(self) -> None:
        """Let calls wait no more for the toolset: it has connected or failed."""
        self.registry.settle(self.toolset.name)


@attrs.define(eq=False)
class _Life:
    """A source while some agent has tools of it."""

    source: Toolset
    uses: list[_Use] = attrs.field(factory=list)
    tools: tuple[Tool, ...] | None = None
    """What it published last; None until it has connected."""
    reason: str = "it is not connected yet"
    """Why it is not connected, as far as is known; empty while it is."""
    told: str = ""
    """The same for developers, with what the error says."""
    error: Exception | None = None
    mistake: ConfigurationError | None = None
    """The configuration error that ended the toolset before its first connection."""
    is_settled: bool = False
    """True if it has connected or failed."""
    changed: trio.Event = attrs.field(factory=trio.Event)
    """Set when it has connected or failed; a new one then."""
    tries: int = 0
    """How often it failed since it was connected for a while."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    connecting: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    run: object = None
    """Which run of the source may publish; None: none is under way."""
    is_over: bool = False
    """True once no agent has it any more."""

    def add(self, use: _Use) -> None:
        self.uses.append(use)
        if self.tools is not None:
            use.publish(self.tools)
        if self.reason:
            use.withdraw(self.reason)
        if not self.is_settled:
            use.registry.expect(use.toolset.name)

    def tell(self) -> None:
        self.is_settled = True
        for use in self.uses:
            use.settle()
        self.changed.set()
        self.changed = trio.Event()


class ToolsetHost:
    """The toolsets that run in one block."""

    def __init__(self, nursery: trio.Nursery, events: EventStream) -> None:
        self._nursery = nursery
        self._events = events
        self._loop = trio.lowlevel.current_trio_token()
        self._lives: dict[Toolset, _Life] = {}

    async def open(self, registry: ToolRegistry, toolsets: Sequence[Toolset]) -> None:
        """Let a registry have the tools of toolsets, and wait until those are there that can be waited for.

        For a required one that is its `connect_timeout`. For the others: until one of them has connected, and then for
        the next as long as that comes within half a second; those that come later reach sessions by a notice.

        Raises:
            ToolsetUnavailable: a required one could not be connected; the registry has none of them then.
            ConfigurationError: A toolset is configured wrongly, required or not; or what is derived from one does not fit its
                tools.
        """
        uses = [_Use(toolset, registry) for toolset in toolsets]
        try:
            lives = [self._enter(use) for use in uses]
            async with trio.open_nursery() as nursery:
                for use, life in zip(uses, lives, strict=True):
                    if use.toolset.required:
                        nursery.start_soon(_require, life)
                await _wait_patiently(lives)
            _check_configured(uses, lives)
            for use in uses:
                use.is_started = True
        except BaseExceptionGroup as group:
            self.close(registry)
            raise next(leaves(group)) from None
        except BaseException:
            self.close(registry)
            raise

    def close(self, registry: ToolRegistry) -> None:
        """End the toolsets that no other registry has; their tasks close what they opened."""
        for life in list(self._lives.values()):
            for use in life.uses:
                if use.registry is registry:
                    use.settle()
            life.uses = [use for use in life.uses if use.registry is not registry]
            if not life.uses:
                del self._lives[life.source]
                life.scope.cancel()
                life.is_over = True
                life.tell()  # who waits for it to connect waits in vain

    def _enter(self, use: _Use) -> _Life:
        source = use.toolset.source
        life = self._lives.get(source)
        if life is None:
            life = self._lives[source] = _Life(source)
            # In a context of its own: what it opens is nobody's request.
            contextvars.Context().run(self._begin, life)
        life.add(use)
        return life

    def _begin(self, life: _Life) -> None:
        self._nursery.start_soon(self._run, life, name=f"toolset {life.source.name}")

    async def _run(self, life: _Life) -> None:
        with life.scope:
            while True:
                begun = trio.current_time()
                error = await self._connect(life)
                if life.tools is None and (mistake := _mistake_in(error)) is not None:
                    self._refuse(life, mistake)
                    return
                if trio.current_time() - begun > STABLE:
                    life.tries = 0
                pause = min(FIRST_PAUSE * 2**life.tries, LONGEST_PAUSE)
                life.tries += 1
                self._lose(life, error, pause)
                await trio.sleep(pause)

    async def _connect(self, life: _Life) -> Exception | None:
        """Run a toolset until its connection ends; returns the reason, None where it was silent for too long."""
        toolset = life.source
        run = life.run = object()
        with trio.move_on_after(toolset.connect_timeout) as life.connecting:
            try:
                await toolset.run(lambda tools: self._publish(life, run, tools))
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
                error = failure_of(raised, "toolset", toolset.name)
            else:
                error = ConnectionResetError("its connection ended")
            finally:
                life.run = None
            return error
        return None

    def _publish(self, life: _Life, run: object, tools: Sequence[Tool]) -> None:
        """Give all agents the tools of a source; those of a run that is over are nobody's.

        Raises:
            RuntimeError: another thread calls it.
        """
        if not trio.lowlevel.in_trio_run() or trio.lowlevel.current_trio_token() is not self._loop:
            raise RuntimeError(
                f"toolset {life.source.name!r} publishes from another thread: "
                "call it by trio.from_thread.run_sync(publish, tools)"
            )
        if run is not life.run:
            return
        life.tools = tuple(tools)
        life.connecting.deadline = math.inf
        life.reason, life.error = "", None
        for use in life.uses:
            use.publish(life.tools)
        if self._events.watched:
            self._events.publish(ToolsetConnected(toolset=life.source.name, tools=len(life.tools)))
        life.tell()

    def _refuse(self, life: _Life, mistake: ConfigurationError) -> None:
        """End a toolset that is configured wrongly. Agents that have started already learn of it from the log."""
        name = life.source.name
        life.mistake = mistake
        life.reason = "it is configured wrongly"
        for use in life.uses:
            use.withdraw(life.reason)
        if any(use.is_started for use in life.uses):
            _log.error("toolset %s is configured wrongly: %s", shown(name), shown(str(mistake)))
        life.tell()

    def _lose(self, life: _Life, error: Exception | None, pause: float) -> None:
        name = life.source.name
        life.error = error
        silent = f"it did not answer within {life.source.connect_timeout:g} s"
        life.reason = silent if error is None else "its connection failed"
        life.told = told = silent if error is None else _words_of(error)
        _log.warning(
            "toolset %s is not available: %s; it is tried again in %g s", shown(name), shown(told), pause
        )
        for use in life.uses:
            use.withdraw(life.reason)
        if self._events.watched:
            kind = "silent" if error is None else type(next(leaves(error))).__name__
            self._events.publish(ToolsetLost(toolset=name, error=kind, delay=pause))
        life.tell()


def _mistake_in(error: Exception | None) -> ConfigurationError | None:
    """Return the configuration error that ended a connection, without the groups around it."""
    leaf = None if error is None else next(leaves(error))
    return leaf if isinstance(leaf, ConfigurationError) else None


def _check_configured(uses: Sequence[_Use], lives: Sequence[_Life]) -> None:
    for use, life in zip(uses, lives, strict=True):
        if (error := life.mistake or use.error) is not None:
            raise error


async def _require(life: _Life) -> None:
    """Wait for a toolset that has to be there.

    Raises:
        ToolsetUnavailable: it is not there in time.
        ConfigurationError: The toolset is configured wrongly.
    """
    with trio.move_on_after(life.source.connect_timeout):
        while life.tools is None and life.mistake is None and not life.is_over:
            await life.changed.wait()
    if life.mistake is not None:
        raise life.mistake
    if life.tools is None:
        silent = f"it did not answer within {life.source.connect_timeout:g} s"
        reason = "its agent was stopped meanwhile" if life.is_over else silent
        raise ToolsetUnavailable(life.source.name, life.told or reason) from life.error


async def _wait_patiently(lives: Sequence[_Life]) -> None:
    """Wait until each has connected or failed, but not much longer than for the last that connected."""
    deadline = math.inf
    while waiting := [life for life in lives if not life.is_settled]:
        known = _connected(lives)
        with trio.move_on_at(deadline) as scope:
            await _any_changed(waiting)
        if scope.cancelled_caught:
            return
        if _connected(lives) > known:
            deadline = trio.current_time() + PATIENCE


def _connected(lives: Sequence[_Life]) -> int:
    """Return how many have connected, but for those that are always there."""
    return sum(life.tools is not None and life.source.may_change for life in lives)


async def _any_changed(lives: Sequence[_Life]) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for life in lives:
            nursery.start_soon(wait, life.changed)


def _words_of(error: Exception) -> str:
    """Return what an error says, without the groups round it."""
    return worded(next(leaves(error)))
