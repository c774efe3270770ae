"""Short-term memory: the messages of a session that the next request shows."""

import itertools

import attrs
import pytest
from hypothesis import given, strategies as st

from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import Message, Sender, Text, Thinking, ToolCall, ToolResult
from actgent.testing import check_transcript

ADA = Sender("ada")
TUTOR = Sender("tutor", "assistant")
TOOLS = Sender("tools", "tool")


def message(sender, *parts, **options):
    return Message(session_id="s", sender=sender, parts=parts, **options)


def words(view):
    return ["".join(getattr(part, "text", "") for part in message.parts) for message in view.messages()]


def conversation(view, turns, *, size, tools=lambda _: False, start=0):
    """Run turns with a question, some tool calls and an answer. Yield the messages of each request."""
    for number in range(start, start + turns):
        view.add(message(ADA, Text(f"question {number} ".ljust(size, "."))), answered=True)
        yield tuple(view.messages())
        if tools(number):
            view.add(message(TUTOR, ToolCall("look", {"number": number}, f"call-{number}")))
            view.add(
                message(TOOLS, ToolResult(call_id=f"call-{number}", tool_name="look", content="x" * size))
            )
            yield tuple(view.messages())
        view.add(message(TUTOR, Text(f"answer {number} ".ljust(size, "."))))


def test_conversation_within_the_budget_is_shown_completely():
    """500 turns of 100 characters are 25,000 tokens, well below the default budget."""
    view = ShortTermMemory().open_view()
    requests = list(conversation(view, 500, size=100, tools=lambda number: number % 10 == 0))
    assert len(requests[-1]) == 500 + 499 + 2 * 50
    for before, after in itertools.pairwise(requests):
        assert after[: len(before)] == before


def test_cut_over_the_budget_drops_the_older_half():
    """Cuts are rare and large, so the prefix is stable between two cuts."""
    view = ShortTermMemory(max_tokens=1000).open_view()
    requests = list(conversation(view, 200, size=100, tools=lambda number: number % 3 == 0))
    cuts = 0
    for before, after in itertools.pairwise(requests):
        if after[: len(before)] != before:
            cuts += 1
            assert sum(map(len, map(str, after))) < 1.2 * sum(map(len, map(str, before))) / 1.5
        assert sum(len(getattr(part, "text", "")) for said in after for part in said.parts) <= 4100
    assert 5 < cuts < 30


@given(
    budget=st.integers(1, 400),
    turns=st.integers(1, 40),
    size=st.integers(1, 200),
    tools=st.sets(st.integers(0, 40)),
)
def test_shown_messages_are_a_valid_conversation(budget, turns, size, tools):
    """Calls and results stay paired, a user message is first, and the view is never empty."""
    view = ShortTermMemory(max_tokens=budget).open_view()
    for request in conversation(view, turns, size=size, tools=lambda number: number in tools):
        assert check_transcript(request) == []


@given(budget=st.integers(20, 200))
def test_text_results_stay_with_their_call(budget):
    """Calls and results of a text protocol also stay paired."""
    view = ShortTermMemory(max_tokens=budget).open_view()
    for number in range(20):
        view.add(message(ADA, Text("q" * 30)), answered=True)
        view.add(message(TUTOR, Text(f'{{"call": {number}}}')))
        result = ToolResult(call_id=f"c{number}", tool_name="look", content="r" * 40, native=False)
        view.add(message(TOOLS, result))
        shown = view.messages()
        for index, chat_message in enumerate(shown):
            if chat_message.parts[0].text.startswith("Tool results"):
                assert shown[index - 1].role == "assistant"
        view.add(message(TUTOR, Text("a")))


def test_a_notice_counts_omitted_messages():
    """The model is informed of the number of omitted messages."""
    view = ShortTermMemory(max_tokens=50).open_view()
    list(conversation(view, 10, size=50))
    assert "earlier messages are not shown" in words(view)[0]


def test_a_single_message_over_the_budget_is_still_shown():
    """The model must answer this message."""
    view = ShortTermMemory(max_tokens=10).open_view()
    view.add(message(ADA, Text("x" * 1000)), answered=True)
    assert words(view) == ["x" * 1000]


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_budget_is_at_least_one_token(tokens):
    """A budget below one token is rejected."""
    with pytest.raises(ValueError, match="max_tokens"):
        ShortTermMemory(max_tokens=tokens)


@pytest.mark.parametrize(
    ("sender", "role"),
    [
        (Sender("ada"), "user"),
        (Sender("tutor", "assistant"), "assistant"),
        (Sender("helper", "agent"), "assistant"),
        (Sender("clock", "system"), "user"),
        (Sender("tools", "tool"), "user"),
    ],
)
def test_role_of_a_sender_depends_on_its_position(sender, role):
    """A message that is being answered has the role user.

    In the history an agent's message is an assistant's.
    """
    view = ShortTermMemory().open_view()
    view.add(message(ADA, Text("begin")))
    view.add(message(sender, Text("hi")), answered=True)
    assert view.messages()[1].role == "user"
    view.add(message(TUTOR, Text("hello")))
    assert [chat_message.role for chat_message in view.messages()] == ["user", role, "assistant"]


def test_a_cut_answer_shows_its_text_only():
    """Thinking and calls of a truncated answer are omitted: they lack a signature and results."""
    view = ShortTermMemory().open_view()
    view.add(message(ADA, Text("hi")), answered=True)
    parts = (Thinking("hm", "anthropic"), Text("I will"), ToolCall("look", {}, "1"))
    view.add(message(TUTOR, *parts, cut=True))
    assert view.messages()[1].parts == (Text("I will"),)


@pytest.mark.parametrize("parts", [(), (Text(""),), (Text(" \n"),), (Thinking("hm", "anthropic"),)])
def test_empty_answers_are_not_shown(parts):
    """Providers reject empty answers."""
    view = ShortTermMemory().open_view()
    view.add(message(ADA, Text("hi")), answered=True)
    view.add(message(TUTOR, *parts))
    assert [chat_message.role for chat_message in view.messages()] == ["user"]


def test_sent_messages_do_not_change():
    """A running request keeps its messages."""
    view = ShortTermMemory().open_view()
    view.add(message(ADA, Text("hi")), answered=True)
    shown = view.messages()
    view.add(message(TUTOR, Text("hello")))
    assert len(shown) == 1
    assert attrs.asdict(shown[0], recurse=False)["role"] == "user"
