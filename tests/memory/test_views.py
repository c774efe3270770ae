"""Views of a record: the shown messages are valid for a provider, for any history and cut."""

import contextlib
import itertools

import pytest
from hypothesis import given, strategies as st

from actgent import (
    BareAgent,
    ConfigurationError,
    ContextOverflow,
    GoalAgent,
    PlanAgent,
    RelevanceFilter,
    ScriptedLLM,
    SlidingWindow,
    StepsAgent,
    SummarizingMemory,
    Text,
    TimeDecay,
)
from actgent.agents.agent_constructor_validation import memory_of
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.memory.summarizing_memory import SUMMARY
from actgent.messages import Image, Message, Sender, Thinking, ToolCall, ToolResult, count_characters
from actgent.testing import check_transcript

ADA, TUTOR, TOOLS = Sender("ada"), Sender("tutor", "assistant"), Sender("tools", "tool")
OTHER, MODE = Sender("other", "agent"), Sender("mode", "system")
LONG = 1_000_000


def message(sender, *parts, **options):
    return Message(session_id="s", sender=sender, parts=parts, **options)


def words_of(size):
    return Text(("some words " * (size // 11 + 1))[:size])


@st.composite
def turns(draw):
    """Draw a recorded turn: a question, answers with calls and results, and optionally a final answer."""
    size = draw(st.sampled_from([1, 40, 400, 3_000]))
    asker = draw(st.sampled_from([ADA, ADA, OTHER]))
    parts = draw(
        st.sampled_from([(words_of(size),), (words_of(size), Image(data=b"x", media_type="image/png"))])
    )
    asked = message(asker, *parts)
    turn = [(asked, True)]
    for number in range(draw(st.integers(0, 2))):
        ids = [f"{asked.id}/{number}/{each}" for each in range(draw(st.integers(1, 2)))]
        thought = (
            (Thinking("Let me look.", "anthropic", {"signature": "sig"}),) if draw(st.booleans()) else ()
        )
        turn.append(
            (
                message(
                    TUTOR,
                    *thought,
                    *[ToolCall("look", {"at": 1}, each) for each in ids],
                    correlation_id=asked.id,
                ),
                False,
            )
        )
        size = draw(st.sampled_from([0, 10, 500, 5_000, LONG]))
        found = [ToolResult(call_id=each, tool_name="look", content=words_of(size).text) for each in ids]
        turn.append((message(TOOLS, *found, correlation_id=asked.id), False))
    end = draw(st.sampled_from(["answer", "empty", "cut", "nothing"]))
    if end == "answer":
        turn.append(
            (message(TUTOR, words_of(draw(st.sampled_from([5, 300, 9_000]))), correlation_id=asked.id), False)
        )
    elif end == "empty":
        turn.append((message(TUTOR, Text(""), correlation_id=asked.id), False))
    elif end == "cut":
        call = ToolCall("look", {}, f"{asked.id}/cut")
        turn.append((message(TUTOR, Text("I was"), call, correlation_id=asked.id, cut=True), False))
    if draw(st.booleans()):
        turn.append((message(MODE, Text("The mode is plan."), causation_id="plan"), False))
    return turn


def drop_every_third(history):
    return [each for number, each in enumerate(history) if number % 3]


MEMORIES = {
    "short": ShortTermMemory(max_tokens=2_000),
    "turns": SlidingWindow(turns=3),
    "one turn": SlidingWindow(turns=1),
    "turns and tokens": SlidingWindow(turns=4, tokens=2_000),
    "function": memory_of(drop_every_third),
    "nothing": memory_of(lambda _history: []),
    "decay": memory_of(TimeDecay(half_life=60)),
    "relevance": memory_of(RelevanceFilter(recent=2)),
}
FRONT = 100
"""Characters of the leading notice about omitted messages, which are added to the budget."""
BUDGETS = {"short": 8_000 + FRONT, "turns and tokens": 8_000 + FRONT}


def requests(view, history):
    """Yield the messages of each model call: at the start of a turn and after the results of calls."""
    for message, answered in history:
        view.add(message, answered=answered)
        if answered or message.sender is TOOLS:
            with contextlib.suppress(ContextOverflow):
                view.check_room()
                yield tuple(view.messages())


@pytest.mark.parametrize("name", MEMORIES)
@given(
    history=st.lists(turns(), min_size=1, max_size=8).map(lambda all_turns: list(itertools.chain(*all_turns)))
)
def test_views_of_any_history_are_valid_and_fit(name, history):
    """Calls have results, no message is empty, the newest question is shown, and the budget is respected."""
    for shown in requests(MEMORIES[name].open_view(), history):
        if shown[-1].role == "assistant":  # the core then appends a continuation message
            continue
        assert check_transcript(shown) == []
        assert sum(count_characters(message.parts) for message in shown) <= BUDGETS.get(name, float("inf"))


@given(
    history=st.lists(turns(), min_size=2, max_size=10).map(
        lambda all_turns: list(itertools.chain(*all_turns))
    ),
    data=st.data(),
)
def test_a_restored_window_behaves_like_the_original(history, data):
    """A snapshot between any two messages does not change what is shown afterwards."""
    memory = SlidingWindow(turns=3, tokens=3_000)
    place = data.draw(st.integers(0, len(history)))
    live = memory.open_view()
    list(requests(live, history[:place]))
    again = memory.restore_view(live.save())
    assert tuple(again.messages()) == tuple(live.messages())
    assert list(requests(again, history[place:])) == list(requests(live, history[place:]))
    assert SlidingWindow(turns=4, tokens=3_000).restore_view(live.save()) is None


@given(
    history=st.lists(turns(), min_size=2, max_size=12).map(lambda each: list(itertools.chain(*each))),
    data=st.data(),
)
def test_summaries_at_any_turn_cover_all_omitted_messages(history, data):
    """With snapshots at any position, requests are valid and each omitted message has a summary."""
    memory = SummarizingMemory(keep=2, trigger=100)
    live, source = memory.open_view(), None
    for number, (message, answered) in enumerate(history):
        if answered and source is not None:
            before = list(live.messages())
            summary = Message(
                session_id="s",
                sender=Sender(SUMMARY, "system"),
                parts=(Text("A summary."),),
                causation_id=str(source.covers),
            )
            live.add(summary)
            gone = [each for each in before if not any(each is kept for kept in live.messages())]
            for each in gone[1:]:
                for part in each.parts:
                    if isinstance(part, Text) and not part.text.startswith(("(", "<system>")):
                        assert part.text[:50] in source.text
            source = None
        if data.draw(st.booleans()):
            again = memory.restore_view(live.save())
            assert tuple(again.messages()) == tuple(live.messages())
            assert again.summary_input() == live.summary_input()
            live = again
        for chat in requests(live, [(message, answered)]):
            assert chat[-1].role == "assistant" or check_transcript(chat) == []
        ends = number + 1 == len(history) or history[number + 1][1]
        if ends and source is None and data.draw(st.booleans()):
            source = live.summary_input()


@pytest.mark.parametrize("asker", [ADA, OTHER])
def test_task_shown_after_a_summary_is_in_the_next_summary(asker):
    """After a summary within a turn, the turn's first message is shown in front.

    The next summary covers it.
    """
    view = SummarizingMemory(keep=2, trigger=100).open_view()

    def summarize():
        source = view.summary_input()
        sender = Sender(SUMMARY, "system")
        content = (Text("A summary."),)
        view.add(Message(session_id="s", sender=sender, parts=content, causation_id=str(source.covers)))
        return source.text

    def work(asked):
        view.add(asked, answered=True)
        for number in range(3):
            call = f"{asked.id}/{number}"
            view.add(message(TUTOR, ToolCall("look", {}, call), correlation_id=asked.id))
            result = ToolResult(call_id=call, tool_name="look", content=words_of(500).text)
            view.add(message(TOOLS, result, correlation_id=asked.id))

    work(message(asker, Text("Find the lost key.")))
    assert "Find the lost key." in summarize()
    assert any(each.parts == (Text("Find the lost key."),) for each in view.messages())
    view.add(message(TUTOR, Text("It is in the cellar."), correlation_id="x"))
    work(message(asker, Text("Find the door.")))
    text = summarize()
    assert not any(each.parts == (Text("Find the lost key."),) for each in view.messages())
    assert "Find the lost key." in text
    assert "Find the door." in text


def talk(view, turns_of):
    for number in range(turns_of):
        asked = message(ADA, Text(f"question {number}"))
        view.add(asked, answered=True)
        yield tuple(view.messages())
        view.add(message(TUTOR, Text(f"answer {number}"), correlation_id=asked.id))


def test_window_moves_its_prefix_rarely():
    """Of 100 turns, at most 10 are shown. The prefix moves once in five turns."""
    shown = list(talk(SlidingWindow(turns=10).open_view(), 100))
    asked = [sum(said.parts[0].text.startswith("question") for said in each) for each in shown]
    assert asked[:10] == list(range(1, 11))
    assert set(asked[10:]) == set(range(6, 11))
    moved = [after[: len(before)] != before for before, after in itertools.pairwise(shown)]
    assert sum(moved) == 18
    assert shown[-1][-1].parts == (Text("question 99"),)


def test_window_without_bounds_is_rejected():
    """Such a window would silently show all turns."""
    with pytest.raises(ConfigurationError, match=r"turns=, tokens="):
        SlidingWindow()
    with pytest.raises(ConfigurationError, match="turns"):
        SlidingWindow(turns=0)


def test_time_decay_keeps_recent_messages():
    """With a half-life of a minute, a weight of 0.1 is reached after 200 seconds."""
    history = [message(ADA, Text(str(age)), created_at=10_000.0 - age) for age in (1_000, 200, 199, 60, 0)]
    assert [each.text for each in TimeDecay(half_life=60)(history)] == ["199", "60", "0"]


def test_relevance_keeps_turns_that_share_the_words_of_the_question():
    """The turn about the invoice is kept with its answer. Of the others only the last messages are kept."""
    history = []
    for question, answer in [
        ("Where is the invoice of March?", "In the cellar."),
        ("How is the weather?", "Wet."),
        ("And tomorrow?", "Dry."),
    ]:
        asked = message(ADA, Text(question))
        history += [asked, message(TUTOR, Text(answer), correlation_id=asked.id)]
    history.append(message(ADA, Text("Send me the invoice of March!")))
    kept = [each.text for each in RelevanceFilter(recent=1)(history)]
    assert kept == ["Where is the invoice of March?", "In the cellar.", "Send me the invoice of March!"]


async def test_function_can_be_a_memory():
    """An agent accepts any function of the history.

    Returned values other than messages are a ConfigurationError.
    """
    llm = ScriptedLLM(lambda chat: f"{len(chat.messages)} messages")
    async with BareAgent("a", llm=llm, memory=lambda history: history[-3:]) as agent:
        session = await agent.create_session("ada")
        texts = [(await agent.run(f"number {number}", session=session)).text for number in range(4)]
        assert texts == ["1 messages", "3 messages", "3 messages", "3 messages"]
        assert len(session.history) == 8
    async with BareAgent("a", llm=llm, memory=lambda _history: ["words"]) as agent:
        with pytest.raises(ConfigurationError, match="return messages of the history"):
            await agent.run("Hello")
    with pytest.raises(ConfigurationError, match="function of the history"):
        BareAgent("a", llm=llm, memory=3)


class LastThree:
    """A memory as in acton's document."""

    def manage_history(self, history: list[Message]) -> list[Message]:
        while len(history) > 3:
            history.pop(0)
        return history


@pytest.mark.parametrize("kind", [BareAgent, StepsAgent, PlanAgent, GoalAgent])
async def test_an_object_with_manage_history_is_a_memory(kind):
    """The object may modify the list that it gets. The record is unchanged."""
    llm = ScriptedLLM(lambda chat: f"{len(chat.messages)} messages", keep=0)
    if kind is BareAgent:
        async with kind("a", llm=llm, memory=LastThree()) as agent:
            session = await agent.create_session("ada")
            texts = [(await agent.run(f"number {number}", session=session)).text for number in range(4)]
            assert (texts[0], texts[1:]) == ("1 messages", ["3 messages"] * 3)
            assert len(session.history) == 8
    assert kind("a", llm=llm, memory=LastThree()).name == "a"
    for wrong in (LastThree, 3, object()):
        with pytest.raises(ConfigurationError, match="manage_history"):
            kind("a", llm=llm, memory=wrong)


def test_an_async_function_cannot_manage_the_history():
    """Views are computed synchronously."""

    class Slow:
        async def manage_history(self, history):
            return history

    with pytest.raises(ConfigurationError, match="without `async`"):
        BareAgent("a", llm=ScriptedLLM([]), memory=Slow())
