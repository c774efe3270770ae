"""Detect cycles of tool calls: the same two to eight calls, one after the other, with the same results in each round.

A result that differs is progress, as that of a status that is asked for between pauses; so calls count as the same only with the
same results, as far as those are known. One call that is repeated is no circle: that one counts whatever it brings.
"""

from collections.abc import Iterable, Mapping, Sequence

from actgent.messages import Message, ToolCall, ToolResult

PERIODS = range(2, 9)
"""The numbers of calls that a cycle may have. A longer cycle ends at the limit of model calls."""
LEAST = 2
"""How often a circle goes round at least before it is one."""
FEWEST = min(PERIODS) * LEAST
"""No so few calls are one."""


def is_same(call: ToolCall, last: ToolCall | None) -> bool:
    """Return True if a call asks for what the last one asked for."""
    return last is not None and last.name == call.name and last.arguments == call.arguments


def most_calls(rounds: int) -> int:
    """Count the calls that have to be remembered to see so many rounds."""
    return max(PERIODS) * max(rounds, LEAST) + 1


def circle(called: Sequence[ToolCall], rounds: int, record: Sequence[Message]) -> Sequence[ToolCall]:
    """The calls that went round so often, and begin once more with the last one; empty where nothing does."""
    rounds = max(rounds, LEAST)
    for period in PERIODS:
        if len(called) <= period * rounds:
            break
        if not is_same(called[-1], called[-1 - period]):
            continue
        last = called[-(period * rounds + 1) :]
        if _repeats(last, period):
            results = _results_of(last, record)
            if all(_agree(results, *pair) for pair in _pairs(last[:-1], period)):
                return last[:period]
    return ()


def _repeats(calls: Sequence[ToolCall], period: int) -> bool:
    is_one = all(is_same(call, calls[0]) for call in calls[1:period])
    return not is_one and all(is_same(later, call) for call, later in _pairs(calls, period))


def _pairs(calls: Sequence[ToolCall], period: int) -> Iterable[tuple[ToolCall, ToolCall]]:
    return zip(calls, calls[period:], strict=False)


def _results_of(calls: Sequence[ToolCall], record: Sequence[Message]) -> Mapping[str, ToolResult]:
    """Their results by their ids, from the end of a session's record."""
    missing, found = {call.id for call in calls}, {}
    for message in reversed(record):
        for result in message.tool_results:
            if result.call_id in missing:
                missing.remove(result.call_id)
                found[result.call_id] = result
        if not missing or message.sender.kind == "user":
            break
    return found


def _agree(results: Mapping[str, ToolResult], one: ToolCall, other: ToolCall) -> bool:
    """Return True if nothing is known that tells the results of two calls apart."""
    first, second = results.get(one.id), results.get(other.id)
    if first is None or second is None:
        return True
    return (first.status, first.text) == (second.status, second.text)
