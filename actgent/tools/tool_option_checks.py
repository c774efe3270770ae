"""Checks of a tool's name, options and schema when it is registered."""

import inspect
import math
import re
from collections.abc import Mapping
from typing import get_args

import attrs

from actgent.approvals import ApprovalRequest
from actgent.errors import ConfigurationError

from .callable_kinds import GENERATOR_REJECTED, is_generator_function, is_sync_callable
from .tool_interface import Effect, Tool, ToolHooks, WrappedTool

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def check_options(tool: Tool) -> None:
    """Check the name and all options of a tool, and compile its schema.

    Raises:
        ConfigurationError: An option is invalid; the text names the tool, the option and the fix.
    """
    _check_name(tool)
    _require(not is_generator_function(tool.execute), tool, f"execute: {GENERATOR_REJECTED}")
    _check_numbers(tool)
    _check_repetition(tool)
    _check_concurrency(tool)
    _check_hooks(tool)
    _check_sinks(tool)
    if tool.audience != () or tool.readers is not None:
        _check_readers(tool)
    tool.argument_validator  # noqa: B018 - compiles the schema now, so that an invalid schema fails here


def _require(condition: object, tool: Tool, reason: str) -> None:
    if not condition:
        raise ConfigurationError(f"tool {tool.name!r}: {reason}")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_exception_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _is_sync_function(value: object) -> bool:
    return is_sync_callable(value) and not isinstance(value, type)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_name(tool: Tool) -> None:
    _require(
        _is_name(tool.name),
        tool,
        "its name must have 1 to 64 of the characters a-z, A-Z, 0-9, _, . and -: pass name=",
    )
    _require(isinstance(tool.description, str), tool, "description= must be text")


def _check_numbers(tool: Tool) -> None:
    _require(
        tool.timeout is None or (_is_number(tool.timeout) and 0 < tool.timeout < math.inf),
        tool,
        f"timeout= must be a number of seconds above 0, not {tool.timeout!r}",
    )
    _require(_is_count(tool.retries), tool, f"retries= must be 0 or more, not {tool.retries!r}")
    _require(
        _is_number(tool.retry_delay) and 0 <= tool.retry_delay < math.inf,
        tool,
        f"retry_delay= must be a number of seconds, 0 or more, not {tool.retry_delay!r}",
    )
    _require(
        _is_count(tool.cache), tool, f"cache= must be a number of results, 0 or more, not {tool.cache!r}"
    )


def _check_repetition(tool: Tool) -> None:
    _require(
        tool.effect in get_args(Effect),
        tool,
        f"effect= must be one of {', '.join(get_args(Effect))}, not {tool.effect!r}",
    )
    _require(all(map(_is_exception_class, tool.retry_on)), tool, "retry_on= must be exception classes")
    _require(
        not tool.retries or tool.retry_on,
        tool,
        "retries= requires retry_on=, the exception classes to retry after",
    )
    _require(not tool.cache or tool.effect != "once", tool, 'cache= requires effect="pure" or "idempotent"')


def _check_concurrency(tool: Tool) -> None:
    _require(
        tool.parallel in (True, False, None),
        tool,
        f"parallel= must be True, False or None, not {tool.parallel!r}",
    )
    _require(
        isinstance(tool.exclusive, bool), tool, f"exclusive= must be True or False, not {tool.exclusive!r}"
    )
    _require(
        not (tool.exclusive and tool.parallel),
        tool,
        "exclusive=True and parallel=True contradict each other: remove one",
    )


def _check_sinks(tool: Tool) -> None:
    if tool.sinks is None:
        return
    sinks: object = tool.sinks
    _require(
        isinstance(sinks, tuple) and all(isinstance(name, str) for name in sinks),
        tool,
        f'sinks= must be a tuple of parameter names, such as sinks=("to",), not {tool.sinks!r:.100}',
    )
    members = tool.parameters.get("properties")
    if not isinstance(members, Mapping) or isinstance(tool, WrappedTool):  # which may hide parameters
        return
    for name in tool.sinks:
        _require(name in members, tool, f"sinks= names {name!r}, which is not a parameter of the tool")


def _check_readers(tool: Tool) -> None:
    audience: object = tool.audience
    _require(
        isinstance(audience, tuple) and all(isinstance(name, str) for name in audience),
        tool,
        f'audience= must be a tuple of parameter names, such as audience=("to",), not {audience!r:.100}',
    )
    members = tool.parameters.get("properties") if tool.audience else None
    if isinstance(members, Mapping) and not isinstance(tool, WrappedTool):  # which may hide parameters
        for name in tool.audience:
            _require(name in members, tool, f"audience= names {name!r}, which is not a parameter of the tool")
    readers: object = tool.readers
    _require(
        readers in (None, "owner")
        or (isinstance(readers, tuple) and all(isinstance(name, str) and name for name in readers)),
        tool,
        f'readers= must be "owner", or a tuple of names of owners, not {readers!r:.100}',
    )
    _require(
        not tool.cache or readers is None,
        tool,
        "cache= and readers= contradict each other, because all sessions share cached results: remove one",
    )


def _check_hooks(tool: Tool) -> None:
    _require(
        isinstance(tool.approval, bool | ApprovalRequest) or _is_sync_function(tool.approval),
        tool,
        "approval= must be True, False, an ApprovalRequest(...) or a sync function of the call",
    )
    _require(
        tool.process_output is None or _is_sync_function(tool.process_output),
        tool,
        "process_output= must be a sync function of the result text",
    )
    for hooks in tool.hooks:
        _require(isinstance(hooks, ToolHooks), tool, "hooks= must be ToolHooks(...)")
        for hook in attrs.astuple(hooks, recurse=False):
            _require(not inspect.iscoroutinefunction(hook), tool, "hooks must be sync functions")
            _require(hook is None or not is_generator_function(hook), tool, f"a hook: {GENERATOR_REJECTED}")
