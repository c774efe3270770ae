"""`Tool`, the base class of all tools, and `ToolContext`, the context of one tool call."""

import abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal

import attrs
import trio
from typing_extensions import TypeVar

from actgent.approvals import ApprovalRequest, Grant
from actgent.errors import DatabaseFailed, DepsMissing, InvalidToolSchema, ToolTimeout
from actgent.messages import CallProgress, ToolCall, ToolResult, ToolSpec
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import hints_for_tool_contexts
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.support.unknown_name_hints import lists_arguments
from actgent.support.user_code_calls import is_awaitable

from . import schemas
from .outputs.result_text import ResultCache
from .pausable_time_limits import TimeLimit, time_limits
from .worker_threads import Threads, ThreadShare

Effect = Literal["pure", "idempotent", "once"]
"""Side effect of a tool, which decides if a restart may repeat its calls.

"pure": no side effect. "idempotent": a repetition has the same effect as one call. "once": a repetition would act
twice.
"""


DEFAULT_TIMEOUT_SECONDS = 60.0
"""Time limit of a call if neither the tool nor the agent sets one."""
MAX_PROGRESS_CHARACTERS = 2000
"""Maximum length of a progress text; longer texts are truncated."""

ApprovalRule = Callable[[ToolCall], bool | ApprovalRequest]
"""Sync function of a call: True or an `ApprovalRequest` if the call needs an approval, False if it does not."""

DepsT = TypeVar("DepsT", default=Any)
"""Type of the dependencies that a program passes to its agents' tools."""
DepsT_co = TypeVar("DepsT_co", covariant=True, default=Any)
DepsT_contra = TypeVar("DepsT_contra", contravariant=True, default=Any)


class StateSource(typing.Protocol):
    """Interface of an object with a state store, such as a session."""

    @property
    def state(self) -> Any: ...
    @property
    def scope(self) -> str:
        """Prefix of the idempotency keys of the session's tool calls."""

    @property
    def quota_owner(self) -> str:
        """Name of the owner of the topmost session."""


class NestedToolCalls(typing.Protocol):
    """Interface through which a tool with `calls_tools=True` calls other tools of its agent."""

    @property
    def sources(self) -> str:
        """Untrusted sources of the results of all nested calls so far, as text; empty if there are none."""
        ...

    def names(self) -> Sequence[str]:
        """Return the names of the tools that nested calls may run.

        Tools that make nested calls themselves are not among them.
        """
        ...

    def parameters(self, name: str) -> Sequence[str]:
        """Return the parameter names of the tool `name` in the order of its schema."""
        ...

    def first_started_at(self) -> float:
        """Return the Unix time in seconds of the calling tool's first run. Later runs return the same time."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run the tool `name` of the agent, and return its result.

        If an earlier run of the calling tool made the same call, return the recorded result.
        """
        ...


@hints_for_tool_contexts
@attrs.define(kw_only=True, eq=False, repr=False)
class ToolContext(FieldRepr, Generic[DepsT_co]):
    """Read-only context of one tool call: session, agent, state, deps and progress reporting.

    A tool with a parameter of type `ToolContext[Shop]` finds a `Shop` in `deps`. Its agent requires deps of that
    type.
    """

    session_id: str = ""
    """Id of the session whose turn makes the call; empty outside of an agent."""
    owner: str = ""
    """Owner of the session; empty outside of an agent."""
    agent: str = ""
    """Name of the agent; empty outside of an agent."""
    call_id: str = ""
    """`ToolCall.id` of the call; empty outside of an agent."""
    _idempotency_key: str = ""
    """Explicit idempotency key; if empty, `idempotency_key` derives one from the session and the call."""
    _state: Any = None
    _source: StateSource | None = attrs.field(default=None, repr=False)
    """Session from which `state` and the scope of the idempotency key are read on first use."""
    _deps: Any = attrs.field(default=None, repr=False, alias="deps")
    """Dependencies passed to the run (`deps=`); None uses those of the session."""
    session: Any = None
    """The `Session` whose turn makes the call; None outside of an agent."""
    threads: Threads | ThreadShare | None = attrs.field(default=None, repr=False)
    """Worker threads for sync functions; None outside of an agent."""
    tool_name: str = ""
    """Name by which the model called the tool."""
    report: Callable[[CallProgress], object] | None = attrs.field(default=None, repr=False)
    """Function that publishes progress of the call, from any thread; None without a subscriber, and after the call has ended."""
    approval: Grant | None = None
    """The approver's decision to run this call (`Approve` or `Edit`); None if the call needed no approval."""
    tools: NestedToolCalls | None = attrs.field(default=None, repr=False)
    """Interface to call other tools of the agent. None unless the tool sets `calls_tools` and runs in an agent."""
    attempted_before: bool = attrs.field(default=False, init=False, repr=False)
    """True if an earlier attempt of this call failed and may have had side effects."""
    origin: str = attrs.field(default="", init=False, repr=False)
    """Name of the source of untrusted text in the result, which the tool sets while it runs.

    Empty if the result contains no untrusted text.
    """
    outer_sources: str = attrs.field(default="", init=False, repr=False)
    """Untrusted sources of the text that the outer call of a nested call has read; empty for calls of the model."""
    readers: Collection[str] | None = attrs.field(default=None, init=False, repr=False)
    """Names of the owners that may read the result; the tool sets it. None restricts the readers to those of `Tool.readers`."""
    _database: Any = attrs.field(default=None, init=False, repr=False)
    """Database handle of the current attempt; None until `database` is read."""
    cancelled_in_queue: bool = attrs.field(default=False, init=False, repr=False)
    """True if the call was cancelled while it waited for a worker thread, before its function started."""

    @property
    def idempotency_key(self) -> str:
        """Idempotency key of the call: unique per call, and equal for all repetitions of the call, e.g. after a crash.

        Pass it to services that drop duplicates. Empty outside of an agent.
        """
        if self._idempotency_key or not self.call_id:
            return self._idempotency_key
        scope = self.session_id if self._source is None else self._source.scope
        return f"{scope}/{self.call_id}"

    def progress(self, done: float | None = None, total: float | None = None, text: str = "") -> None:
        """Publish the progress of the call to `on_tool_progress`, events, streams and the terminal. Thread-safe.

        Never blocks. A slow subscriber receives only the latest progress. `text` is truncated to 2000 characters.
        """
        report = self.report
        if report is not None:
            shown = text[:MAX_PROGRESS_CHARACTERS]
            report(
                CallProgress(
                    call_id=self.call_id, tool_name=self.tool_name, done=done, total=total, text=shown
                )
            )

    def mark_not_started(self) -> None:
        """Record that the call was cancelled while it waited for a thread.

        Its result then has the status `cancelled`, because the function did not run.
        """
        self.cancelled_in_queue = not self.attempted_before

    @property
    def state(self) -> Any:
        """State store of the session: a read-only mapping with `dispatch`. None outside of a session."""
        return self._state if self._state is not None or self._source is None else self._source.state

    @property
    def root_owner(self) -> str:
        """Owner of the topmost session: the session at the beginning of the chain of callers of this call's session."""
        return self.owner if self._source is None else self._source.quota_owner

    @property
    def database(self) -> Any:
        """Database of the agent (`Agent(database=...)`) as a `CallDatabase`, which applies each change of the call once.

        Raises:
            DatabaseFailed: The agent has no database.
        """
        if self._database is None:
            found = None if self.session is None else self.session.database
            if found is None:
                raise DatabaseFailed(
                    "the tool reads context.database, but its agent has no database: pass Agent(database=...)"
                )
            self._database = found.for_call(self.idempotency_key)
        return self._database

    def begin_attempt(self) -> None:
        """Discard the database handle of the previous attempt, so that a retry begins again with its first change."""
        self._database = None

    @property
    def deps(self) -> DepsT_co:
        """Dependencies of the program for tools: the first that is set of the run, the session and the agent.

        Raises:
            DepsMissing: The run, the session and the agent have no deps.
        """
        found: DepsT_co | None = self._deps
        if found is None and self.session is not None:
            found = self.session.deps
        if found is None:
            raise DepsMissing(
                self.agent, self.session_id, "the tool reads context.deps, but no deps were passed"
            )
        return found

    def copy(self) -> "ToolContext":
        """Return a copy for one of several calls, with the fields that all calls of the turn share."""
        return make_context(  # not attrs.evolve: it takes longer than the rest of an inline call
            session_id=self.session_id,
            owner=self.owner,
            agent=self.agent,
            state=self._state,
            source=self._source,
            deps=self._deps,
            session=self.session,
            threads=self.threads,
            report=self.report,
        )

    def create_state(self) -> None:
        """Create the state store, because the tool may read it in another thread than that of the event loop."""
        self._state = self.state


make_context: Callable[..., ToolContext[Any]] = fast_constructor(ToolContext)


@lists_arguments
@attrs.frozen(kw_only=True, repr=False)
class ToolHooks(FieldRepr):
    """Sync callbacks around each call of a tool, run in the session's task. An exception of a callback is logged and ignored."""

    on_start: Callable[[ToolCall], object] | None = None
    """Function that is called once per call, before the first attempt."""
    on_retry: Callable[[ToolCall, Exception], object] | None = None
    """Function that is called before each retry, with the exception of the previous attempt."""
    on_success: Callable[[ToolCall, ToolResult], object] | None = None
    """Function that is called with the result of a successful call, as the model receives it."""
    on_error: Callable[[ToolCall, ToolResult], object] | None = None
    """Function that is called with the error result of a failed call, as the model receives it."""
    on_exception: Callable[[ToolCall, Exception], object] | None = None
    """Function that is called before `on_error` with the exception that the tool raised, including its traceback."""


class Tool(abc.ABC, Generic[DepsT_contra]):
    """Base class of all tools. Subclass it, or decorate a function with `@tool`.

    A subclass defines `parameters` and `execute(arguments, context)`. The short form defines `get_schema()` and
    `execute(parameters)`. In the short form, a sync `execute` runs in a worker thread. The tool's name defaults to
    the class name, and its description to the docstring of the class.

    One tool object serves many agents and concurrent calls.
    """

    def __init__(self, name: str | None = None, description: str | None = None) -> None:
        """Set the name and the description; None keeps the class attribute."""
        if name is not None:
            self.name = name
        if description is not None:
            self.description = description

    def __init_subclass__(cls, **options: Any) -> None:
        """Prepare a subclass of `Tool`: adapt an `execute(self, parameters)` without a context.

        Also set `parameters`, `name` and `description` from the class.
        """
        super().__init_subclass__(**options)
        own = vars(cls)
        if has_short_form(own.get("execute")):
            setattr(cls, "execute", _add_optional_context(own["execute"]))  # noqa: B010 - mypy rejects the assignment
        if callable(own.get("get_schema")) and "parameters" not in own:
            schema = functools.cached_property(_schema_of)
            schema.__set_name__(cls, "parameters")
            setattr(cls, "parameters", schema)  # noqa: B010 - as above
        if hasattr(cls, "get_schema"):
            _describe_by_class(cls)

    name: str
    """Name by which the model calls the tool, matching `^[a-zA-Z0-9_.-]{1,64}$`."""
    description: str = ""
    """Description for the model: when to call the tool; may be empty."""
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments (type object), checked before each call.

    Arguments that are not in `properties` are rejected, unless the schema allows other arguments
    (`additionalProperties`, or a combination of schemas). A schema without `properties` accepts all arguments.
    """
    effect: Effect = "once"
    """Side effect of a call; "once" prevents repetition after a crash."""
    timeout: float | None = None
    """Time limit of a call in seconds, including retries and their delays. None uses the agent's default (60)."""
    retries: int = 0
    """Maximum number of retries after an exception of a `retry_on` class; 0 disables retries."""
    retry_on: tuple[type[Exception], ...] = ()
    """Exception classes that cause a retry; empty by default. Argument errors are never retried."""
    retry_delay: float = 1.0
    """Delay in seconds before the first retry; doubles with each retry."""
    cache: int = 0
    """Maximum number of results cached by arguments, shared by all agents and sessions; 0 disables the cache."""
    parallel: bool | None = None
    """True if the call may overlap with adjacent calls of the same answer; False if it runs alone.

    None means True for `effect="pure"` and for agents with `parallel_tools=True`, otherwise False.
    """
    exclusive: bool = False
    """True makes the call a barrier: earlier calls finish before it, and later calls are checked after it.

    In contrast to `parallel=False`, a barrier also waits for approvals of earlier calls, and later calls wait for its
    approval.
    """
    approval: bool | ApprovalRequest | ApprovalRule = False
    """True if each call needs an approval. An `ApprovalRequest` also sets its question. A function of the call decides per call."""
    hooks: Sequence[ToolHooks] = ()
    """Callbacks around each call, in order."""
    process_output: Callable[[str], str] | None = None
    """Sync function that rewrites the result text before the model reads it; None keeps the text.

    Not applied to errors, pictures and files. An exception of the function becomes the error of the call. It may be a
    method.
    """
    deps_type: Any = None
    """Type of the dependencies (`deps=`) that the tool requires: without deps, a turn is not started. None if it needs none."""
    inline: bool = False
    """True if `execute` never waits; such a call runs without a timer."""
    calls_tools: bool = False
    """True if the tool calls other tools through `context.tools`.

    If such a call waits for an approval or the process restarts, the tool runs again from the start. It must then make
    the same calls in the same order. Therefore its effect must be `idempotent`, and it must be `exclusive`.
    """
    deferred: bool = False
    """True if the tool is not offered to the model; the model finds it by `find_tools` and runs it by `call_tool`."""
    sinks: tuple[str, ...] | None = None
    """Names of the parameters that need trusted values under `Agent(policy=)`. An empty tuple means that no value can do harm.
    None means all parameters if the tool has an effect. If the effect is `pure`, None means the parameters with URLs:
    those with the format `uri`, or with a name such as `url`.
    """
    audience: tuple[str, ...] = ()
    """Names of the parameters whose values name the readers of the call's data, such as recipients.

    Under `Agent(policy=)`, a call violates the policy if one of these readers may not read the conversation.
    """
    readers: Literal["owner"] | tuple[str, ...] | None = None
    """Names of the owners that may read the results. `owner` is the owner of the topmost session. None allows all owners."""
    outside: bool = False
    """True if results and errors contain untrusted text; the model receives them between delimiters, as data."""
    declared_trusted: bool = False
    """True if the program declares with `Toolset.labelled` that results contain no untrusted text, although the tool is a third party's."""
    origin: str = ""
    """Name of the toolset that provides the tool; empty if the tool was passed to the agent directly."""

    delegates: bool = False
    """True if a call delegates a task or hands the session off to another agent."""
    keeps_references: bool = False
    """True if the tool itself handles references to hidden results.
    The references in its arguments are then not replaced by values.
    """
    is_gateway = False
    """True for the built-in `find_tools` and `call_tool`, which give access to deferred tools."""
    is_of_caller = False
    """True if the client that sent the turn's message runs the tool; see `tools_run_by_caller`."""
    in_every_mode = False
    """True for `find_tools` and `read_result`: they have no side effect and no access that a mode could forbid."""

    def reaches_unchecked_agent(self, arguments: Mapping[str, Any], session: Any) -> bool:
        """Return True if a call passes text of `session` to an agent whose tools need trusted values but which has no policy."""
        return False

    @abc.abstractmethod
    async def execute(self, arguments: Mapping[str, Any], context: ToolContext[DepsT_contra]) -> object:
        """Run one call with arguments that match the schema, and return its result.

        Text is the result unchanged; any other value is converted to JSON. An exception becomes the error result that
        the model reads. The text of a `ToolError` is shown without the class name.
        """

    async def run(
        self, arguments: Mapping[str, Any], context: ToolContext[DepsT_contra] | None = None
    ) -> object:
        """Run one call outside of an agent, e.g. in a test, with validated arguments and the timeout. Return the tool's raw value.

        Without a context, the tool gets a `ToolContext` without agent and session. Retries, approvals and modes do
        not apply.

        Raises:
            InvalidArguments: The arguments do not match `parameters`; the tool did not run.
            ToolTimeout: The call exceeded `timeout`, or 60 seconds if the tool has no timeout.
        """
        checked = self.argument_validator.validate(arguments)
        call_context: ToolContext[Any] = ToolContext(tool_name=self.name) if context is None else context
        seconds = DEFAULT_TIMEOUT_SECONDS if self.timeout is None else self.timeout
        with trio.move_on_after(seconds) as scope:
            time_limits.set((TimeLimit(scope),))
            return await self.execute(checked, call_context)
        raise ToolTimeout(self.name, seconds)

    def withheld_parts(self, arguments: Mapping[str, Any] | str, tools: Iterable["Tool"]) -> Sequence[str]:
        """Return the names of the parts into which a withheld result is split. The model reads a reference for each part.

        A result is withheld if the model must not read its untrusted text. The names must not depend on the result.
        `tools` are the agent's tools.
        """
        return ()

    def finite_parts(self, arguments: Mapping[str, Any] | str) -> Mapping[str, Sequence[Any]]:
        """Return the possible values of each part of the result that has only a few, by name of the part.

        The model may read these parts even if the policy withholds the result. The name "" means the whole result. If the
        actual value is not in the list, the model reads the first value of the list. The list must not depend on the
        result, because it would reveal untrusted text.
        """
        return {}

    @property
    def spec(self) -> ToolSpec:
        """The tool's name, description and parameters as sent to a model."""
        return ToolSpec(self.name, self.description, self.parameters)

    @functools.cached_property
    def argument_validator(self) -> "schemas.ArgumentsValidator":
        """Validator of the arguments against `parameters`, compiled once per tool."""
        return schemas.ArgumentsValidator(self.name, self.parameters)

    @functools.cached_property
    def result_cache(self) -> ResultCache:
        """Cache of result texts by arguments, with at most `cache` texts."""
        return ResultCache(self.cache)


# --- the short form of a subclass ------------------------------------------------------------


def has_short_form(execute: object) -> bool:
    """Return True if `execute` is a method with the signature `execute(self, parameters)`, without a context."""
    if not isinstance(execute, types.FunctionType):
        return False
    code = execute.__code__
    varies = inspect.CO_VARARGS | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
    return code.co_argcount == 2 and not code.co_kwonlyargcount and not code.co_flags & varies  # noqa: PLR2004 - self and parameters


def _add_optional_context(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the `execute(self, parameters)` of a short-form tool in a method that also accepts a context, which agents pass.

    Without a context, the method calls `execute` directly.
    """

    @functools.wraps(execute)
    def called(self: Tool, parameters: Mapping[str, Any], context: ToolContext | None = None) -> Any:
        call = functools.partial(execute, self)
        return call(parameters) if context is None else execute_short_form(self, call, parameters, context)

    return called


async def execute_short_form(
    tool: Any, execute: Callable[[dict[str, Any]], Any], parameters: Mapping[str, Any], context: ToolContext
) -> object:
    """Run `execute(parameters)` of a tool and return its value. A sync function runs in a worker thread unless the tool is `inline`."""
    if getattr(tool, "inline", False) or _is_async(execute):
        result = execute(dict(parameters))
    else:
        threads = context.threads or Threads()
        result = await threads.run_sync(
            functools.partial(execute, dict(parameters)),
            name=tool.name,
            on_not_started=context.mark_not_started,
        )
    return await result if is_awaitable(result) else result


def _is_async(execute: Callable[..., Any]) -> bool:
    function = execute.func if isinstance(execute, functools.partial) else execute
    return inspect.iscoroutinefunction(function)


def _schema_of(self: Any) -> Mapping[str, Any]:
    """Call `get_schema()` of a short-form tool, and return the schema as a dict.

    Raises:
        InvalidToolSchema: `get_schema` raised an exception or did not return a mapping.
    """
    try:
        return dict(self.get_schema())
    except Exception as error:
        raise InvalidToolSchema(
            f"tool {self.name!r}: get_schema() must return a JSON Schema of an object, but it raised {type(error).__name__}: {error}",
            tool_name=self.name,
        ) from error


def _describe_by_class(cls: type[Tool]) -> None:
    """Set the name of a tool class to the class name, and its description to the docstring, unless a class sets them."""
    own, bases = vars(cls), cls.__mro__[1:]
    is_declared = "name" in own or "name" in own.get("__annotations__", {})
    if not is_declared and getattr(cls, "name", None) in (None, *(base.__name__ for base in bases)):
        cls.name = cls.__name__
    inherited = ("", *map(_doc_of, bases))
    if "description" not in own and cls.description in inherited and (doc := _doc_of(cls)):
        cls.description = doc


def _doc_of(cls: type) -> str:
    """Return the docstring of a class; empty if the class itself has no docstring. Docstrings of base classes are ignored."""
    return inspect.cleandoc(vars(cls).get("__doc__") or "")


class WrappedTool(Tool):
    """A tool that delegates to another tool and overrides some of its options. The inner tool is not changed."""

    def __init__(self, inner: Tool, **options: Any) -> None:
        """Copy the options of a tool, and override some of them.

        Args:
            inner: The tool that runs the calls.
            options: Attributes of `Tool` to override.
        """
        self.inner = inner
        for option in Tool.__annotations__:
            setattr(self, option, options.get(option, getattr(inner, option)))

    @functools.cached_property
    def argument_validator(self) -> "schemas.ArgumentsValidator":
        inner = self.inner
        is_same = self.name == inner.name and self.parameters is inner.parameters
        return inner.argument_validator if is_same else schemas.ArgumentsValidator(self.name, self.parameters)

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        return await self.inner.execute(arguments, context)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def unwrap_tool(tool: Tool) -> Tool:
    """Return the innermost tool inside all `WrappedTool` layers; a tool without layers is returned unchanged."""
    while isinstance(tool, WrappedTool):
        tool = tool.inner
    return tool
