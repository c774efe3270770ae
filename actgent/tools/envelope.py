"""A tool's results in one form, whatever came of the call."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from actgent.errors import ToolError

from .base import Tool, ToolContext
from .results import describe, to_text

_OPTIONS = (
    "name description parameters effect timeout retries retry_on retry_delay cache alone hooks inline".split()
)


class EnvelopedTool(Tool):
    """A tool whose results are `{"success": true, "result": ...}`, and whose errors are `{"success": false, "error": ...}`.

    An error has a `message`, the class of the exception as `details`, and a `timestamp` (ISO 8601, UTC). It is the
    result's `error`, so that its status is `error` as ever.
    """

    def __init__(self, inner: Tool) -> None:
        self.inner = inner
        for option in _OPTIONS:
            setattr(self, option, getattr(inner, option))

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        try:
            return {"success": True, "result": await self.inner.execute(arguments, context)}
        except Exception as error:
            if self.retries and isinstance(error, self.retry_on):
                raise  # it is worth a repetition
            raise ToolError(to_text(_failed(error))) from error

    def __repr__(self) -> str:
        return f"EnvelopedTool({self.inner!r})"


def _failed(error: Exception) -> dict[str, Any]:
    return {
        "success": False,
        "error": {
            "message": describe(error),
            "details": type(error).__name__,
            "timestamp": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        },
    }
