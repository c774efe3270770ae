"""One call of a tool without an agent, by the same rules as in a turn: validation, time limit, retries, approval, hooks."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from actgent.approvals import Approve
from actgent.errors import ApprovalRequired, ConfigurationError, InvalidToolResult, ToolError
from actgent.information_flow_labels import TRUSTED, Label
from actgent.messages import CallProgress, ToolCall, ToolResult
from actgent.support.safe_logging import logger_of
from actgent.support.user_code_calls import leaves
from actgent.tools.outputs.result_text import truncate
from actgent.tools.tool_execution import Batch
from actgent.tools.tool_interface import NestedToolCalls, Tool, ToolContext, WrappedTool
from actgent.tools.tool_registry import ToolRegistry
from actgent.tools.untrusted_call_sources import CallSources, running_call

MAX_RESULT_CHARACTERS = 1_000_000
"""Maximum length of a result in characters; longer results are truncated with a notice."""
_log = logger_of(__name__)


@attrs.frozen(kw_only=True)
class ToolOutcome:
    """Result of a finished call, or the question for which the call waits."""

    result: ToolResult | None = None
    """Result of the call; None if it asks a question."""
    value: object = None
    """Value that the tool returned; undefined after an error."""
    question: ApprovalRequired | None = None
    """Question that has to be answered first; None after the end."""
    error: Exception | None = None
    """Exception that the tool raised; None after a success."""

    @property
    def label(self) -> Label:
        """Label of the result; it restricts nothing before the end."""
        return TRUSTED if self.result is None else self.result.label

    @property
    def error_text(self) -> str:
        """Text of the error for a client: of a `ToolError`, as other exceptions may name files and hosts; empty after a success."""
        if self.result is None or self.result.error is None:
            return ""
        if self.error is not None and not all(isinstance(each, ToolError) for each in leaves(self.error)):
            return f"{self.result.tool_name} failed: the log of the server has the reason"
        return self.result.error


async def run_tool(
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    owner: str = "",
    call_id: str = "",
    report: Callable[[CallProgress], object] | None = None,
    grant: Approve | None = None,
) -> ToolOutcome:
    """Run one call of a tool, and return its outcome.

    Args:
        tool: The tool.
        arguments: Arguments, not yet validated.
        owner: Name of the owner for `ToolContext.owner`.
        call_id: Id of the call for `ToolContext.call_id`.
        report: Callback for `CallProgress`; None ignores progress.
        grant: Decision of an approver, which the tool finds as `ToolContext.approval`; None if there is none.
    """
    call = ToolCall(tool.name, dict(arguments), id=call_id)
    sources = CallSources(owner=None, given="")
    recorder, host = _Recorder(tool), _Host(tool.name, sources)
    batch = Batch(
        (call,),
        ToolRegistry([recorder]),
        context=ToolContext(owner=owner, report=report),
        grants={} if grant is None else {call.id: grant},
        max_characters=MAX_RESULT_CHARACTERS,
        host=host,
    )
    token = running_call.set(sources)
    try:
        await batch.run()
    finally:
        running_call.reset(token)
    if (question := batch.awaiting_approval.get(0)) is not None:
        return ToolOutcome(question=question)
    return ToolOutcome(result=batch.results()[0], value=recorder.value, error=host.error)


class _Recorder(WrappedTool):
    """Stores the value of the tool, whose media and order the text of the result does not have."""

    value: object = None

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        self.value = await self.inner.execute(arguments, context)
        return self.value


@attrs.define
class _Host:
    """The turn of a call without an agent."""

    name: str
    sources: CallSources
    error: Exception | None = None

    @property
    def via(self) -> str:
        """Untrusted sources of the agents that the call has asked."""
        return self.sources.found

    def keep(self, call: ToolCall, text: str, limit: int) -> str:
        return truncate(text, limit)

    def nest(self, call: ToolCall) -> NestedToolCalls:
        raise ConfigurationError(f"tool {self.name!r} cannot run without an agent: it calls other tools")

    def report_exception(self, call: ToolCall, error: Exception) -> None:
        self.error = error
        if not isinstance(error, ToolError):
            _log.error("tool %s failed", self.name, exc_info=error)

    def log_unserializable(self, call: ToolCall, error: InvalidToolResult) -> None:
        _log.warning("the result of tool %s has no JSON form: %s", self.name, error)
