"""A tool's results in one form, whatever came of the call."""

import datetime as dt
import types
from collections.abc import Mapping
from typing import Any

from actgent.errors import AskPerson, InvalidArguments, ToolError
from actgent.support.foreign import failure_of, leaves
from actgent.tools.base import Tool, ToolContext, WrappedTool

from .media import has_media, media_and_rest
from .results import describe, to_json_text, to_result_text, to_text


class _WorthRepeating(ToolError):
    """An error that the inner tool declared retryable, in its envelope."""


class EnvelopedTool(WrappedTool):
    """A tool whose results are `{"success": true, "result": ...}`, and whose errors are `{"success": false, "error": ...}`.

    An error has a `message`, the class of the exception as `details`, and a `timestamp` (ISO 8601, UTC). It is the
    result's `error`, so that its status is `error` as ever.
    """

    def __init__(self, inner: Tool) -> None:
        super().__init__(inner, retry_on=(_WorthRepeating,), process_output=None)

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        try:
            value = await self.inner.execute(arguments, context)
            if self.inner.process_output is not None and not has_media(value):
                value = self.inner.process_output(to_result_text(value))
            return _succeeded(value)
        except AskPerson:
            raise  # a question, and no error
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = failure_of(raised, "tool", self.name)
        kind = _WorthRepeating if self._is_retryable(error) else ToolError
        raise kind(to_text(_failed(error))) from error

    def _is_retryable(self, error: Exception) -> bool:
        return all(
            isinstance(leaf, self.inner.retry_on) and not isinstance(leaf, InvalidArguments)
            for leaf in leaves(error)
        )


def _succeeded(value: object) -> object:
    if not has_media(value):
        return {"success": True, "result": _as_json(value)}
    media, rest = media_and_rest(value)
    return [{"success": True, "result": rest}, *media]


def _as_json(value: object) -> object:
    """Return a value that JSON carries: the value itself, or its `str()`.

    Raises:
        UnusableResult: The value is a coroutine, so the work has not begun.
    """
    if type(value) is types.CoroutineType:
        to_text(value)
    return value if to_json_text(value) is not None else to_result_text(value)


def _failed(error: Exception) -> dict[str, Any]:
    return {
        "success": False,
        "error": {
            "message": describe(error),
            "details": type(error).__name__,
            "timestamp": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        },
    }
