"""A tool's name, schema and options, checked before a model ever sees it."""

import inspect
import math
import re
from typing import get_args

import attrs

from actgent.approvals import Ask
from actgent.errors import ConfigurationError

from .base import Effect, Tool, ToolHooks
from .generators import NO_GENERATOR, is_generator, is_sync

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def check_options(tool: Tool) -> None:
    """Check everything that a tool says of itself, and compile its schema.

    Raises:
        ConfigurationError: something is wrong; the text names the tool, the option and the remedy.
    """
    _check_texts(tool)
    _require(not is_generator(tool.execute), tool, f"execute: {NO_GENERATOR}")
    _check_numbers(tool)
    _check_repetition(tool)
    _check_order(tool)
    _check_hooks(tool)
    tool.argument_validator  # noqa: B018 - compiles the schema now, so that a bad one fails here


def _require(condition: object, tool: Tool, reason: str) -> None:
    if not condition:
        raise ConfigurationError(f"tool {tool.name!r}: {reason}")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_exception_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _is_sync_function(value: object) -> bool:
    return is_sync(value) and not isinstance(value, type)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_texts(tool: Tool) -> None:
    _require(
        _is_name(tool.name), tool, "a name is 1 to 64 of the characters a-z, A-Z, 0-9, _, . and -; pass name="
    )
    _require(isinstance(tool.description, str), tool, "description= is text")


def _check_numbers(tool: Tool) -> None:
    _require(
        tool.timeout is None or (_is_number(tool.timeout) and 0 < tool.timeout < math.inf),
        tool,
        f"timeout= is a number of seconds above 0, not {tool.timeout!r}",
    )
    _require(_is_count(tool.retries), tool, f"retries= is 0 or more, not {tool.retries!r}")
    _require(
        _is_number(tool.retry_delay) and 0 <= tool.retry_delay < math.inf,
        tool,
        f"retry_delay= is a number of seconds, 0 or more, not {tool.retry_delay!r}",
    )
    _require(_is_count(tool.cache), tool, f"cache= is a number of results, 0 or more, not {tool.cache!r}")


def _check_repetition(tool: Tool) -> None:
    _require(
        tool.effect in get_args(Effect),
        tool,
        f"effect= is one of {', '.join(get_args(Effect))}, not {tool.effect!r}",
    )
    _require(all(map(_is_exception_class, tool.retry_on)), tool, "retry_on= takes exception classes")
    _require(
        not tool.retries or tool.retry_on, tool, "retries= needs retry_on=, the exceptions worth a repetition"
    )
    _require(not tool.cache or tool.effect != "once", tool, 'cache= needs effect="pure" or "idempotent"')


def _check_order(tool: Tool) -> None:
    _require(
        tool.parallel in (True, False, None), tool, f"parallel= is True, False or None, not {tool.parallel!r}"
    )
    _require(isinstance(tool.alone, bool), tool, f"alone= is True or False, not {tool.alone!r}")
    _require(
        not (tool.alone and tool.parallel),
        tool,
        "alone=True and parallel=True contradict each other: leave one out",
    )


def _check_hooks(tool: Tool) -> None:
    _require(
        isinstance(tool.approval, bool | Ask) or _is_sync_function(tool.approval),
        tool,
        "approval= is True, False, an Ask(...) or a sync function of the call",
    )
    _require(
        tool.process_output is None or _is_sync_function(tool.process_output),
        tool,
        "process_output= is a sync function of the text that a call returned",
    )
    for hooks in tool.hooks:
        _require(isinstance(hooks, ToolHooks), tool, "hooks= takes ToolHooks(...)")
        for hook in attrs.astuple(hooks, recurse=False):
            _require(not inspect.iscoroutinefunction(hook), tool, "hooks are sync functions")
            _require(hook is None or not is_generator(hook), tool, f"a hook: {NO_GENERATOR}")
