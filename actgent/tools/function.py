"""Tools made from functions: `@tool` and `FunctionTool`."""

import copy
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Concatenate, Generic, Self, Union, get_args, get_origin, overload

import attrs
from typing_extensions import ParamSpec, TypeVar

from actgent.approvals import Ask
from actgent.errors import ConfigurationError, InvalidArguments, InvalidToolSchema
from actgent.support.foreign import is_awaitable
from actgent.support.leads import for_tools
from actgent.support.logs import logger_of

from .base import AskFor, DepsT_contra, Effect, Tool, ToolContext, ToolHooks
from .generators import last_of
from .options import check_options
from .schemas import MAX_LEVELS, compile_signature, description_of, is_deep, parameter_texts
from .threads import Threads

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)


_CONTEXT_WORDS = ("context", "ctx", "tool_context", "run_context")
"""What the parameter for a `ToolContext` is called by those who forget to say so."""
_log = logger_of(__name__)


@attrs.define
class _Arguments:
    """How the arguments of a call reach the function."""

    context_names: tuple[str, ...]
    """Its parameters that the framework fills in."""
    convert: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """From JSON to the types of its parameters."""


@for_tools
class FunctionTool(Tool[DepsT_contra], Generic[P, R, DepsT_contra]):
    """A function as a tool; calling it calls the function.

    An async function is awaited. Of an async generator each value is told as progress when it is yielded, and the last
    one is the result. A sync one runs in a worker thread, or with `thread=False` right in the event
    loop: only for functions that never block, as nothing else runs meanwhile and no timeout can stop them.

    The schema comes from the signature and the docstring, unless `parameters` gives it; then the arguments reach
    the function as plain JSON values. A parameter annotated `ToolContext` is filled in by the framework, and
    no model sees it; `ToolContext[Shop]` says what the program has to give it as deps. Not possible: `*args`, `**kwargs` (without `parameters`) and positional-only parameters.

    Raises:
        ConfigurationError: a name, an option or a parameter that no model can use.
    """

    def __init__(
        self,
        name: str,
        description: str | None,
        func: Callable[P, R],
        *,
        parameters: Mapping[str, Any] | None = None,
        thread: bool = True,
        effect: Effect = "once",
        timeout: float | None = None,
        retries: int = 0,
        retry_on: type[Exception] | Iterable[type[Exception]] = (),
        retry_delay: float = 1.0,
        cache: int = 0,
        parallel: bool | None = None,
        alone: bool = False,
        approval: bool | Ask | AskFor = False,
        hooks: ToolHooks | Sequence[ToolHooks] = (),
        process_output: Callable[[str], str] | None = None,
        outside: bool = False,
    ) -> None:
        inner = _undecorated(func)
        functools.update_wrapper(self, inner)
        self.__wrapped__ = func  # so that `inspect.signature` knows what a partial has fixed
        self.name = name
        self.description = description or ""
        self.effect = effect
        self.timeout = timeout
        self.retries = retries
        self.retry_on = (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)
        self.retry_delay = retry_delay
        self.cache = cache
        self.parallel = parallel
        self.alone = alone
        self.approval = approval
        self.hooks = (hooks,) if isinstance(hooks, ToolHooks) else tuple(hooks)
        self.process_output = process_output
        self.outside = outside
        self.func = func
        self._is_async = _is_async(inner, name)
        self.inline = not thread and not self._is_async
        self.is_unbound = _is_unbound_method(func)
        """True if it is a method that was decorated in its class, and belongs to no object yet."""
        self._read_signature(parameters)
        check_options(self)

    def _read_signature(self, parameters: Mapping[str, Any] | None) -> None:
        label, function = f"tool {self.name!r}", _undecorated(self.func)
        with self._schema_errors():
            hints = _hints(function, label)
        context_names = tuple(name for name, hint in hints.items() if _is_context(hint))
        self.deps_type = next(
            (found for hint in hints.values() if (found := _deps_in(hint)) is not None), None
        )
        if context_names and self.cache:
            raise ConfigurationError(
                f"{label} takes a ToolContext: its results depend on the session, so cache=0"
            )
        self._arguments = _Arguments(context_names)
        with self._schema_errors():
            if parameters is not None and is_deep(parameters):
                raise ConfigurationError(f"{label}: parameters= is nested deeper than {MAX_LEVELS} levels")
            self.parameters = self._derived(hints, label) if parameters is None else copy.deepcopy(parameters)

    @contextmanager
    def _schema_errors(self) -> Iterator[None]:
        """Raise each ConfigurationError of the block as an InvalidToolSchema of this tool."""
        try:
            yield
        except ConfigurationError as error:
            raise InvalidToolSchema(str(error), tool_name=self.name) from error.__cause__

    def _derived(self, hints: Mapping[str, Any], label: str) -> Mapping[str, Any]:
        leave_out = {
            *self._arguments.context_names,
            *_bound_names(self.func),
            *(("self",) if self.is_unbound else ()),
        }
        texts = parameter_texts(_undecorated(self.func))
        compiled = compile_signature(self.func, hints, label=label, texts=texts, leave_out=leave_out)
        self._arguments.convert = compiled.convert
        self._tell_untyped(hints, leave_out)
        return compiled.schema

    def _tell_untyped(self, hints: Mapping[str, Any], leave_out: Collection[str]) -> None:
        code = getattr(_undecorated(self.func), "__code__", None)
        taken = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if untyped := [
            name for name in taken if name not in hints and name not in (*leave_out, "self", "cls")
        ]:
            meant = next((name for name in untyped if name in _CONTEXT_WORDS), untyped[0])
            _log.warning(
                "tool %s: the type of %s is not known, so a model may pass anything: annotate it, e.g. `%s: %s`, or say `Any`",
                self.name,
                ", ".join(untyped),
                meant,
                "ToolContext" if meant in _CONTEXT_WORDS else "str",
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.func(*args, **kwargs)

    def __get__(
        self, instance: object, owner: type | None = None
    ) -> "Self | FunctionTool[..., R, DepsT_contra]":
        """A method decorated in its class: the tool of one instance."""
        if instance is None or not self.is_unbound:
            return self
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound.__dict__.pop("result_cache", None)  # each instance has results of its own
        bound.func = types.MethodType(self.func, instance)
        bound.is_unbound = False
        return bound

    def __repr__(self) -> str:
        return f"FunctionTool({self.name!r})"

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext[DepsT_contra]) -> object:
        keywords = self._bind(arguments, context)
        func: Callable[..., Any] = self.func
        if self._is_async:
            begun = func(**keywords)
            return await (last_of(begun, context) if isinstance(begun, types.AsyncGeneratorType) else begun)
        if self.inline:
            return func(**keywords)
        threads = context.threads or Threads()
        call = functools.partial(func, **keywords)
        result = await threads.run_sync(call, name=self.name, never_began=context.never_began)
        return await result if is_awaitable(result) else result

    def _bind(self, arguments: Mapping[str, Any], context: ToolContext[DepsT_contra]) -> dict[str, Any]:
        try:
            keywords = self._arguments.convert(arguments)
        except ValueError as error:
            raise InvalidArguments(f'Invalid arguments for tool "{self.name}": {error}') from error
        for name in self._arguments.context_names:
            keywords[name] = context
        return keywords


# --- functions of all kinds ----------------------------------------------------------------


def _undecorated(func: Any) -> Callable[..., Any]:
    """The function in a partial or another tool; of an object with `__call__`, that method."""
    while isinstance(func, (functools.partial, FunctionTool)):
        func = func.func
    if not callable(func) or isinstance(func, type):
        given = f"the class {func.__name__}" if isinstance(func, type) else repr(func)
        remedy = "decorate a method or function" if isinstance(func, type) else "write @tool(description=...)"
        raise ConfigurationError(f"a tool is made from a function, not from {given:.200}: {remedy}")
    inner: Callable[..., Any] = func if inspect.isroutine(func) else func.__call__
    return inner


def _is_async(func: Callable[..., Any], name: str) -> bool:
    if inspect.isgeneratorfunction(func):
        raise ConfigurationError(
            f"tool {name!r} is a generator: return a list instead, or write `async def` to yield progress"
        )
    return inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func)


def _is_unbound_method(func: Callable[..., Any]) -> bool:
    """Return True for a function defined in a class body; there is nothing else to tell it by at that time."""
    if not inspect.isfunction(func):
        return False
    outer = func.__qualname__.rpartition(".")[0]
    return (
        bool(outer)
        and not outer.endswith("<locals>")
        and next(iter(inspect.signature(func).parameters), "") == "self"
    )


def _bound_names(func: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names that partials have fixed: not the model's to change, nor to see."""
    names: tuple[str, ...] = ()
    while isinstance(func, (functools.partial, FunctionTool)):
        names += tuple(func.keywords) if isinstance(func, functools.partial) else ()
        func = func.func
    return names


def _hints(func: Callable[..., Any], label: str) -> dict[str, Any]:
    """The resolved annotations of the parameters; what is returned may be known to type checkers only."""
    annotations = {
        name: hint for name, hint in getattr(func, "__annotations__", {}).items() if name != "return"
    }
    holder = types.SimpleNamespace(__annotations__=annotations)
    try:
        known = getattr(inspect.unwrap(func), "__globals__", {})
        return typing.get_type_hints(holder, known, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ConfigurationError(
            f"{label}: an annotation cannot be resolved ({error}): define the type at the top of its module"
        ) from error


def _is_context(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType, Annotated):
        return any(map(_is_context, get_args(hint)))
    return hint is ToolContext or get_origin(hint) is ToolContext


def _deps_in(hint: Any) -> Any:
    """The type in a `ToolContext[...]`; None where there is none, or one that says nothing."""
    if get_origin(hint) is ToolContext:
        (wanted,) = get_args(hint)
        return None if wanted in (Any, None, type(None)) else wanted
    if get_origin(hint) in (Union, types.UnionType, Annotated):
        return next((found for each in get_args(hint) if (found := _deps_in(each)) is not None), None)
    return None


# --- the decorator -------------------------------------------------------------------------


class ToolMaker(typing.Protocol):
    """A decorator that makes a tool of a function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[ToolContext[DepsT_contra], P], R], /
    ) -> FunctionTool[Concatenate[ToolContext[DepsT_contra], P], R, DepsT_contra]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    function: Callable[Concatenate[ToolContext[DepsT_contra], P], R], /
) -> FunctionTool[Concatenate[ToolContext[DepsT_contra], P], R, DepsT_contra]: ...


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    thread: bool = True,
    effect: Effect = "once",
    timeout: float | None = None,
    retries: int = 0,
    retry_on: type[Exception] | Iterable[type[Exception]] = (),
    retry_delay: float = 1.0,
    cache: int = 0,
    parallel: bool | None = None,
    alone: bool = False,
    approval: bool | Ask | AskFor = False,
    hooks: ToolHooks | Sequence[ToolHooks] = (),
    process_output: Callable[[str], str] | None = None,
    outside: bool = False,
) -> ToolMaker: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Any,
) -> Any:
    """Make a tool of a function: `@tool`, or `@tool(timeout=5, effect="pure")` with the options of `FunctionTool`.

    The name is the function's. The description is its docstring without the sections. Without a docstring it is the name
    in words, and a warning is logged.

    Raises:
        ConfigurationError: a name, an option or a parameter that no model can use.
    """

    def decorate(func: Callable[P, R]) -> FunctionTool[P, R]:
        named = name if name is not None else _name_of(func)
        text = description if description is not None else _description_of(func)
        if not text:
            text = _in_words(named)
            _log.warning(
                "tool %s has no description, and the model is shown %r: write a docstring or @tool(description=...)",
                named,
                text,
            )
        return FunctionTool(named, text, func, **options)

    return decorate if function is None else decorate(function)


def _named(func: Callable[..., Any]) -> Any:
    """Return the bearer of name and docstring: the function, or the class of an object with `__call__`."""
    inner = _undecorated(func)
    owner = getattr(inner, "__self__", None)
    return type(owner) if inner.__name__ == "__call__" and owner is not None else inner


def _name_of(func: Callable[..., Any]) -> str:
    return str(_named(func).__name__)


def _description_of(func: Callable[..., Any]) -> str:
    inner = _undecorated(func)
    return description_of(_named(func)) or (description_of(inner) if inner.__doc__ else "")


def _in_words(name: str) -> str:
    return name.replace("_", " ").strip().capitalize()
