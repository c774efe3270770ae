"""The memory's token budget: counted parts, overflows, and the notices in their place."""

import pytest
from hypothesis import given, strategies as st

from actgent import ContextOverflow
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import File, Image, Message, Sender, Text, ToolCall, ToolResult, count_characters
from actgent.testing import check_transcript

ADA = Sender("ada")
TUTOR = Sender("tutor", "assistant")
TOOLS = Sender("tools", "tool")


def message(sender, *parts, **options):
    return Message(session_id="s", sender=sender, parts=parts, **options)


def size_of(messages):
    return sum(count_characters(message.parts) for message in messages)


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (Text("word " * 400), 500),
        (Text("\u4f60\u597d" * 300), 600),
        (Text("x" * 10_000_000), 2_500_000),
        (Image(media_type="image/png", data=b"x" * 5_000_000), 1000),
        (File(media_type="application/pdf", data=b"x" * 100), 1000),
        (File(media_type="application/pdf", data=b"x" * 2_400_000), 100_000),
        (File(media_type="text/plain", data=b"x" * 3_000_000), 1_000_000),
    ],
)
def test_token_estimate_follows_the_rule_of_thumb(part, tokens):
    """Four ASCII characters or three bytes of other text are a token. Documents count by their bytes."""
    assert count_characters([part]) / 4 == tokens


def test_older_messages_are_omitted_for_a_message_that_fits():
    """Older messages are also omitted to make room for the text at the end of the request."""
    view = ShortTermMemory(max_tokens=1000).open_view()
    for _ in range(10):
        view.add(message(ADA, Text("q" * 390)), answered=True)
    view.check_room("t" * 3000)
    assert size_of(view.messages()) + 3000 <= 4000


def test_the_overflow_error_names_the_largest_parts():
    """The error has sizes and budget. The later notice has the length of the message."""
    view = ShortTermMemory(max_tokens=1000).open_view()
    view.add(message(ADA, Text("hello")), answered=True)
    view.add(message(TUTOR, *[ToolCall("big", {"n": n}, f"c{n}") for n in range(3)]))
    sizes = (100, 50_000, 20_000)
    results = [
        ToolResult(call_id=f"c{n}", tool_name="big", content="x" * size) for n, size in enumerate(sizes)
    ]
    view.add(message(TOOLS, *results))
    with pytest.raises(ContextOverflow) as caught:
        view.check_room()
    error = caught.value
    assert error.parts[:2] == (
        ("result of 'big' (call 'c1')", 12_500),
        ("result of 'big' (call 'c2')", 5_000),
    )
    assert (error.budget, error.tokens > 17_525) == (1000, True)
    for part in ("budget is 1,000", "result of 'big' (call 'c1') (12,500)", "max_tokens"):
        assert part in str(error)
    view.add(message(ADA, Text("and now?")), answered=True)
    view.check_room()
    hello, note, now = [chat_message.parts[0].text for chat_message in view.messages()]
    assert (hello, now) == ("hello", "and now?")
    assert "3 tool calls with all results, about 17," in note
    assert "at most 1,000 fit" in note


def test_oversized_tail_is_reported():
    """A protocol's text at the end of the prompt also counts."""
    view = ShortTermMemory(max_tokens=1000).open_view()
    view.add(message(ADA, Text("hello")), answered=True)
    with pytest.raises(ContextOverflow, match=r"the instructions of this stage \(2,500\)"):
        view.check_room("t" * 10_000)
    view.check_room()


PIECES = st.one_of(st.integers(1, 300), st.sampled_from([3000, 10_000]))


def fits(view, tail, budget):
    """Return whether the shown messages pass; assert then that they are within the budget and valid."""
    try:
        view.check_room("t" * tail)
    except ContextOverflow:
        return False
    assert size_of(view.messages()) + tail <= budget * 4
    assert check_transcript(view.messages()) == []
    return True


def steps(turns):
    """Yield the messages of some turns: question, calls with results, answer; None marks a request."""
    for number, (asked, results, answer) in enumerate(turns):
        yield message(ADA, Text("q" * asked))
        yield None
        if results:
            ids = [f"{number}/{index}" for index in range(len(results))]
            yield message(TUTOR, *[ToolCall("big", {}, call_id) for call_id in ids])
            told = zip(ids, results, strict=True)
            yield message(
                TOOLS,
                *[ToolResult(call_id=known, tool_name="big", content="r" * size) for known, size in told],
            )
            yield None
        yield message(TUTOR, Text("a" * answer))
    yield message(ADA, Text("short"))


@given(
    budget=st.integers(100, 800),
    turns=st.lists(st.tuples(PIECES, st.lists(PIECES, max_size=4), PIECES), max_size=15),
    tail=st.integers(0, 300),
)
def test_view_within_the_budget_is_valid(budget, turns, tail):
    """A view that passes is within the budget and valid. A rebuilt view shows the same messages."""
    memory = ShortTermMemory(max_tokens=budget)
    view, again = memory.open_view(), memory.open_view()
    for step in steps(turns):
        if step is None:
            fits(view, tail, budget)
            continue
        for each in (view, again):
            each.add(step, answered=step.sender is ADA)
    if tail < 4 * budget - 500:
        assert fits(view, tail, budget)
    if not tail:
        assert fits(again, 0, budget)
        assert again.messages() == view.messages()
