"""Tools over a session's state: functions `(state, args)` that return what they change."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from actgent.errors import ConfigurationError, InvalidArguments, InvalidToolSchema, ToolError
from actgent.support.foreign import is_awaitable

from .base import Effect, Tool, ToolContext
from .generators import NO_GENERATOR, is_generator
from .outputs.moved import move_large, whole_state
from .outputs.results import to_text
from .schemas import description_of, documented_arguments, typed_arguments
from .threads import Threads

StateFunction = Callable[..., Any]
Beside = Callable[[ToolContext], Mapping[str, Any]]
"""What a function of the state finds there beside what was written into it."""


class StateTool(Tool):
    """A function `(state, args)` as a tool: it returns `(key, value)`, a list of such pairs, or None.

    It gets a copy of the session's state, so only what it returns changes anything, and all of that or nothing. Keys that
    begin with `_` are not in it. Values are kept as plain data, as JSON has it, so that a session can be written down. The
    model reads them. An async function is awaited, a sync one runs in a worker thread.

    Which arguments there are is said by `parameters`, or by the type of `args` (a TypedDict, a dataclass, a model of
    pydantic), as which the function gets them then, or by the docstring; else there may be any.

    Args:
        parameters: JSON Schema of `args`.
        beside: What the function finds in the state beside what is in it; what is in it goes before.

    Raises:
        ConfigurationError: the function does not take exactly `state` and `args`.
    """

    def __init__(
        self,
        name: str,
        description: str,
        func: StateFunction,
        *,
        parameters: Mapping[str, Any] | None = None,
        beside: Beside | None = None,
        effect: Effect = "once",
        timeout: float | None = None,
        retries: int = 0,
        retry_on: tuple[type[Exception], ...] = (),
    ) -> None:
        if not takes_state(func):
            raise ConfigurationError(f"tool {name!r}: a function with the parameters (state, args) is needed")
        if is_generator(func):
            raise ConfigurationError(f"tool {name!r}: {NO_GENERATOR}")
        self.name = name
        self.description = description
        self.func = func
        self.beside = beside
        self.bound: int | None = None
        """How many characters the state may have; what is larger is moved to where `read_result` reads it. None: any."""
        try:
            self._typed = None if parameters is not None else typed_arguments(func)
        except ConfigurationError as error:
            raise InvalidToolSchema(str(error), tool_name=name) from error.__cause__
        self.parameters = parameters or (self._typed.schema if self._typed else documented_arguments(func))
        self.effect = effect
        self.timeout = timeout
        self.retries = retries
        self.retry_on = retry_on

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        beside = {} if self.beside is None else self.beside(context)
        state = whole_state(context.state if context.state is not None else {}, beside)
        changes = changes_of(await self._call(state, self._read(arguments), context))
        if changes and context.state is not None:
            # Once: a call that is repeated after a crash may have come as far as here before it.
            context.state.dispatch(lambda _: list(changes.items()), once=context.effect_key)
            if self.bound is not None:
                move_large(context.state, context.call_id, self.bound)
        return changes or None

    def _read(self, arguments: Mapping[str, Any]) -> Any:
        """Return the arguments as the function takes them."""
        if self._typed is None:
            return dict(arguments)
        try:
            return self._typed.convert(dict(arguments))
        except ValueError as error:
            raise InvalidArguments(f'Invalid arguments for tool "{self.name}": {error}') from error

    async def _call(self, state: Mapping[str, Any], arguments: Any, context: ToolContext) -> Any:
        if inspect.iscoroutinefunction(self.func):
            return await self.func(state, arguments)
        threads = context.threads or Threads()
        call = functools.partial(self.func, state, arguments)
        result = await threads.run_sync(call, name=self.name, never_began=context.never_began)
        return await result if is_awaitable(result) else result

    def __repr__(self) -> str:
        return f"StateTool({self.name!r})"


def state_tool(func: StateFunction, *, name: str | None = None, beside: Beside | None = None) -> StateTool:
    """A function `(state, args)` as a tool, described by its docstring, or by its name in words.

    Raises:
        ConfigurationError: the type of its `args` is not one that a model can fill in.
    """
    named = str(name or getattr(func, "__name__", type(func).__name__))
    made = StateTool(named, "", func, beside=beside)
    told = description_of(func) if made.parameters.get("properties") else ""  # the schema says the rest
    made.description = told or inspect.getdoc(func) or named.replace("_", " ").strip().capitalize()
    return made


def takes_state(func: object) -> bool:
    """Return True if a function takes `state` and `args`; an underscore before a name marks it unused."""
    if not callable(func) or isinstance(func, type):
        return False
    return [name.lstrip("_") for name in inspect.signature(func).parameters] == ["state", "args"]


def changes_of(returned: object) -> dict[str, Any]:
    """The changes that a function of the state returned, by their keys, as plain data.

    Raises:
        ToolError: neither `(key, value)`, nor a list of them, nor None; a key that begins with `_`; a value that
            JSON cannot carry.
    """
    changes = _pairs(returned)
    if wrong := [key for key in changes if not isinstance(key, str) or key.startswith("_")]:
        raise ToolError(
            f"the key {wrong[0]!r} cannot be set: keys are texts, and those with _ are not for tools"
        )
    plain: dict[str, Any] = json.loads(to_text(changes))
    return plain


def _pairs(returned: object) -> dict[Any, Any]:
    match returned:
        case None:
            return {}
        case (str(key), value):
            return {key: value}
        case list() | tuple() if all(isinstance(i, tuple) and len(i) == 2 for i in returned):  # noqa: PLR2004
            return dict(returned)
    raise ToolError(f"it must return (key, value), a list of them, or None, not {returned!r:.200}")
