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

_EFFECTS: tuple[str, ...] = get_args(Effect)
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def check_options(tool: Tool) -> None:
    """Check the name and all options of a tool, and compile its schema.

    Raises:
        ConfigurationError: An option is invalid; the text names the tool, the option and the fix.
    """
    _check_name(tool)
    if is_generator_function(tool.execute):
        raise _invalid(tool, f"execute: {GENERATOR_REJECTED}")
    _check_numbers(tool)
    _check_repetition(tool)
    _check_concurrency(tool)
    _check_hooks(tool)
    _check_sinks(tool)
    if tool.audience != () or tool.readers is not None:
        _check_readers(tool)
    tool.argument_validator  # noqa: B018 - compiles the schema now, so that an invalid schema fails here


def _invalid(tool: Tool, reason: str) -> ConfigurationError:
    return ConfigurationError(f"tool {tool.name!r}: {reason}")


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
    if not _is_name(tool.name):
        raise _invalid(
            tool, "its name must have 1 to 64 of the characters a-z, A-Z, 0-9, _, . and -: pass name="
        )
    if not isinstance(tool.description, str):
        raise _invalid(tool, "description= must be a string")


def _check_numbers(tool: Tool) -> None:
    if not (tool.timeout is None or (_is_number(tool.timeout) and 0 < tool.timeout < math.inf)):
        raise _invalid(tool, f"timeout= must be a number of seconds above 0, not {tool.timeout!r}")
    if not _is_count(tool.retries):
        raise _invalid(tool, f"retries= must be at least 0, not {tool.retries!r}")
    if not (_is_number(tool.retry_delay) and 0 <= tool.retry_delay < math.inf):
        raise _invalid(
            tool, f"retry_delay= must be a number of seconds of at least 0, not {tool.retry_delay!r}"
        )
    if not _is_count(tool.cache):
        raise _invalid(tool, f"cache= must be a number of results of at least 0, not {tool.cache!r}")


def _check_repetition(tool: Tool) -> None:
    if tool.effect not in _EFFECTS:
        raise _invalid(tool, f"effect= must be one of {', '.join(_EFFECTS)}, not {tool.effect!r}")
    if not all(map(_is_exception_class, tool.retry_on)):
        raise _invalid(tool, "retry_on= must be a tuple of exception classes")
    if tool.retries and not tool.retry_on:
        raise _invalid(tool, "retries= requires retry_on=, the exception classes to retry after")
    if tool.cache and tool.effect == "once":
        raise _invalid(tool, 'cache= requires effect="pure" or "idempotent"')


def _check_concurrency(tool: Tool) -> None:
    if tool.parallel not in (True, False, None):
        raise _invalid(tool, f"parallel= must be True, False or None, not {tool.parallel!r}")
    if not isinstance(tool.outside, bool):
        raise _invalid(tool, f"untrusted= (or outside=) must be True or False, not {tool.outside!r:.100}")
    if not isinstance(tool.exclusive, bool):
        raise _invalid(tool, f"exclusive= must be True or False, not {tool.exclusive!r}")
    if tool.exclusive and tool.parallel:
        raise _invalid(tool, "exclusive=True and parallel=True contradict each other: remove one")


def _check_sinks(tool: Tool) -> None:
    if tool.sinks is None:
        return
    sinks: object = tool.sinks
    if not (isinstance(sinks, tuple) and all(isinstance(name, str) for name in sinks)):
        raise _invalid(
            tool, f'sinks= must be a tuple of parameter names, such as sinks=("to",), not {tool.sinks!r:.100}'
        )
    members = tool.parameters.get("properties")
    if not isinstance(members, Mapping) or isinstance(tool, WrappedTool):  # which may hide parameters
        return
    for name in tool.sinks:
        if name not in members:
            raise _invalid(tool, f"sinks= names {name!r}, which is not a parameter of the tool")


def _check_readers(tool: Tool) -> None:
    audience: object = tool.audience
    if not (isinstance(audience, tuple) and all(isinstance(name, str) for name in audience)):
        raise _invalid(
            tool,
            f'audience= must be a tuple of parameter names, such as audience=("to",), not {audience!r:.100}',
        )
    members = tool.parameters.get("properties") if tool.audience else None
    if isinstance(members, Mapping) and not isinstance(tool, WrappedTool):  # which may hide parameters
        for name in tool.audience:
            if name not in members:
                raise _invalid(tool, f"audience= names {name!r}, which is not a parameter of the tool")
    readers: object = tool.readers
    if not (
        readers in (None, "owner")
        or (isinstance(readers, tuple) and all(isinstance(name, str) and name for name in readers))
    ):
        raise _invalid(tool, f'readers= must be "owner", or a tuple of names of owners, not {readers!r:.100}')
    if tool.cache and readers is not None:
        raise _invalid(
            tool,
            "cache= and readers= contradict each other, because all sessions share cached results: remove one",
        )


def _check_hooks(tool: Tool) -> None:
    if not (isinstance(tool.approval, bool | ApprovalRequest) or _is_sync_function(tool.approval)):
        raise _invalid(
            tool, "approval= must be True, False, an ApprovalRequest(...) or a sync function of the call"
        )
    if not (tool.process_output is None or _is_sync_function(tool.process_output)):
        raise _invalid(tool, "process_output= must be a sync function of the result text")
    for hooks in tool.hooks:
        if not isinstance(hooks, ToolHooks):
            raise _invalid(tool, "hooks= must contain only ToolHooks(...)")
        for hook in attrs.astuple(hooks, recurse=False):
            if inspect.iscoroutinefunction(hook):
                raise _invalid(tool, "the functions of ToolHooks must be sync functions")
            if hook is not None and is_generator_function(hook):
                raise _invalid(tool, f"a function of hooks=: {GENERATOR_REJECTED}")
