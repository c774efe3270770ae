"""Runs of tools as spans."""

from types import TracebackType

import orjson

from actgent.errors import AskPerson
from actgent.messages import ToolCall, ToolResult
from actgent.support import span_names as names
from actgent.support.tracing import ActiveTrace, Attribute, TracedWork

from .base import Tool


class ToolWork(TracedWork):
    """One run of a tool."""

    def __init__(self, active: ActiveTrace, call: ToolCall, tool: Tool) -> None:
        attributes: dict[str, Attribute] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: tool.name,
            names.TOOL_CALL: call.id,
            names.TOOL_TYPE: "extension" if tool.outside else "function",
            names.TOOL_EFFECT: tool.effect,
        }
        if active.tracing.has_content:
            attributes |= active.tracing.content(names.TOOL_ARGUMENTS, lambda: _written(call))
        super().__init__(active, f"{names.EXECUTE_TOOL} {tool.name}", attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, AskPerson):  # no failure: it runs again when somebody has decided
            self.facts[names.TOOL_STATUS] = "asked"
            kind = error = trace = None
        super().__exit__(kind, error, trace)

    def note_result(self, result: ToolResult) -> None:
        """The run has its result; one that the tool made a failure is a failure, and raises nothing."""
        self.facts[names.TOOL_STATUS] = result.status
        if result.status != "success":
            self.error = "tool"
        if self.tracing.has_content:
            self.facts |= self.tracing.content(names.TOOL_RESULT, lambda: result.text)


def _written(call: ToolCall) -> str:
    if isinstance(call.arguments, str):
        return call.arguments
    return orjson.dumps(call.arguments, default=str).decode()
