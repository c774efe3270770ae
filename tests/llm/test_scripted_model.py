"""The model that returns scripted answers."""

import pytest
import trio
from trio.testing import MockClock

from actgent.errors import ConfigurationError, RateLimited
from actgent.llm.model_interface import ChatMessage, ModelRequest, ModelResponse
from actgent.llm.scripted_model import ScriptedLLM
from actgent.messages import Text, Thinking, ToolCall, Usage

CHAT = ModelRequest(messages=(ChatMessage("user", (Text("Hi"),)),))


async def test_script_entries_of_every_kind_give_answers():
    """Texts, calls, parts, responses and functions of the request give answers, in order."""
    answer = ModelResponse(parts=(Text("whole"),), stop="length", usage=Usage(input_tokens=3))

    async def later(chat):
        await trio.lowlevel.checkpoint()
        return ToolCall("f", {})

    thought = Thinking("hm", "scripted")
    model = ScriptedLLM(
        [
            "text",
            ToolCall("f", {"a": 1}),
            [thought, "b", ToolCall("g", {})],
            answer,
            lambda chat: str(len(chat.messages)),
            later,
        ]
    )
    answers = [await model.complete(CHAT) for _ in range(6)]
    assert [a.stop for a in answers] == ["end", "tool_calls", "tool_calls", "length", "end", "tool_calls"]
    assert [a.text for a in answers] == ["text", "", "b", "whole", "1", ""]
    assert answers[3] is answer
    assert answers[2].parts == (thought, Text("b"), ToolCall("g", {}))


async def test_exceptions_are_raised():
    """Instances and classes are raised. The script continues after them."""
    model = ScriptedLLM([RateLimited("later"), KeyError, "then"])
    with pytest.raises(RateLimited):
        await model.complete(CHAT)
    with pytest.raises(KeyError):
        await model.complete(CHAT)
    assert (await model.complete(CHAT)).text == "then"


async def test_call_after_the_end_of_the_script_raises():
    """One call too many raises an error with the number of answers."""
    model = ScriptedLLM(["one", "two"])
    await model.complete(CHAT)
    await model.complete(CHAT)
    with pytest.raises(ConfigurationError, match=r"2 answers, .*call 3.*repeat=True"):
        await model.complete(CHAT)


async def test_repeating_and_single_functions():
    """`repeat` restarts the script. A single function answers every call."""
    model = ScriptedLLM(["a", "b"], repeat=True)
    assert [(await model.complete(CHAT)).text for _ in range(5)] == list("ababa")
    model = ScriptedLLM(lambda _chat: "f")
    assert [(await model.complete(CHAT)).text for _ in range(3)] == list("fff")


async def test_chats_are_kept_up_to_a_bound():
    """All requests, the last few or none are kept."""
    chats = [ModelRequest(system=str(number)) for number in range(3)]
    for keep, kept in ((None, chats), (2, chats[1:]), (0, [])):
        model = ScriptedLLM(["x"], repeat=True, keep=keep)
        for chat in chats:
            await model.complete(chat)
        assert model.chats == kept


async def test_answers_and_chunks_have_their_delays(autojump_clock: MockClock):
    """The answer is sent after its delay and each piece after its own delay."""
    seen = []

    async def show(text, attempt):
        seen.append((trio.current_time(), text, attempt))

    model = ScriptedLLM(["abcde", ToolCall("f", {})], delay=2, chunk=2, chunk_delay=1)
    await model.complete(CHAT, on_text=show)
    assert seen == [(2, "ab", 0), (3, "cd", 0), (4, "e", 0)]
    await model.complete(CHAT, on_text=show)
    assert len(seen) == 3


async def test_every_call_is_a_checkpoint():
    """A call without a delay still yields to other tasks and can be cancelled."""
    model = ScriptedLLM(["x"], repeat=True)
    with trio.testing.assert_checkpoints():
        await model.complete(CHAT)
    with trio.CancelScope() as scope:
        scope.cancel()
        await model.complete(CHAT)
    assert scope.cancelled_caught


@pytest.mark.parametrize("script", ["text", 7, [7], [["a", 7]]])
def test_invalid_script_is_rejected(script):
    """Cases: a bare text, None, and entries of other types."""
    with pytest.raises(ConfigurationError):
        ScriptedLLM(script)


def test_a_chunk_size_of_0_is_rejected():
    """A chunk has at least one character."""
    with pytest.raises(ConfigurationError, match="chunk="):
        ScriptedLLM(["x"], chunk=0)
