"""A tool's results in one form, whatever came of the call."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from actgent.errors import AskPerson, InvalidArguments, ToolError
from actgent.support.foreign import failure_of, leaves
from actgent.tools.base import Tool, ToolContext, WrappedTool

from .media import has_media, media_and_rest
from .results import describe, to_text


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
                value = self.inner.process_output(to_text(value))
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
        return {"success": True, "result": value}
    media, rest = media_and_rest(value)
    return [{"success": True, "result": rest}, *media]


def _failed(error: Exception) -> dict[str, Any]:
    return {
        "success": False,
        "error": {
            "message": describe(error),
            "details": type(error).__name__,
            "timestamp": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        },
    }
