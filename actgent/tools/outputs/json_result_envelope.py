"""`EnvelopedTool`: results and errors of a tool as JSON objects of one shape."""

import datetime as dt
import types
from collections.abc import Mapping
from typing import Any

from actgent.errors import ApprovalRequired, InvalidArguments, ToolError
from actgent.support.user_code_calls import convert_user_error, leaves
from actgent.tools.tool_interface import Tool, ToolContext, WrappedTool

from .result_media import has_media, split_media
from .result_text import describe, to_json_text, to_result_text, to_text


class _RetryableError(ToolError):
    """Exception with an error envelope as text, for an exception that the inner tool declared in `retry_on`."""


class EnvelopedTool(WrappedTool):
    """A tool whose results are `{"success": true, "result": ...}` and whose errors are `{"success": false, "error": ...}`.

    An error object has `message`, `details` (the exception class) and `timestamp` (ISO 8601, UTC). The call's status
    remains `error`.
    """

    def __init__(self, inner: Tool) -> None:
        super().__init__(inner, retry_on=(_RetryableError,), process_output=None)

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        try:
            value = await self.inner.execute(arguments, context)
            if self.inner.process_output is not None and not has_media(value):
                value = self.inner.process_output(to_result_text(value))
            return _success_envelope(value)
        except ApprovalRequired:
            raise  # a request for approval, not an error
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = convert_user_error(raised, "tool", self.name)
        kind = _RetryableError if self._is_retryable(error) else ToolError
        raise kind(to_text(_error_envelope(error))) from error

    def _is_retryable(self, error: Exception) -> bool:
        return all(
            isinstance(leaf, self.inner.retry_on) and not isinstance(leaf, InvalidArguments)
            for leaf in leaves(error)
        )


def _success_envelope(value: object) -> object:
    if not has_media(value):
        return {"success": True, "result": _as_json(value)}
    media, rest = split_media(value)
    return [{"success": True, "result": rest}, *media]


def _as_json(value: object) -> object:
    """Return the value of a tool unchanged if it can be written as JSON. Return `str(value)` for other values.

    Raises:
        InvalidToolResult: The value is a coroutine that was not awaited, so the work was not done.
    """
    if type(value) is types.CoroutineType:
        to_text(value)
    return value if to_json_text(value) is not None else to_result_text(value)


def _error_envelope(error: Exception) -> dict[str, Any]:
    return {
        "success": False,
        "error": {
            "message": describe(error),
            "details": type(error).__name__,
            "timestamp": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        },
    }
