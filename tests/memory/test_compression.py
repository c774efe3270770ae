"""Semantic compression: without a model, with a model, and with long-term memory."""

import pytest
import trio

from actgent import BareAgent, LongTermMemory, ScriptedLLM, SemanticCompression, SummarizingMemory
from actgent.memory.history_processors.semantic_compression import LEFT_OUT
from actgent.messages import Message, ToolCall, ToolResult, count_characters

from .histories import AGENT, TOOLS, said

FILLER = "We talked about this and that. It was nice. You said so, and I said so, too. "


def conversation():
    facts = {4: "The invoice number is 4711-X. ", 9: "The harbour master is called Oyelaran. "}
    talk = [FILLER + facts.get(n, "") + FILLER for n in range(20)]
    return said(*talk, "What is the number of my invoice?")


def test_short_conversation_is_not_compressed():
    """Below the trigger the conversation is unchanged."""
    history = conversation()
    assert SemanticCompression(trigger=100_000)(history) == history


def test_sentence_similar_to_the_question_is_kept():
    """The fact is shown within the smaller budget, and the last messages are complete."""
    history = conversation()
    kept = SemanticCompression(trigger=100, max_tokens=40, recent=3)(history)
    text = " ".join(each.text for each in kept[:-3])
    assert "4711-X" in text
    assert LEFT_OUT in text
    assert kept[-3:] == history[-3:]
    size = sum(count_characters(each.parts) for each in history)
    assert sum(count_characters(each.parts) for each in kept[:-3]) < size / 10


def test_kept_sentence_depends_on_the_question():
    history = [*conversation()[:-1], *said("Who is the harbour master?")]
    strategy = SemanticCompression(trigger=100, max_tokens=12, recent=1)
    text = " ".join(each.text for each in strategy(history)[:-1])
    assert "Oyelaran" in text
    assert "4711-X" not in text


def test_compression_keeps_order_and_bound():
    """Sentences keep their order, empty messages are omitted, and the input is unchanged."""
    history = conversation()
    before = [each.text for each in history]
    kept = SemanticCompression(trigger=100, max_tokens=60, recent=2)(history)
    places = [next(n for n, each in enumerate(history) if each.id == one.id) for one in kept]
    assert places == sorted(places)
    assert sum(len(each.text) for each in kept[:-2]) <= 60 * 4
    assert [each.text for each in history] == before


def test_calls_and_results_are_left_to_the_view():
    """Compression keeps call and result messages unchanged."""
    call = Message(session_id="s", sender=AGENT, parts=(ToolCall("look", {}, "1"),))
    result = Message(
        session_id="s", sender=TOOLS, parts=(ToolResult(call_id="1", tool_name="look", content="seen"),)
    )
    kept = SemanticCompression(trigger=1, max_tokens=5, recent=1)([*said(FILLER), call, result, *said("Hm?")])
    assert call in kept
    assert result in kept


@pytest.mark.parametrize("memory", [SemanticCompression(trigger=200, max_tokens=60, recent=2), None])
async def test_compression_shows_an_old_fact_in_a_short_prompt(memory):
    """With the strategy the prompt is short and has the fact. Without it the prompt grows."""
    sizes, last = [], []

    def answer(chat):
        last[:] = [part.text for message in chat.messages for part in message.parts]
        sizes.append(sum(map(len, last)))
        return "Good."

    async with BareAgent("a", llm=ScriptedLLM(answer), memory=memory) as agent:
        session = await agent.create_session("ada")
        await agent.run(FILLER + "My invoice is 4711-X. " + FILLER, session=session)
        for _ in range(20):
            await agent.run(FILLER * 2, session=session)
        await agent.run("What is the number of my invoice?", session=session)
    assert any("4711-X" in text for text in last)
    assert (sizes[-1] < 1500) is (memory is not None)


async def test_summary_and_recall_replace_hidden_messages():
    """A model-written summary and a recalled memory similar to the question replace the hidden messages."""

    async def summary(messages):
        return "They talked about this and that."

    shown = []

    def answer(chat):
        shown.append("\n".join(part.text for message in chat.messages for part in message.parts))
        return "Good."

    memories = LongTermMemory("memory:")
    async with BareAgent(
        "a",
        llm=ScriptedLLM(answer),
        memory=SummarizingMemory(llm=summary, keep=2, trigger=200),
        long_term_memory=memories,
        recall_before_answer=True,
    ) as agent:
        session = await agent.create_session("ada")
        await memories.remember("The invoice number is 4711-X.", owner="ada")
        for _ in range(8):
            await agent.run(FILLER * 3, session=session)
            await trio.testing.wait_all_tasks_blocked()
        await agent.run("What is the number of my invoice?", session=session)
    assert "They talked about this and that." in shown[-1]
    assert "4711-X" in shown[-1]
    assert len(shown[-1]) < len(FILLER) * 3 * 8 / 2
