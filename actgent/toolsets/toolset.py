"""Toolsets: named groups of tools that live as long as the agents that have them.

A toolset runs in one task, from the start of the first agent of a runtime that has it to the end of the last one. It
publishes its tools once it has connected, and again whenever they change. What derives one toolset from another is a
function from tools to tools, applied to whatever the inner one publishes:

    github.filtered(lambda tool: tool.effect == "pure").prefixed("gh_")
"""

import abc
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, get_args

import trio

from actgent.approvals import Ask
from actgent.errors import ConfigurationError, ToolsetUnavailable
from actgent.support.foreign import leaves
from actgent.tools.adapters import ToolShape
from actgent.tools.base import AskFor, Effect, Tool
from actgent.tools.generators import check_rule_function
from actgent.tools.outputs.results import worded
from actgent.tools.registry import LONGEST_NAME, to_tool

from . import derived

Publish = Callable[[Sequence[Tool]], None]
"""Takes the tools that a toolset has now."""
CONNECT_TIMEOUT = 10.0


class Toolset(abc.ABC):
    """A named group of tools with a life. Pass it in `tools=`; one object may serve several agents of a runtime.

    Subclass it and write `run`; `StaticToolset` is a group that never changes.
    """

    name: str
    """By which events, the log and models know it."""
    required: bool = False
    """True: an agent does not start without it. False: it starts, and the tools come as a notice."""
    connect_timeout: float = CONNECT_TIMEOUT
    """Seconds until it has to have published something for the first time."""
    outside: bool = True
    """True: what its tools return was written by strangers; see `Tool.outside`."""
    may_change: bool = True
    """False: it publishes the same tools once, and never fails."""

    @abc.abstractmethod
    async def run(self, publish: Publish) -> None:
        """Connect, publish the tools, and again whenever they change, until cancelled.

        Whatever it opens it closes itself: it is cancelled in the task that called it. To return or to raise is to have
        lost the connection: it is called again after a pause.

        Raises:
            ConfigurationError: The program has to change something before the toolset can connect. If the toolset has never
                connected, its agents do not start, and it is not called again.
        """

    @property
    def source(self) -> "Toolset":
        """The toolset that runs, from whose tools these are derived: itself, unless it is derived."""
        return self

    def tools_from(self, published: Sequence[Tool]) -> Sequence[Tool]:
        """Return its tools, from those that its source published."""
        return published

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # --- what derives others ---------------------------------------------------------------

    def filtered(self, keep: Callable[[Tool], bool] | Iterable[str]) -> "Toolset":
        """Keep those tools only that have one of these names, or of which a function says True.

        Raises:
            ConfigurationError: The argument is neither names nor a sync function of the tool.
        """
        return DerivedToolset(self, derived.filtering(keep))

    def prefixed(self, prefix: str) -> "Toolset":
        """Put text in front of the names of all tools."""
        return DerivedToolset(self, derived.renaming(lambda name: prefix + name))

    def renamed(self, names: Mapping[str, str] | Callable[[str], str]) -> "Toolset":
        """Give tools other names; those that a mapping does not have keep theirs."""
        return DerivedToolset(
            self, derived.renaming(names if callable(names) else lambda name: names.get(name, name))
        )

    def approved(self, rule: Ask | AskFor | None = None) -> "Toolset":
        """Let a person approve the calls: all of them, or those of which a function of the call says so.

        Raises:
            ConfigurationError: The rule is neither an `Ask` nor a sync function of the call.
        """
        if rule is not None and not isinstance(rule, Ask):
            check_rule_function("approved()", rule, takes="(call)")
        return DerivedToolset(self, derived.changing(lambda _: {"approval": True if rule is None else rule}))

    def with_effect(self, effect: Effect | Callable[[Tool], Effect]) -> "Toolset":
        """Say what the tools do outside, so what a restart may repeat: for all of them, or by a function of the tool.

        Raises:
            ConfigurationError: The effect is none that there is.
        """
        if not callable(effect) and effect not in get_args(Effect):
            raise ConfigurationError(
                f"with_effect() takes {', '.join(get_args(Effect))} or a function of the tool, not {effect!r:.200}"
            )
        return DerivedToolset(
            self, derived.changing(lambda tool: {"effect": effect(tool) if callable(effect) else effect})
        )

    def cached(self, results: int = 256) -> "Toolset":
        """Keep so many results by arguments of each tool whose effect is not `once`.

        Raises:
            ConfigurationError: The number of results is not 0 or more.
        """
        if type(results) is not int or results < 0:
            raise ConfigurationError(f"cached() takes a number of results, 0 or more, not {results!r:.200}")
        return DerivedToolset(
            self, derived.changing(lambda tool: {} if tool.effect == "once" else {"cache": results})
        )

    def configured(
        self, values: Mapping[str, Any] | None = None, *, shown: Iterable[str] = (), **more: Any
    ) -> "Toolset":
        """Fill in parameters of the tools that have them; the model never sees these, nor can it give them.

        A parameter in `shown` stays the model's to give, and the value is used where it does not. A tool's own
        configuration goes before that of its toolset.

        Raises:
            ConfigurationError: when the tools are published: no tool has such a parameter, or the value does not fit.
        """
        return DerivedToolset(
            self, derived.configuring({**(values or {}), **more}, shown=shown, owner=self.name)
        )


class DerivedToolset(Toolset):
    """A toolset whose tools are made from those of another one, which runs once for all that are derived from it."""

    def __init__(self, inner: Toolset, derive: Callable[[Sequence[Tool]], Sequence[Tool]]) -> None:
        """Args: `derive` is sync, and keeps the tools that it gets as they are."""
        self.inner = inner
        self.name = inner.name
        self.required = inner.required
        self.connect_timeout = inner.connect_timeout
        self.may_change = inner.may_change
        self.outside = inner.outside
        self._derive = derive

    @property
    def source(self) -> Toolset:
        return self.inner.source

    def tools_from(self, published: Sequence[Tool]) -> Sequence[Tool]:
        return self._derive(self.inner.tools_from(published))

    async def run(self, publish: Publish) -> None:
        await self.source.run(lambda tools: publish(self.tools_from(tools)))


class StaticToolset(Toolset):
    """Tools that are always there, as a group.

    Raises:
        ConfigurationError: the name is empty, or something else than a tool is among them.
    """

    may_change = False
    outside = False
    """The program's own, but for those of its tools that say otherwise."""

    def __init__(self, name: str, tools: Iterable[Tool | ToolShape]) -> None:
        self.name = check_name(name)
        self.tools = tuple(map(to_tool, tools))

    async def run(self, publish: Publish) -> None:
        publish(self.tools)
        await trio.sleep_forever()


def static_tools(toolset: Toolset) -> Sequence[Tool]:
    """The tools of a toolset that are known before it runs: those of a static one, without what is derived from them."""
    source = toolset.source
    return source.tools if isinstance(source, StaticToolset) else ()


def check_name(name: object) -> str:
    """The name of a toolset.

    Raises:
        ConfigurationError: it is no text of 1 to 64 printable characters.
    """
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ConfigurationError(
            f"the name of a toolset is 1 to {LONGEST_NAME} printable characters, not {name!r:.80}"
        )
    return name


def check_toolset(toolset: Toolset) -> None:
    """Refuse a toolset that cannot be run.

    Raises:
        ConfigurationError: it has no name, or nothing to wait for by its `connect_timeout`.
    """
    check_name(getattr(toolset, "name", None))
    seconds: object = toolset.connect_timeout  # a subclass may have set anything
    if not isinstance(seconds, int | float) or not seconds > 0:
        raise ConfigurationError(
            f"toolset {toolset.name!r}: connect_timeout= is a number of seconds above 0, not {seconds!r}"
        )


@asynccontextmanager
async def open_toolset(toolset: Toolset) -> AsyncGenerator[Callable[[], Sequence[Tool]]]:
    """Run a toolset without an agent: a block with a function that gives the tools as they are now.

    Raises:
        ToolsetUnavailable: it published nothing within its `connect_timeout`, or its connection failed before.
        ConfigurationError: The toolset is configured wrongly.
    """
    published: list[Sequence[Tool]] = []
    first = trio.Event()

    def publish(tools: Sequence[Tool]) -> None:
        published[:] = [tuple(tools)]
        first.set()

    failure: BaseException | None = None

    async def run() -> None:
        nonlocal failure
        try:
            await toolset.run(publish)
        except Exception as error:
            if published:
                raise
            failure = next(leaves(error))
            first.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, name=f"toolset {toolset.name}")
        with trio.move_on_after(toolset.connect_timeout):
            await first.wait()
        if published:
            yield lambda: published[0]
        elif failure is None:
            raise ToolsetUnavailable(toolset.name, f"it did not answer within {toolset.connect_timeout:g} s")
        nursery.cancel_scope.cancel()
    if isinstance(failure, ConfigurationError | ToolsetUnavailable):
        raise failure
    if failure is not None:
        raise ToolsetUnavailable(toolset.name, worded(failure)) from failure
