"""Judges a turn by its tool calls: whether all of them worked, some, or none."""

from collections.abc import Iterable, Sequence
from typing import Literal

from actgent.messages import Message, ToolResult

ToolsStatus = Literal["success", "partial", "error"]


def status_of_tools(turn: Iterable[Message]) -> ToolsStatus:
    """Return `success` if no tool call of a turn failed for good, `error` if none had success, and otherwise `partial`.

    The messages are in order. A failed call counts as repaired if a later answer called the same tool with success.
    """
    batches = [message.tool_results for message in turn if message.tool_results]
    if not _unrepaired(batches):
        return "success"
    return "partial" if any(result.status == "success" for batch in batches for result in batch) else "error"


def failures_of_tools(turn: Iterable[Message]) -> tuple[ToolResult, ...]:
    """Return the results of the tool calls that failed for good, in order; see `status_of_tools`."""
    return _unrepaired([message.tool_results for message in turn if message.tool_results])


def _unrepaired(batches: Sequence[Sequence[ToolResult]]) -> tuple[ToolResult, ...]:
    found: list[ToolResult] = []
    repaired: set[str] = set()
    for batch in reversed(batches):
        found[:0] = [each for each in batch if each.status != "success" and each.tool_name not in repaired]
        repaired.update(each.tool_name for each in batch if each.status == "success")
    return tuple(found)
