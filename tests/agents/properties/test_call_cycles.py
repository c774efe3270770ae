"""Calls that go round in a circle, without an agent: what counts as one, and what does not."""

import pytest

from actgent.limits_and_schedules.loop_detection import find_call_cycle
from actgent.messages import Message, Sender, ToolCall, ToolResult


def called(words, results):
    """Calls by the letters of a word, each with a result but the last one; and the record that has these."""
    calls = [ToolCall(name, {}, id=f"c{number}") for number, name in enumerate(words)]
    told = [
        ToolResult(call_id=call.id, tool_name=call.name, content=content)
        for call, content in zip(calls, results, strict=False)
    ]
    return calls, [Message(session_id="s", sender=Sender("tools", "tool"), parts=(each,)) for each in told]


@pytest.mark.parametrize(
    ("words", "results", "period"),
    [
        ("ababa", "1212", 2),
        ("abcabca", "123123", 3),
        ("ababa", "1213", 0),  # the last result differs
        ("ababa", "3212", 0),  # the first one does
        ("abcabca", "123124", 0),
        ("aaaaa", "1111", 0),  # one call that is repeated is counted elsewhere
        ("abab", "121", 0),  # it has not come back yet
        ("abaca", "1213", 0),
        ("xababa", "91212", 2),
        ("ababa", "12", 2),  # what is not known tells nothing apart
        ("ababa", "", 2),
        ("abcdabcda", "12341234", 4),
        ("abcdeabcdea", "1234512345", 5),
        ("abcdefghabcdefgha", "1234567812345678", 8),
        ("abcdabcda", "12341235", 0),
        ("aabaaba", "123123", 3),
        ("aaabaaaba", "12341234", 4),  # a call may stand in a round several times
        ("ababababa", "12321232", 4),  # the results repeat after four calls only
        ("abcdefghiabcdefghia", "123456789123456789", 0),  # longer than any that is looked for
    ],
)
def test_repeated_call_sequence_is_a_cycle(words, results, period):
    """The same calls with equal results occur twice in a row, and then the first once more. No result may differ."""
    calls, record = called(words, results)
    found = find_call_cycle(calls, 2, record)
    assert "".join(call.name for call in found) == words[len(words) - 2 * period - 1 :][:period]
