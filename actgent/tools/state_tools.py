"""Tools over the session state: functions `(state, args)` that return their changes."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from actgent.errors import ConfigurationError, InvalidArguments, InvalidToolSchema, ToolError
from actgent.support.user_code_calls import is_awaitable

from . import schemas
from .callable_kinds import GENERATOR_REJECTED, is_generator_function
from .outputs.oversized_state_values import copy_state, offload_large_values
from .outputs.result_text import to_text
from .tool_interface import Effect, Tool, ToolContext
from .worker_threads import Threads

StateFunction = Callable[..., Any]
StateDefaults = Callable[[ToolContext], Mapping[str, Any]]
"""Function of the call's context that returns default values for keys that the state lacks."""


class StateTool(Tool):
    """A function `(state, args)` as a tool. It returns `(key, value)`, a list of such pairs, or None.

    The function gets a copy of the session's state, so only the returned changes apply, all or none. The copy has no
    keys that begin with `_`. Values are stored as plain JSON data. The model reads the changes. An async function is
    awaited, a sync function runs in a worker thread.

    The schema of the arguments is `parameters`. Without `parameters`, the schema is derived from the type of `args` (a TypedDict, a
    dataclass, a pydantic model), and the function receives an object of this type. Without such a type, the schema is derived
    from the docstring. Otherwise any arguments are accepted.

    Args:
        name: Name of the tool.
        description: Text for the model: when to call the tool.
        func: The function `(state, args)`.
        parameters: JSON Schema of `args`; None derives it.
        defaults: Returns values for keys that the state lacks.
        effect: Side effect of a call.
        timeout: Time limit of a call in seconds; None uses the agent's default.
        retries: Maximum number of retries.
        retry_on: Exception classes that cause a retry.

    Raises:
        ConfigurationError: The parameters of the function are not exactly `state` and `args`.
    """

    def __init__(
        self,
        name: str,
        description: str,
        func: StateFunction,
        *,
        parameters: Mapping[str, Any] | None = None,
        defaults: StateDefaults | None = None,
        effect: Effect = "once",
        timeout: float | None = None,
        retries: int = 0,
        retry_on: tuple[type[Exception], ...] = (),
    ) -> None:
        if not takes_state(func):
            raise ConfigurationError(
                f"tool {name!r}: its function must have exactly the parameters (state, args)"
            )
        if is_generator_function(func):
            raise ConfigurationError(f"tool {name!r}: {GENERATOR_REJECTED}")
        self.name = name
        self.description = description
        self.func = func
        self.defaults = defaults
        self.max_state_characters: int | None = None
        """Maximum size of the state in characters of JSON; larger values are moved to stored results. None disables the limit."""
        try:
            self._args_type = None if parameters is not None else schemas.schema_from_annotation(func)
        except ConfigurationError as error:
            raise InvalidToolSchema(str(error), tool_name=name) from error.__cause__
        self.parameters = parameters or (
            self._args_type.schema if self._args_type else schemas.schema_from_docstring(func)
        )
        self.effect = effect
        self.timeout = timeout
        self.retries = retries
        self.retry_on = retry_on

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        defaults = {} if self.defaults is None else self.defaults(context)
        state = copy_state(context.state if context.state is not None else {}, defaults)
        changes = parse_changes(await self._call(state, self._convert_arguments(arguments), context))
        if changes and context.state is not None:
            # `once`: a call that is repeated after a crash may have dispatched its changes before.
            context.state.dispatch(lambda _: list(changes.items()), once=context.idempotency_key)
            if self.max_state_characters is not None:
                offload_large_values(context.state, context.call_id, self.max_state_characters)
        return changes or None

    def _convert_arguments(self, arguments: Mapping[str, Any]) -> Any:
        """Convert the arguments to the annotated type of the function's `args`, or to a dict if there is no annotation.

        Raises:
            InvalidArguments: The arguments do not match the type.
        """
        if self._args_type is None:
            return dict(arguments)
        try:
            return self._args_type.convert(dict(arguments))
        except ValueError as error:
            raise InvalidArguments(f'Invalid arguments for tool "{self.name}": {error}') from error

    async def _call(self, state: Mapping[str, Any], arguments: Any, context: ToolContext) -> Any:
        if inspect.iscoroutinefunction(self.func):
            return await self.func(state, arguments)
        threads = context.threads or Threads()
        call = functools.partial(self.func, state, arguments)
        result = await threads.run_sync(call, name=self.name, on_not_started=context.mark_not_started)
        return await result if is_awaitable(result) else result

    def __repr__(self) -> str:
        return f"StateTool({self.name!r})"


def state_tool(
    func: StateFunction, *, name: str | None = None, defaults: StateDefaults | None = None
) -> StateTool:
    """Make a tool of a function `(state, args)`.

    The tool's description is the docstring of the function, or the function's name as words.

    Raises:
        ConfigurationError: A model cannot fill in the type of `args`.
    """
    tool_name = str(name or getattr(func, "__name__", type(func).__name__))
    tool = StateTool(tool_name, "", func, defaults=defaults)
    summary = (
        schemas.description_of(func) if tool.parameters.get("properties") else ""
    )  # the schema documents the arguments
    tool.description = summary or inspect.getdoc(func) or tool_name.replace("_", " ").strip().capitalize()
    return tool


def takes_state(func: object) -> bool:
    """Return True if the parameters of a function are `state` and `args`, with or without leading underscores."""
    if not callable(func) or isinstance(func, type):
        return False
    return [name.lstrip("_") for name in inspect.signature(func).parameters] == ["state", "args"]


def parse_changes(returned: object) -> dict[str, Any]:
    """Convert the value that a state function returned to a dict of changes with plain JSON data.

    Raises:
        ToolError: The value is not `(key, value)`, a list of such pairs, or None. Or a key begins with `_`, or a value is not JSON.
    """
    changes = _as_pairs(returned)
    if wrong := [key for key in changes if not isinstance(key, str) or key.startswith("_")]:
        raise ToolError(f"the key {wrong[0]!r} cannot be set: keys must be strings that do not begin with _")
    plain: dict[str, Any] = json.loads(to_text(changes))
    return plain


def _as_pairs(returned: object) -> dict[Any, Any]:
    """Convert the pairs that a state function returned to a dict from keys to values, which are not checked.

    Raises:
        ToolError: The value is not `(key, value)`, a list of such pairs, or None.
    """
    match returned:
        case None:
            return {}
        case (str(key), value):
            return {key: value}
        case list() | tuple() if all(isinstance(i, tuple) and len(i) == 2 for i in returned):  # noqa: PLR2004
            return dict(returned)
    raise ToolError(
        f"the function must return (key, value), a list of such pairs, or None, not {returned!r:.200}"
    )
