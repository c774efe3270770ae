"""Detection of loops of tool calls: two to eight calls that repeat in the same order with the same results.

A different result is progress, for example when a model polls a status. So calls are equal only if their known results are equal.
Consecutive calls of one tool with equal arguments are counted separately (`Limits.max_repeated_calls`), also if results differ.
"""

from collections.abc import Iterable, Mapping, Sequence

from actgent.messages import Message, ToolCall, ToolResult

PERIODS = range(2, 9)
"""Numbers of calls that a detectable cycle can have. A longer cycle ends at the limit of model calls."""
MIN_ROUNDS = 2
"""Minimum number of repetitions that count as a cycle."""
MIN_CALLS = min(PERIODS) * MIN_ROUNDS
"""Minimum number of calls in a detectable cycle."""


def is_same(call: ToolCall, last: ToolCall | None) -> bool:
    """Return True if two calls have the same tool and arguments."""
    return last is not None and last.name == call.name and last.arguments == call.arguments


def most_calls(rounds: int) -> int:
    """Return the number of recent tool calls that a caller must pass to detect a cycle that runs `rounds` times."""
    return max(PERIODS) * max(rounds, MIN_ROUNDS) + 1


def find_call_cycle(called: Sequence[ToolCall], rounds: int, record: Sequence[Message]) -> Sequence[ToolCall]:
    """Find a cycle of tool calls that has run `rounds` times with equal results and begins again with the last call.

    Return the calls of the cycle; empty if there is none. `record` has the session's messages with the results.
    """
    rounds = max(rounds, MIN_ROUNDS)
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
    """Return the results of tool calls by call id, searched from the end of the session's messages `record`."""
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
    """Return True if two calls have equal results, or the result of one of them is unknown."""
    first, second = results.get(one.id), results.get(other.id)
    if first is None or second is None:
        return True
    return (first.status, first.text) == (second.status, second.text)
