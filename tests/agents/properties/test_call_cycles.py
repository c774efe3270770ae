"""`find_call_cycle`: repeated call sequences that count as a cycle, and sequences that do not."""

import pytest

from actgent.limits_and_schedules.tool_call_loop_detection import find_call_cycle
from actgent.messages import Message, Sender, ToolCall, ToolResult


def called(words, results):
    """Return one call per letter of `words`, and the messages with the given results of the first calls."""
    calls = [ToolCall(name, {}, id=f"c{number}") for number, name in enumerate(words)]
    received = [
        ToolResult(call_id=call.id, tool_name=call.name, content=content)
        for call, content in zip(calls, results, strict=False)
    ]
    return calls, [
        Message(session_id="s", sender=Sender("tools", "tool"), parts=(each,)) for each in received
    ]


@pytest.mark.parametrize(
    ("expected", "results", "period"),
    [
        ("ababa", "1212", 2),
        ("abcabca", "123123", 3),
        ("ababa", "1213", 0),  # the last result differs
        ("ababa", "3212", 0),  # the first result differs
        ("abcabca", "123124", 0),
        ("aaaaa", "1111", 0),  # a single repeated call has its own limit
        ("abab", "121", 0),  # the third round has not begun
        ("abaca", "1213", 0),
        ("xababa", "91212", 2),
        ("ababa", "12", 2),  # unknown results count as equal
        ("ababa", "", 2),
        ("abcdabcda", "12341234", 4),
        ("abcdeabcdea", "1234512345", 5),
        ("abcdefghabcdefgha", "1234567812345678", 8),
        ("abcdabcda", "12341235", 0),
        ("aabaaba", "123123", 3),
        ("aaabaaaba", "12341234", 4),  # a call may occur several times in a round
        ("ababababa", "12321232", 4),  # the results repeat after four calls only
        ("abcdefghiabcdefghia", "123456789123456789", 0),  # longer than the longest detected cycle
    ],
)
def test_repeated_call_sequence_is_a_cycle(expected, results, period):
    """The same calls with equal results occur twice in a row, and then the first once more. No result may differ."""
    calls, record = called(expected, results)
    found = find_call_cycle(calls, 2, record)
    assert "".join(call.name for call in found) == expected[len(expected) - 2 * period - 1 :][:period]
