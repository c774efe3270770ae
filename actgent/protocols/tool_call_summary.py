"""Summary of a turn's tool calls: all, some or none of them succeeded."""

from collections.abc import Iterable, Sequence
from typing import Literal

from actgent.messages import Message, ToolResult

ToolsStatus = Literal["success", "partial", "error"]


def status_of_tools(turn: Iterable[Message]) -> ToolsStatus:
    """Return `success` if every tool call of a turn succeeded in the end, `error` if none did, otherwise `partial`.

    A turn without calls returns `success`. `turn` has the messages in order. A failed call is ignored if a
    later call of the same tool succeeded.
    """
    batches = [message.tool_results for message in turn if message.tool_results]
    if not _unrepaired(batches):
        return "success"
    return "partial" if any(result.status == "success" for batch in batches for result in batch) else "error"


def failures_of_tools(turn: Iterable[Message]) -> tuple[ToolResult, ...]:
    """Return the results of a turn's failed tool calls, in order. If the same tool succeeded later, its failure is omitted."""
    return _unrepaired([message.tool_results for message in turn if message.tool_results])


def _unrepaired(batches: Sequence[Sequence[ToolResult]]) -> tuple[ToolResult, ...]:
    found: list[ToolResult] = []
    repaired: set[str] = set()
    for batch in reversed(batches):
        found[:0] = [each for each in batch if each.status != "success" and each.tool_name not in repaired]
        repaired.update(each.tool_name for each in batch if each.status == "success")
    return tuple(found)
