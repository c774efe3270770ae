"""What an agent can do: the `Tool` that all kinds of tools are, and what it is told at a call."""

import abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal

import attrs
import trio
from typing_extensions import TypeVar

from actgent.approvals import Ask, Grant
from actgent.errors import DatabaseFailed, DepsMissing, InvalidToolSchema, ToolTimeout
from actgent.messages import CallProgress, ToolCall, ToolResult, ToolSpec
from actgent.support.foreign import is_awaitable
from actgent.support.leads import for_tool_contexts
from actgent.support.quick_init import maker

from .outputs.results import ResultCache
from .schemas import ArgumentsValidator
from .threads import Threads, ThreadShare
from .time_limits import TimeLimit, time_limits

Effect = Literal["pure", "idempotent", "once"]
"""What a tool does outside, and so what a restart may repeat: nothing; the same again; something that counts."""


DEFAULT_TIMEOUT = 60.0
"""Seconds a call may take whose tool says nothing."""
LONGEST_PROGRESS = 2000
"""Characters of a text that tells of progress."""

AskFor = Callable[[ToolCall], bool | Ask]
"""True if a person has to approve this call; sync, and it only looks."""

DepsT = TypeVar("DepsT", default=Any)
"""The type of what a program gives the tools of its agents."""
DepsT_co = TypeVar("DepsT_co", covariant=True, default=Any)
DepsT_contra = TypeVar("DepsT_contra", contravariant=True, default=Any)


class HasState(typing.Protocol):
    """Something with a store, such as a session."""

    @property
    def state(self) -> Any: ...
    @property
    def scope(self) -> str:
        """What the effect keys of its calls begin with."""


class CallsTools(typing.Protocol):
    """What a tool is given whose `calls_tools` is True, to call others of its agent while it runs."""

    def names(self) -> Sequence[str]:
        """The names of the tools that may be called."""
        ...

    def parameters(self, name: str) -> Sequence[str]:
        """The names of a tool's parameters, in their order."""
        ...

    def begun_at(self) -> float:
        """Unix time in seconds at which the call ran first, the same whenever it runs again."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a call, or take what came of it when this ran before."""
        ...


@for_tool_contexts
@attrs.define(kw_only=True, eq=False)
class ToolContext(Generic[DepsT_co]):
    """What a tool may know of the call it serves. Made for that call alone, and only to be read.

    A tool that takes a `ToolContext[Shop]` finds a `Shop` in `deps`, and an agent with it is given one.
    """

    session_id: str = ""
    """The session whose turn makes the call; empty outside of an agent."""
    owner: str = ""
    """Whose session that is; empty outside of an agent."""
    agent: str = ""
    """The name of its agent; empty outside of one."""
    call_id: str = ""
    """The `ToolCall.id`; empty outside of an agent."""
    _effect_key: str = ""
    """One that was given; otherwise it follows from the session and the call, once somebody asks for it."""
    _state: Any = None
    _source: HasState | None = attrs.field(default=None, repr=False)
    """What has the scope, and the state, which is made when somebody asks for it."""
    _deps: Any = attrs.field(default=None, repr=False, alias="deps")
    """Those of the run alone."""
    session: Any = None
    """The `Session`, for tools that talk to it; None outside of an agent."""
    threads: Threads | ThreadShare | None = attrs.field(default=None, repr=False)
    """Where sync functions run; None outside of an agent."""
    tool_name: str = ""
    """The name that the model called it by."""
    report: Callable[[CallProgress], object] | None = attrs.field(default=None, repr=False)
    """Takes what `progress` says, in any thread; None: nobody wants to know, or the call has ended."""
    approval: Grant | None = None
    """What a person said who let this call run: `Approve` or `Edit`; None: nobody was asked."""
    tools: CallsTools | None = attrs.field(default=None, repr=False)
    """By what a tool calls others that says `calls_tools`; None for all other tools, and outside of an agent."""
    has_begun: bool = attrs.field(default=False, init=False, repr=False)
    """True if an attempt was made before, which may have done something."""
    origin: str = attrs.field(default="", init=False, repr=False)
    """A tool sets it if the result of this call repeats text from outside: the name of its source. Empty: it does not."""
    _database: Any = attrs.field(default=None, init=False, repr=False)
    """What `database` gave this attempt."""
    waits_to_begin: bool = attrs.field(default=False, init=False, repr=False)
    """True if it was stopped while it waited for a thread, so that nothing of it was done."""

    @property
    def effect_key(self) -> str:
        """The same for every repetition of this call, e.g. after a crash: hand it to services that drop duplicates.

        No other call has it, in no session of any agent; empty outside of an agent.
        """
        if self._effect_key or not self.call_id:
            return self._effect_key
        scope = self.session_id if self._source is None else self._source.scope
        return f"{scope}/{self.call_id}"

    def progress(self, done: float | None = None, total: float | None = None, text: str = "") -> None:
        """Tell `on_tool_progress`, events, streams and the terminal how far the call has come; also from a thread.

        Never waits. A slow reader gets the latest only. Longer texts are cut to 2000 characters.
        """
        report = self.report
        if report is not None:
            shown = text[:LONGEST_PROGRESS]
            report(
                CallProgress(
                    call_id=self.call_id, tool_name=self.tool_name, done=done, total=total, text=shown
                )
            )

    def never_began(self) -> None:
        """The call was stopped while it waited for a thread."""
        self.waits_to_begin = not self.has_begun

    @property
    def state(self) -> Any:
        """The session's store: a read-only mapping with `dispatch`. None outside of a session."""
        return self._state if self._state is not None or self._source is None else self._source.state

    @property
    def database(self) -> Any:
        """The tables of its agent (`Agent(database=...)`), a `CallDatabase`: what this call changes there is changed once.

        Raises:
            DatabaseFailed: the agent has none.
        """
        if self._database is None:
            found = None if self.session is None else self.session.database
            if found is None:
                raise DatabaseFailed(
                    "a tool asked for a database, and its agent has none: pass it Agent(database=...)"
                )
            self._database = found.of_call(self.effect_key)
        return self._database

    def begin_attempt(self) -> None:
        """The call begins, or begins again: what it changes in its database are its first changes."""
        self._database = None

    @property
    def deps(self) -> DepsT_co:
        """What the program gave: to the run, else to the session, else to the agent.

        Raises:
            DepsMissing: nothing.
        """
        found: DepsT_co | None = self._deps
        if found is None and self.session is not None:
            found = self.session.deps
        if found is None:
            raise DepsMissing(self.agent, self.session_id, "a tool asked for deps, and there are none")
        return found

    def of_call(
        self, call: ToolCall, approval: Grant | None, *, is_inline: bool, is_only: bool = False
    ) -> "ToolContext":
        """The same for one call; itself, if no other call `is_only`. Where that may run in a thread, the store is made now, in the one that it belongs to."""
        if is_only:
            self.call_id, self.tool_name, self.approval, self._effect_key = call.id, call.name, approval, ""
            if not is_inline:
                self._state = self.state
            return self
        return make_context(  # written out: attrs.evolve would cost more than the rest of an inline call
            session_id=self.session_id,
            owner=self.owner,
            agent=self.agent,
            call_id=call.id,
            state=self._state if is_inline else self.state,
            source=self._source,
            deps=self._deps,
            session=self.session,
            threads=self.threads,
            tool_name=call.name,
            report=self.report,
            approval=approval,
        )


make_context: Callable[..., ToolContext[Any]] = maker(ToolContext)


@attrs.frozen(kw_only=True)
class ToolHooks:
    """Called around each call of a tool, sync, in the session's task; a hook that raises is logged and left out."""

    on_start: Callable[[ToolCall], object] | None = None
    """Called once, before the first attempt."""
    on_retry: Callable[[ToolCall, Exception], object] | None = None
    """Called before each further attempt, with what ended the one before."""
    on_success: Callable[[ToolCall, ToolResult], object] | None = None
    """Called with the result that the model gets."""
    on_error: Callable[[ToolCall, ToolResult], object] | None = None
    """Called with the result that says what went wrong."""
    on_exception: Callable[[ToolCall, Exception], object] | None = None
    """Called before `on_error` with what the tool raised, whose `__traceback__` tells where."""


class Tool(abc.ABC, Generic[DepsT_contra]):
    """Something an agent can do. Subclass it, or write a function with `@tool`.

    A subclass has `execute(arguments, context)` and `parameters`, or in the short form `execute(parameters)` and `get_schema()`.
    In the short form `execute` may be sync, which runs it in a worker thread, or async; without a `name` the tool has the name of
    its class, and without a `description` the docstring of its class.

    A tool is shared: one object serves many agents and concurrent calls.
    """

    def __init__(self, name: str | None = None, description: str | None = None) -> None:
        """Set the name and the description; None keeps that of the class."""
        if name is not None:
            self.name = name
        if description is not None:
            self.description = description

    def __init_subclass__(cls, **options: Any) -> None:
        """Complete a class that is written in the short form."""
        super().__init_subclass__(**options)
        own = vars(cls)
        if takes_parameters_alone(own.get("execute")):
            setattr(cls, "execute", _with_optional_context(own["execute"]))  # noqa: B010 - mypy refuses the assignment
        if callable(own.get("get_schema")) and "parameters" not in own:
            schema = functools.cached_property(_schema_of)
            schema.__set_name__(cls, "parameters")
            setattr(cls, "parameters", schema)  # noqa: B010 - as above
        if hasattr(cls, "get_schema"):
            _describe_by_class(cls)

    name: str
    """`^[a-zA-Z0-9_.-]{1,64}$`; what the model calls it by."""
    description: str = ""
    """When to call it, in words for the model; real definitions often have none."""
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments (an object); checked before each call.

    Arguments that its `properties` do not name are refused, unless it says that there may be others
    (`additionalProperties`, or a combination of schemas); where it names none, all pass.
    """
    effect: Effect = "once"
    timeout: float | None = None
    """Seconds a call may take, its repetitions and their delays included; None is the agent's default (60)."""
    retries: int = 0
    """How often a call is repeated after an exception of a `retry_on` class."""
    retry_on: tuple[type[Exception], ...] = ()
    """What the tool declares retryable; nothing by default, and never its arguments' errors."""
    retry_delay: float = 1.0
    """Seconds before the first repetition; doubles each time."""
    cache: int = 0
    """How many results are kept by arguments, for all agents and sessions alike; 0 keeps none."""
    parallel: bool | None = None
    """True if a call may overlap with neighbouring calls of the same answer that may overlap; False if it may not.

    None: True for `effect="pure"` and for agents with `parallel_tools=True`, else False. See docs/guides/tools.md.
    """
    alone: bool = False
    """A barrier: calls before it finish first, it runs by itself, later ones are checked after it.

    In addition to `parallel=False`, a barrier waits for the approvals of earlier calls, and later calls for its approval.
    """
    approval: bool | Ask | AskFor = False
    """True if a person has to approve each call; an `Ask` words the question, a function decides for each call."""
    hooks: Sequence[ToolHooks] = ()
    process_output: Callable[[str], str] | None = None
    """Makes the text that the model reads of the text that a call returned, as an attribute or a method; sync, and quick.

    Errors, pictures and files do not pass it; what it raises is the call's error.
    """
    deps_type: Any = None
    """The type of the deps that it needs, and without which no turn begins; None: it needs none."""
    inline: bool = False
    """True: `execute` never waits, so it runs without a timer."""
    calls_tools: bool = False
    """True: it calls other tools while it runs, by `context.tools`.

    It runs again from its beginning where one of them has to wait for a person, or the process ended meanwhile, and then
    has to make the same calls in the same order; so its effect is `idempotent`, and it is `alone`.
    """
    deferred: bool = False
    """True: a model finds it by `find_tools` and runs it by `call_tool`, in place of being offered it."""
    outside: bool = False
    """True: what it returns and raises was written by strangers; the model reads it between marks, as data."""
    origin: str = ""
    """The name of the toolset that it comes from; empty: the agent was given it by itself."""

    is_gateway = False
    """True for `find_tools` and `call_tool`, by which a model reaches other tools; one of a program's own is none."""
    in_every_mode = False
    """True for `find_tools` and `read_result`, which change nothing and tell nothing that a mode could hide."""

    @abc.abstractmethod
    async def execute(self, arguments: Mapping[str, Any], context: ToolContext[DepsT_contra]) -> object:
        """Run one call with arguments that fit the schema, and return its result.

        Text is the result as it is; anything else becomes JSON. What it raises becomes the
        call's error result, for the model to read; `ToolError` words it without the class name.
        """

    async def run(
        self, arguments: Mapping[str, Any], context: ToolContext[DepsT_contra] | None = None
    ) -> object:
        """Run one call by hand, e.g. in a test or a script: checked and timed as an agent has it, and its value returned as it is.

        Without a context it is told of no agent or session. Repetitions, approvals and modes are an agent's.

        Raises:
            InvalidArguments: the arguments do not fit `parameters`; it did not run.
            ToolTimeout: it took longer than its `timeout`, or 60 seconds where it has none.
        """
        checked = self.argument_validator.validate(arguments)
        told: ToolContext[Any] = ToolContext(tool_name=self.name) if context is None else context
        seconds = DEFAULT_TIMEOUT if self.timeout is None else self.timeout
        with trio.move_on_after(seconds) as scope:
            time_limits.set((TimeLimit(scope),))
            return await self.execute(checked, told)
        raise ToolTimeout(self.name, seconds)

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        return ToolSpec(self.name, self.description, self.parameters)

    @functools.cached_property
    def argument_validator(self) -> ArgumentsValidator:
        """Checks arguments against `parameters`; compiled once for each tool."""
        return ArgumentsValidator(self.name, self.parameters)

    @functools.cached_property
    def result_cache(self) -> ResultCache:
        """The results that `cache` keeps."""
        return ResultCache(self.cache)


# --- the short form of a subclass ------------------------------------------------------------


def takes_parameters_alone(execute: object) -> bool:
    """Return True for a function `execute(self, parameters)`, which is not told the context of its call."""
    if not isinstance(execute, types.FunctionType):
        return False
    code = execute.__code__
    varies = inspect.CO_VARARGS | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
    return code.co_argcount == 2 and not code.co_kwonlyargcount and not code.co_flags & varies  # noqa: PLR2004 - self and parameters


def _with_optional_context(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls `execute(self, parameters)` as it is, or with a context as an agent calls its tools."""

    @functools.wraps(execute)
    def called(self: Tool, parameters: Mapping[str, Any], context: ToolContext | None = None) -> Any:
        call = functools.partial(execute, self)
        return call(parameters) if context is None else execute_shaped(self, call, parameters, context)

    return called


async def execute_shaped(
    tool: Any, execute: Callable[[dict[str, Any]], Any], parameters: Mapping[str, Any], context: ToolContext
) -> object:
    """Run `execute(parameters)` of a tool: a sync one in a worker thread, unless the tool is `inline`."""
    if getattr(tool, "inline", False) or _is_async(execute):
        result = execute(dict(parameters))
    else:
        threads = context.threads or Threads()
        result = await threads.run_sync(
            functools.partial(execute, dict(parameters)), name=tool.name, never_began=context.never_began
        )
    return await result if is_awaitable(result) else result


def _is_async(execute: Callable[..., Any]) -> bool:
    function = execute.func if isinstance(execute, functools.partial) else execute
    return inspect.iscoroutinefunction(function)


def _schema_of(self: Any) -> Mapping[str, Any]:
    """Return the schema that a tool of the short form gives.

    Raises:
        InvalidToolSchema: `get_schema` failed.
    """
    try:
        return dict(self.get_schema())
    except Exception as error:
        raise InvalidToolSchema(
            f"tool {self.name!r}: get_schema() returns a JSON Schema of an object, but {type(error).__name__}: {error}",
            tool_name=self.name,
        ) from error


def _describe_by_class(cls: type[Tool]) -> None:
    """Name and describe the tools of a class by the class, where neither it nor a base of it says anything."""
    own, bases = vars(cls), cls.__mro__[1:]
    is_declared = "name" in own or "name" in own.get("__annotations__", {})
    if not is_declared and getattr(cls, "name", None) in (None, *(base.__name__ for base in bases)):
        cls.name = cls.__name__
    inherited = ("", *map(_doc_of, bases))
    if "description" not in own and cls.description in inherited and (doc := _doc_of(cls)):
        cls.description = doc


def _doc_of(cls: type) -> str:
    """Return the docstring of a class itself, without that of its bases; empty if it has none."""
    return inspect.cleandoc(vars(cls).get("__doc__") or "")


class WrappedTool(Tool):
    """A tool that is another one but for some of its options; the other one stays as it is."""

    def __init__(self, inner: Tool, **options: Any) -> None:
        """Args: `options` are attributes of `Tool` that are to differ."""
        self.inner = inner
        for option in Tool.__annotations__:
            setattr(self, option, options.get(option, getattr(inner, option)))

    @functools.cached_property
    def argument_validator(self) -> ArgumentsValidator:
        inner = self.inner
        is_same = self.name == inner.name and self.parameters is inner.parameters
        return inner.argument_validator if is_same else ArgumentsValidator(self.name, self.parameters)

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        return await self.inner.execute(arguments, context)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def innermost(tool: Tool) -> Tool:
    """The tool that all wrappers are round."""
    while isinstance(tool, WrappedTool):
        tool = tool.inner
    return tool
