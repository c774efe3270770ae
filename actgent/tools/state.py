"""Tools over a session's state: functions `(state, args)` that return what they change."""

import copy
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from actgent.errors import ConfigurationError, ToolError

from .base import Effect, Tool, ToolContext
from .generators import NO_GENERATOR, is_generator
from .outputs.results import to_text
from .threads import Threads

StateFunction = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}


class StateTool(Tool):
    """A function `(state, args)` as a tool: it returns `(key, value)`, a list of such pairs, or None.

    It gets a copy of the session's state, so only what it returns changes anything, and all of that or nothing.
    Values are kept as plain data, as JSON has it, so that a session can be written down. The model reads them. An async function is awaited, a sync one runs in a worker thread.

    Raises:
        ConfigurationError: the function does not take exactly `state` and `args`.
    """

    def __init__(
        self,
        name: str,
        description: str,
        func: StateFunction,
        *,
        parameters: Mapping[str, Any] = ANY_ARGUMENTS,
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
        self.parameters = parameters
        self.effect = effect
        self.timeout = timeout
        self.retries = retries
        self.retry_on = retry_on

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        state = copy.deepcopy(dict(context.state if context.state is not None else {}))
        changes = changes_of(await self._call(state, dict(arguments), context))
        if changes and context.state is not None:
            # Once: a call that is repeated after a crash may have come as far as here before it.
            context.state.dispatch(lambda _: list(changes.items()), once=context.effect_key)
        return changes or None

    async def _call(
        self, state: Mapping[str, Any], arguments: Mapping[str, Any], context: ToolContext
    ) -> Any:
        if inspect.iscoroutinefunction(self.func):
            return await self.func(state, arguments)
        threads = context.threads or Threads()
        call = functools.partial(self.func, state, arguments)
        result = await threads.run_sync(call, name=self.name, never_began=context.never_began)
        return await result if inspect.isawaitable(result) else result

    def __repr__(self) -> str:
        return f"StateTool({self.name!r})"


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
