"""Toolsets: named groups of tools that are connected as long as agents use them.

A toolset runs in one task, from the start of the first agent of a runtime that uses it until the last one stops. It
publishes its tools after connecting, and again whenever they change. A derived toolset applies a function to the
published tools:

    github.filtered(lambda tool: tool.effect == "pure").prefixed("gh_")
"""

import abc
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, get_args

import attrs
import trio

from actgent.approvals import ApprovalRequest
from actgent.errors import ConfigurationError, ToolsetUnavailable
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.unknown_name_hints import lists_arguments
from actgent.support.user_code_calls import leaves
from actgent.tools.callable_kinds import check_rule_function
from actgent.tools.outputs.result_text import error_text
from actgent.tools.tool_adapters import ToolProtocol
from actgent.tools.tool_interface import ApprovalRule, Effect, Tool, WrappedTool
from actgent.tools.tool_registry import MAX_NAME_CHARACTERS, to_tool

from . import tool_transformations

Publish = Callable[[Sequence[Tool]], None]
"""Callback that receives the current tools of a toolset."""
CONNECT_TIMEOUT_SECONDS = 10.0
"""Default of `Toolset.connect_timeout`."""


@attrs.frozen(kw_only=True, repr=False)
class ConnectionInfo(FieldRepr):
    """Description of a toolset's connection for operators."""

    kind: str
    """Kind of the server, such as `mcp`."""
    address: str
    """Name of the server program, or origin of the server's URL."""
    protocol: str = ""
    """Protocol revision of the open connection; empty if it is not connected."""
    server: str = ""
    """Name and version that the connected server reports; empty if it is not connected."""
    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)
    """Texts that are removed from error messages: header values, environment variables, parts of the URL."""

    def hide_secrets(self, text: str) -> str:
        """Return a text with each secret replaced by `[hidden]`."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "[hidden]")
        return text


class Toolset(abc.ABC):
    """A named group of tools with a connection. Pass it in `tools=`; several agents of a runtime may share one object.

    Subclass it and implement `run`. `StaticToolset` is a group that never changes.
    """

    name: str
    """Name of the toolset in events, logs and notices to models."""
    required: bool = False
    """True if agents that use the toolset do not start before it has connected. If False, a notice announces the tools later."""
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS
    """Maximum time in seconds from the start of `run` to its first publication of tools."""
    outside: bool = True
    """True if the results of the tools are untrusted text, which the model gets in delimiters."""
    may_change: bool = True
    """False if the toolset publishes its tools once and never fails."""

    @abc.abstractmethod
    async def run(self, publish: Publish) -> None:
        """Connect, and publish the tools now and whenever they change, until cancelled.

        `run` must close everything it opens; it is cancelled in its own task. If it returns or raises, the connection is lost,
        and `run` is called again after a delay.

        Raises:
            ConfigurationError: The program must change something before the toolset can connect. If the toolset has never
                connected, its agents do not start, and `run` is not called again.
        """

    @property
    def source(self) -> "Toolset":
        """Toolset that runs and publishes the tools. For a derived toolset, it is the toolset from which it was derived."""
        return self

    def tools_from(self, published: Sequence[Tool]) -> Sequence[Tool]:
        """Convert the tools that the source of this toolset has published to the tools that this toolset offers."""
        return published

    @property
    def connection_info(self) -> ConnectionInfo | None:
        """Description of the connection for operators; None if the toolset describes none.

        Without a description, the texts of its errors are not shown.
        """
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # --- derived toolsets ------------------------------------------------------------------

    def filtered(self, keep: Callable[[Tool], bool] | Iterable[str]) -> "Toolset":
        """Return a toolset with some of the tools: those whose name is in `keep`, or for which the function `keep` returns True.

        Raises:
            ConfigurationError: The argument is neither names nor a sync function of the tool, or the connected toolset has
                no tool with one of the names.
        """
        return DerivedToolset(self, tool_transformations.filter_tools(keep, owner=self.name))

    def prefixed(self, prefix: str) -> "Toolset":
        """Return a toolset that puts `prefix` before each tool name, e.g. to keep two toolsets apart."""
        return DerivedToolset(
            self, tool_transformations.rename_tools(lambda name: prefix + name, owner=self.name)
        )

    def renamed(self, names: Mapping[str, str] | Callable[[str], str]) -> "Toolset":
        """Return a toolset with renamed tools. Names that a mapping does not contain are unchanged.

        Raises:
            ConfigurationError: The connected toolset has no tool with one of the mapping's names.
        """
        return DerivedToolset(self, tool_transformations.rename_tools(names, owner=self.name))

    def approved(self, rule: ApprovalRequest | ApprovalRule | None = None) -> "Toolset":
        """Return a toolset whose calls require approval: all calls, or the calls for which `rule` returns True or an `ApprovalRequest`.

        Raises:
            ConfigurationError: The rule is neither an `ApprovalRequest` nor a sync function of the call.
        """
        if rule is not None and not isinstance(rule, ApprovalRequest):
            check_rule_function("approved()", rule, takes="(call)")
        return DerivedToolset(
            self,
            tool_transformations.override_options(lambda _: {"approval": True if rule is None else rule}),
        )

    def with_effect(self, effect: Effect | Callable[[Tool], Effect]) -> "Toolset":
        """Return a toolset whose tools have the effect `effect`. If `effect` is a function, it returns the effect of each tool.

        Raises:
            ConfigurationError: The effect is not one of "pure", "idempotent" and "once".
        """
        if not callable(effect) and effect not in get_args(Effect):
            raise ConfigurationError(
                f"with_effect() requires one of {', '.join(get_args(Effect))}, or a function of the tool, not {effect!r:.200}"
            )
        return DerivedToolset(
            self,
            tool_transformations.override_options(
                lambda tool: {"effect": effect(tool) if callable(effect) else effect}
            ),
        )

    def labelled(
        self,
        *,
        sinks: Mapping[str, Iterable[str]] | None = None,
        trusted: Iterable[str] = (),
        audience: Mapping[str, str | Iterable[str]] | None = None,
        readers: Mapping[str, str | Iterable[str]] | None = None,
    ) -> "Toolset":
        """Return a toolset whose tools have additional declarations for `Agent(policy=)`, such as sinks (parameters that need trusted values).

        Args:
            sinks: Parameters that need trusted values, by tool name. An empty tuple declares that all values are harmless.
            trusted: Names of tools whose results contain no text of third parties.
            audience: Parameters whose values name the readers of the data of a call, by tool name.
            readers: Names of the owners that may read the results, by tool name; `owner` is the owner of the topmost session.

        Raises:
            ConfigurationError: A value has the wrong type. When the tools are published: the toolset has no tool or
                parameter with this name.
        """
        return DerivedToolset(
            self,
            tool_transformations.declare_labels(
                sinks or {}, trusted, audience or {}, readers or {}, owner=self.name
            ),
        )

    def cached(self, results: int = 256) -> "Toolset":
        """Return a toolset that caches up to `results` results of each tool, except tools with the effect `once`.

        Raises:
            ConfigurationError: The number of results is not 0 or more.
        """
        if type(results) is not int or results < 0:
            raise ConfigurationError(
                f"cached() requires a number of results of at least 0, not {results!r:.200}"
            )
        return DerivedToolset(
            self,
            tool_transformations.override_options(
                lambda tool: {} if tool.effect == "once" else {"cache": results}
            ),
        )

    def configured(
        self, values: Mapping[str, Any] | None = None, *, shown: Iterable[str] = (), **more: Any
    ) -> "Toolset":
        """Return a toolset with fixed values for parameters, which the model neither sees nor sets.

        For a parameter in `shown`, the value is only the default, and the model may set it. The configuration of a
        tool takes precedence over the configuration of its toolset.

        Raises:
            ConfigurationError: When the tools are published: no tool has the parameter, or a value does not match its
                schema.
        """
        return DerivedToolset(
            self,
            tool_transformations.fill_parameters({**(values or {}), **more}, shown=shown, owner=self.name),
        )


class DerivedToolset(Toolset):
    """A toolset whose tools are derived from those of another toolset. The source runs once for all derived toolsets."""

    def __init__(self, inner: Toolset, derive: Callable[[Sequence[Tool]], Sequence[Tool]]) -> None:
        """Derive a toolset from `inner` with a sync function, which must not change the tools that it receives."""
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


class Deferred(DerivedToolset):
    """A toolset whose tools are not offered to the model, which finds them by `find_tools` and runs them by `call_tool`.

    So 500 tools take the prompt space of two. `keep` names the tools that are still offered to the model. A call
    through `call_tool` is checked, approved, counted and recorded like a direct call of the tool.
    """

    may_change = True

    def __init__(self, inner: Toolset, *, keep: Iterable[str] = ()) -> None:
        kept = frozenset([keep] if isinstance(keep, str) else keep)

        def derive(tools: Sequence[Tool]) -> list[Tool]:
            return [tool if tool.name in kept else WrappedTool(tool, deferred=True) for tool in tools]

        super().__init__(inner, derive)
        self.may_change = True


@lists_arguments
class StaticToolset(Toolset):
    """A fixed group of tools.

    Raises:
        ConfigurationError: The name is empty, or an item is not a tool.
    """

    may_change = False
    outside = False
    """False, because the tools are the program's own. A tool may set `outside` itself."""

    def __init__(self, name: str, tools: Iterable[Tool | ToolProtocol]) -> None:
        self.name = check_name(name)
        self.tools = tuple(map(to_tool, tools))

    async def run(self, publish: Publish) -> None:
        publish(self.tools)
        await trio.sleep_forever()


def static_tools(toolset: Toolset) -> Sequence[Tool]:
    """Return the fixed tools of a toolset's source if it is a `StaticToolset`; empty for other toolsets.

    For a derived toolset, these are the tools before the derivation.
    """
    source = toolset.source
    return source.tools if isinstance(source, StaticToolset) else ()


def check_name(name: object) -> str:
    """Check the name of a toolset, and return it.

    Raises:
        ConfigurationError: The name is not text of 1 to 64 printable characters.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable():
        raise ConfigurationError(
            f"the name of a toolset must have 1 to {MAX_NAME_CHARACTERS} printable characters, not {name!r:.80}"
        )
    return name


def check_toolset(toolset: Toolset) -> None:
    """Check the name and the `connect_timeout` of a toolset.

    Raises:
        ConfigurationError: The name is invalid, or `connect_timeout` is not a number above 0.
    """
    check_name(getattr(toolset, "name", None))
    seconds: object = toolset.connect_timeout  # subclasses may set any value
    if not isinstance(seconds, int | float) or not seconds > 0:
        raise ConfigurationError(
            f"toolset {toolset.name!r}: connect_timeout= must be a number of seconds above 0, not {seconds!r}"
        )


@asynccontextmanager
async def open_toolset(toolset: Toolset) -> AsyncGenerator[Callable[[], Sequence[Tool]]]:
    """Async context manager: run a toolset without an agent. The block gets a function that returns the current tools.

    Raises:
        ToolsetUnavailable: The toolset published nothing within its `connect_timeout`, or its connection failed
            before that.
        ConfigurationError: The configuration of the toolset is wrong.
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
            raise ToolsetUnavailable(
                toolset.name, f"it did not publish tools within {toolset.connect_timeout:g} s"
            )
        nursery.cancel_scope.cancel()
    if isinstance(failure, ConfigurationError | ToolsetUnavailable):
        raise failure
    if failure is not None:
        raise ToolsetUnavailable(toolset.name, error_text(failure)) from failure
