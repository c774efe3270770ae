"""Truncation: the newest messages that fit, and the ends of long ones.

Numbers are those of acton's cases 35 and 36.
"""

import pytest
from hypothesis import given, strategies as st

from actgent import BareAgent, ScriptedLLM, Text, ToolCall, Truncation, tool
from actgent.memory.context_size_estimate import to_tokens
from actgent.memory.history_processors.truncation import keep_end
from actgent.messages import Message, ToolResult, count_characters

from .histories import AGENT, TOOLS, said


def shown_tokens(messages):
    return sum(to_tokens(count_characters(each.parts)) for each in messages)


@pytest.mark.parametrize(("text", "count"), [("test", 1), ("test test", 3), ("a" * 100, 25)])
def test_case_35_four_characters_are_a_token(text, count):
    """Tokens are rounded up; the original rounds `test test` down to 2."""
    assert to_tokens(count_characters((Text(text),))) == count


def test_case_36_empty_and_fitting_histories_are_unchanged():
    """No message is added or changed."""
    assert Truncation()([]) == []
    history = said("a", "b", "c")
    kept = Truncation(max_tokens=100)(history)
    assert [each is one for each, one in zip(kept, history, strict=True)] == [True] * 3


def test_case_36_oldest_messages_are_dropped_first():
    """Of 4 messages of 200 characters, 100 tokens keep the newest two or three."""
    history = said(*(f"{n}" * 200 for n in range(4)))
    assert Truncation(max_tokens=100)(history) == history[2:]


def test_case_36_two_long_messages_stay():
    """Of 3 messages of 1,000 characters, 10 tokens keep two."""
    kept = Truncation(max_tokens=10)(said("a" * 1000, "b" * 1000, "c" * 1000))
    assert [each.text for each in kept] == ["..." + "b" * 17, "..." + "c" * 17]


def test_case_36_contents_are_cut_at_their_beginning():
    """Of 2 messages of 400 characters in 50 tokens, both begin with `...` and keep their ends."""
    history = said("a" * 390 + "the first end", "b" * 390 + "the other end")
    kept = Truncation(max_tokens=50)(history)
    assert all(each.text.startswith("...") for each in kept)
    assert [each.text[-9:] for each in kept] == ["first end", "other end"]
    assert shown_tokens(kept) <= 50
    assert [each.id for each in kept] == [each.id for each in history]


def test_case_36_only_the_long_message_is_truncated():
    """In 100 tokens the message is cut. A short message before it is not."""
    assert len(Truncation(max_tokens=100)(said("x" * 2000))[0].text) == 400
    short, long = Truncation(max_tokens=100)(said("short", "x" * 2000))
    assert (short.text, len(long.text)) == ("short", 395)


def test_case_36_the_input_is_unchanged():
    """The list and its messages are not modified."""
    history = said("a" * 2000, "b" * 2000)
    before = [each.text for each in history]
    Truncation(max_tokens=10)(history)
    assert [each.text for each in history] == before


def test_results_are_truncated_and_calls_are_not():
    """A result needs its complete call. Arguments are not text to cut."""
    asked = Message(session_id="s", sender=AGENT, parts=(ToolCall("look", {"at": "x" * 100}, "1"),))
    result = ToolResult(call_id="1", tool_name="look", content="y" * 4000)
    message = Message(session_id="s", sender=TOOLS, parts=(result,))
    kept = Truncation(max_tokens=100)([*said("What?"), asked, message])
    assert kept[0] is asked
    assert kept[1].tool_results[0].content.startswith("...y")
    assert sum(count_characters(each.parts) for each in kept) <= 400


@given(
    st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=12),
    st.integers(1, 200),
    st.integers(1, 4),
)
def test_truncation_respects_its_token_limit(texts, most, keep):
    """The newest texts are within the tokens, except for the `...` of each, and in order."""
    history = said(*texts)
    kept = Truncation(max_tokens=most, keep=keep)(history)
    assert [each.id for each in kept] == [each.id for each in history[len(history) - len(kept) :]]
    assert len(kept) >= min(keep, len(history))
    assert sum(count_characters(each.parts) for each in kept) <= max(most * 4, 3 * len(kept))
    for each, whole in zip(kept, history[len(history) - len(kept) :], strict=True):
        assert whole.text.endswith(each.text.removeprefix("...")) or each.text == whole.text


def test_cuts_respect_character_boundaries():
    """Texts of all scripts are measured by their token estimate."""
    cut = keep_end("早上好" * 50, 40)
    assert cut.startswith("...")
    assert ("早上好" * 50).endswith(cut[3:])
    assert len(cut.encode()) * 4 // 3 <= 44


async def test_agent_with_truncation_sends_bounded_requests():
    """The model is shown the end of a long message, and the record has the complete message."""
    shown = []

    @tool(thread=False)
    def look() -> str:
        """Look."""
        return "long " * 2000

    llm = ScriptedLLM(
        [ToolCall("look", {}), "Seen.", lambda chat: shown.append(chat.messages) or "Short.", "."], name="m"
    )
    async with BareAgent("a", llm=llm, tools=[look], memory=Truncation(max_tokens=500)) as agent:
        session = await agent.create_session("ada")
        await agent.run("Look!", session=session)
        await agent.run("x" * 4000 + " the end", session=session)
    text = shown[0][-1].parts[0].text
    assert text.startswith("...")
    assert text.endswith("the end")
    assert sum(count_characters(each.parts) for each in shown[0]) <= 2000 + 200
    assert len(session.history[-2].text) == 4008
