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

from actgent.approvals import ApprovalRequest
from actgent.errors import ConfigurationError, InvalidArguments, InvalidToolSchema
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import hints_for_tools
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import is_awaitable

from . import schemas
from .callable_kinds import drain_with_progress
from .tool_interface import ApprovalRule, DepsT_contra, Effect, Tool, ToolContext, ToolHooks
from .tool_option_checks import check_options
from .worker_threads import Threads

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)


_CONTEXT_NAMES = ("context", "ctx", "tool_context", "run_context")
"""Usual names of a `ToolContext` parameter, to detect one without an annotation."""
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_PYTHON_TYPES: Mapping[str, Any] = {
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "array": (list, tuple, set, frozenset),
}
"""Python types of the defaults of JSON types. A string may be an enum, a date or a `Literal`, and an object any class."""
_log = logger_of(__name__)


@attrs.define(repr=False)
class _ArgumentBinding(FieldRepr):
    """Conversion of a tool call's arguments to the keyword arguments of the tool's function."""

    context_names: tuple[str, ...]
    """Names of the parameters that receive the `ToolContext`."""
    convert: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """Function that converts the JSON arguments to keyword arguments of the parameters' types."""


@hints_for_tools
class FunctionTool(Tool[DepsT_contra], Generic[P, R, DepsT_contra]):
    """A function as a tool. Calling the tool object calls the function.

    An async function is awaited. Each value that an async generator yields is reported as progress, and the last
    value is the result. A sync function runs in a worker thread, with `thread=False` in the event loop. Use
    `thread=False` only for functions that never block: while they run, no other task runs, and no timeout can stop them.

    The schema is derived from the signature and the docstring. If `parameters` gives the schema, the function
    receives plain JSON values. A parameter annotated `ToolContext` receives the context and is hidden from the model;
    `ToolContext[Shop]` requires deps of the type `Shop`. Unsupported: `*args`, `**kwargs` (without `parameters`) and
    positional-only parameters.

    Raises:
        ConfigurationError: The name, an option or a parameter is not usable.
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
        exclusive: bool = False,
        approval: bool | ApprovalRequest | ApprovalRule = False,
        hooks: ToolHooks | Sequence[ToolHooks] = (),
        process_output: Callable[[str], str] | None = None,
        outside: bool = False,
        untrusted: bool | None = None,
        sinks: Iterable[str] | None = None,
        audience: str | Iterable[str] = (),
        readers: str | Iterable[str] | None = None,
    ) -> None:
        inner = _unwrap_callable(func)
        functools.update_wrapper(self, inner)
        self.__wrapped__ = func  # so that `inspect.signature` leaves out arguments bound by a partial
        self.name = name
        self.description = description or ""
        self.effect = effect
        self.timeout = timeout
        self.retries = retries
        self.retry_on = (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)
        self.retry_delay = retry_delay
        self.cache = cache
        self.parallel = parallel
        self.exclusive = exclusive
        self.approval = approval
        self.hooks = (hooks,) if isinstance(hooks, ToolHooks) else tuple(hooks)
        self.process_output = process_output
        self.outside = outside or (False if untrusted is None else untrusted)
        self.declares_source = outside or untrusted is not None
        """True if the tool was created with `untrusted=` or `outside=`. Otherwise `actgent check` may ask for one of
        them.
        """
        self.sinks = sinks if sinks is None or isinstance(sinks, str) else tuple(sinks)  # type: ignore[assignment] # check_options rejects a text
        self.audience = (audience,) if isinstance(audience, str) else tuple(audience)
        self.readers = readers if readers is None or isinstance(readers, str) else tuple(readers)  # type: ignore[assignment] # as above
        self.func = func
        self._is_async = _is_async(inner, name)
        self.inline = not thread and not self._is_async
        self.is_unbound = _is_unbound_method(func)
        """True for a method decorated in its class body and not yet bound to an instance."""
        self._read_signature(parameters)
        check_options(self)

    def _read_signature(self, parameters: Mapping[str, Any] | None) -> None:
        """Set the schema, the deps type and the argument conversion from the function's signature.

        `parameters` is the schema passed by the program; None derives the schema.
        """
        label, function = f"tool {self.name!r}", _unwrap_callable(self.func)
        with self._schema_errors():
            hints = _resolve_hints(function, label)
        context_names = tuple(name for name, hint in hints.items() if _is_context(hint))
        self.deps_type = next(
            (found for hint in hints.values() if (found := _find_deps_type(hint)) is not None), None
        )
        if context_names and self.cache:
            raise ConfigurationError(
                f"{label} has a ToolContext parameter, so its results depend on the session and cannot be cached: omit cache="
            )
        self._binding = _ArgumentBinding(context_names)
        with self._schema_errors():
            if parameters is not None and schemas.is_deep(parameters):
                raise ConfigurationError(
                    f"{label}: parameters= must be nested at most {schemas.MAX_LEVELS} levels deep"
                )
            self.parameters = (
                self._derive_schema(hints, label) if parameters is None else copy.deepcopy(parameters)
            )
        if parameters is not None and not self.is_unbound:
            self._check_written_schema()

    @contextmanager
    def _schema_errors(self) -> Iterator[None]:
        """Context manager: convert a `ConfigurationError` of its block to an `InvalidToolSchema` that names this tool."""
        try:
            yield
        except ConfigurationError as error:
            raise InvalidToolSchema(str(error), tool_name=self.name) from error.__cause__

    def _derive_schema(self, hints: Mapping[str, Any], label: str) -> Mapping[str, Any]:
        """Return the JSON Schema of the parameters that the model fills in, and set the conversion of arguments."""
        leave_out = {
            *self._binding.context_names,
            *_partial_names(self.func),
            *(("self",) if self.is_unbound else ()),
        }
        texts = schemas.parameter_texts(_unwrap_callable(self.func))
        compiled = schemas.compile_signature(self.func, hints, label=label, texts=texts, leave_out=leave_out)
        self._binding.convert = compiled.convert
        self._warn_untyped(hints, leave_out)
        self._warn_of_defaults(compiled.schema)
        return compiled.schema

    def _check_written_schema(self) -> None:
        """Check that `parameters=` has every parameter that the function requires.

        Raises:
            InvalidToolSchema: A required parameter is missing, so each call would fail.
        """
        written: Any = self.parameters
        members = written.get("properties") if isinstance(written, Mapping) else None
        if not isinstance(members, Mapping) or self.parameters.get("additionalProperties"):
            return
        for name, parameter in inspect.signature(self.func).parameters.items():
            is_required = parameter.default is parameter.empty and parameter.kind in _NAMED
            if is_required and name not in members and name not in self._binding.context_names:
                raise InvalidToolSchema(
                    f"tool {self.name!r}: its function requires {name!r}, which parameters= does not have",
                    tool_name=self.name,
                )

    def _warn_of_defaults(self, schema: Mapping[str, Any]) -> None:
        """Log a warning about each parameter whose default value does not have the type of the parameter."""
        for name, member in schema.get("properties", {}).items():
            default, kind = member.get("default"), _PYTHON_TYPES.get(str(member.get("type")))
            if default is not None and kind is not None and not isinstance(default, kind):
                _log.warning(
                    "tool %s: the default %r of %s is not of its type: correct the default or the annotation",
                    self.name,
                    default,
                    name,
                )

    def _warn_untyped(self, hints: Mapping[str, Any], leave_out: Collection[str]) -> None:
        """Log a warning that names the function's parameters without a type annotation, except those in `leave_out`."""
        code = getattr(_unwrap_callable(self.func), "__code__", None)
        taken = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if untyped := [
            name for name in taken if name not in hints and name not in (*leave_out, "self", "cls")
        ]:
            meant = next((name for name in untyped if name in _CONTEXT_NAMES), untyped[0])
            _log.warning(
                "tool %s: %s has no type annotation, so a model may pass any value: annotate it, e.g. `%s: %s`, or use `Any`",
                self.name,
                ", ".join(untyped),
                meant,
                "ToolContext" if meant in _CONTEXT_NAMES else "str",
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.func(*args, **kwargs)

    def __get__(
        self, instance: object, owner: type | None = None
    ) -> "Self | FunctionTool[..., R, DepsT_contra]":
        """Bind the tool to an instance, as Python does for a method that was decorated in its class body."""
        if instance is None or not self.is_unbound:
            return self
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound.__dict__.pop("result_cache", None)  # instances must not share cached results
        bound.func = types.MethodType(self.func, instance)
        bound.is_unbound = False
        return bound

    def __repr__(self) -> str:
        return f"FunctionTool({self.name!r})"

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext[DepsT_contra]) -> object:
        try:
            keywords = self._binding.convert(arguments)
        except ValueError as error:
            raise InvalidArguments(f'Invalid arguments for tool "{self.name}": {error}') from error
        for name in self._binding.context_names:
            keywords[name] = context
        func: Callable[..., Any] = self.func
        if self._is_async:
            produced = func(**keywords)
            return await (
                drain_with_progress(produced, context)
                if isinstance(produced, types.AsyncGeneratorType)
                else produced
            )
        if self.inline:
            return func(**keywords)
        threads = context.threads or Threads()
        call = functools.partial(func, **keywords)
        result = await threads.run_sync(call, name=self.name, on_not_started=context.mark_not_started)
        return await result if is_awaitable(result) else result


# --- inspecting functions -----------------------------------------------------------------


def _unwrap_callable(func: Any) -> Callable[..., Any]:
    """Return the function inside partials and function tools. For a callable object, return its `__call__` method.

    Raises:
        ConfigurationError: The value is not callable, or is a class.
    """
    while isinstance(func, (functools.partial, FunctionTool)):
        func = func.func
    if not callable(func) or isinstance(func, type):
        given = f"the class {func.__name__}" if isinstance(func, type) else repr(func)
        remedy = "decorate a method or function" if isinstance(func, type) else "write @tool(description=...)"
        raise ConfigurationError(f"a tool must be made from a function, not from {given:.200}: {remedy}")
    inner: Callable[..., Any] = func if inspect.isroutine(func) else func.__call__
    return inner


def _is_async(func: Callable[..., Any], name: str) -> bool:
    """Return True if the tool function is async or an async generator. `name` is the tool's name for the error.

    Raises:
        ConfigurationError: The function is a sync generator.
    """
    if inspect.isgeneratorfunction(func):
        raise ConfigurationError(
            f"tool {name!r} is a generator function: return a list, or write `async def` to yield progress"
        )
    return inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func)


def _is_unbound_method(func: Callable[..., Any]) -> bool:
    """Return True for a function defined in a class body, recognized by its qualified name and a `self` parameter."""
    if not inspect.isfunction(func):
        return False
    outer = func.__qualname__.rpartition(".")[0]
    return (
        bool(outer)
        and not outer.endswith("<locals>")
        and next(iter(inspect.signature(func).parameters), "") == "self"
    )


def _partial_names(func: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters that partials around a function have bound, which the model must not see."""
    names: tuple[str, ...] = ()
    while isinstance(func, (functools.partial, FunctionTool)):
        names += tuple(func.keywords) if isinstance(func, functools.partial) else ()
        func = func.func
    return names


def _resolve_hints(func: Callable[..., Any], label: str) -> dict[str, Any]:
    """Return the annotations of a function's parameters by name, with annotations that are texts resolved to types.

    The return annotation is ignored, since it may not be importable.

    Raises:
        ConfigurationError: An annotation cannot be resolved.
    """
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
    """Return True if an annotation is `ToolContext`, alone, in a union or in `Annotated`."""
    if get_origin(hint) in (Union, types.UnionType, Annotated):
        return any(map(_is_context, get_args(hint)))
    return hint is ToolContext or get_origin(hint) is ToolContext


def _find_deps_type(hint: Any) -> Any:
    """Return the type `Shop` of an annotation `ToolContext[Shop]`; None without a type, or if the type is Any or None."""
    if get_origin(hint) is ToolContext:
        (wanted,) = get_args(hint)
        return None if wanted in (Any, None, type(None)) else wanted
    if get_origin(hint) in (Union, types.UnionType, Annotated):
        return next((found for each in get_args(hint) if (found := _find_deps_type(each)) is not None), None)
    return None


# --- the decorator -------------------------------------------------------------------------


class ToolDecorator(typing.Protocol):
    """Type of the decorator that `tool(...)` returns: it makes a tool of a function."""

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
    exclusive: bool = False,
    approval: bool | ApprovalRequest | ApprovalRule = False,
    hooks: ToolHooks | Sequence[ToolHooks] = (),
    process_output: Callable[[str], str] | None = None,
    outside: bool = False,
    untrusted: bool | None = None,
    sinks: Iterable[str] | None = None,
    audience: str | Iterable[str] = (),
    readers: str | Iterable[str] | None = None,
) -> ToolDecorator: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Any,
) -> Any:
    """Convert a function to a tool: `@tool`, or `@tool(timeout=5, effect="pure")` with the options of `FunctionTool`.

    The tool has the function's name. Its description is the docstring without sections. Without a docstring, the
    description is the name split into words, and a warning is logged.

    Raises:
        ConfigurationError: The name, an option or a parameter is not usable.
    """

    def decorate(func: Callable[P, R]) -> FunctionTool[P, R]:
        named = name if name is not None else _name_of(func)
        text = description if description is not None else _description_of(func)
        if not text:
            text = named.replace("_", " ").strip().capitalize()
            _log.warning(
                "tool %s has no description, so the model sees %r: write a docstring or @tool(description=...)",
                named,
                text,
            )
        return FunctionTool(named, text, func, **options)

    return decorate if function is None else decorate(function)


def _documented_object(func: Callable[..., Any]) -> Any:
    """Return the object whose name and docstring the tool uses: the function, or the class of a callable object."""
    inner = _unwrap_callable(func)
    owner = getattr(inner, "__self__", None)
    return type(owner) if inner.__name__ == "__call__" and owner is not None else inner


def _name_of(func: Callable[..., Any]) -> str:
    return str(_documented_object(func).__name__)


def _description_of(func: Callable[..., Any]) -> str:
    inner = _unwrap_callable(func)
    return schemas.description_of(_documented_object(func)) or (
        schemas.description_of(inner) if inner.__doc__ else ""
    )
