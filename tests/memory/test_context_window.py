"""Requests and context windows: history is cut to fit, or the request is rejected before it is sent."""

import contextlib
import itertools

import pytest
import trio
from hypothesis import given, settings, strategies as st

from actgent import (
    BadRequest,
    BareAgent,
    ConfigurationError,
    ContextOverflow,
    FallbackModel,
    ModelResponse,
    OpenAI,
    ScriptedLLM,
    SlidingWindow,
    Text,
    ToolCall,
    Usage,
    tool,
)
from actgent.llm.context_overflow_errors import is_too_long
from actgent.llm.context_window import count_answered, expected_tokens
from actgent.llm.http.base_provider_client import window_of
from actgent.testing import check_transcript, open_provider
from actgent.testing.provider import ErrorStatus
from actgent.toolsets.builtin import read_result

WINDOW = 4_000


def truth(chat):
    """Return a provider's own count: fewer characters a token than our estimate, plus hidden tokens."""
    said = sum(
        len(getattr(part, "text", "") or str(getattr(part, "arguments", "")))
        for each in chat.messages
        for part in each.parts
    )
    return int(120 + (len(chat.system) + len(str(chat.tools))) / 4.3 + said / 3.7 + 5 * len(chat.messages))


def counting(answers, *, window=WINDOW, wrong=None):
    """Return a model that reports its count and rejects requests longer than its window."""
    left = iter(answers)

    def answer(chat):
        assert check_transcript(chat.messages) == []
        size = truth(chat)
        if size > window - 500:
            (wrong if wrong is not None else []).append(size)
            raise BadRequest(
                "This model's maximum context length is exceeded", model="m", code="context_length_exceeded"
            )
        parts = next(left, (Text("Yes."),))
        said = sum(len(getattr(part, "text", "")) for part in parts)
        stop = "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "end"
        return ModelResponse(
            parts=parts, stop=stop, usage=Usage(input_tokens=size, output_tokens=said // 4 + 5)
        )

    return ScriptedLLM(answer, context_window=window)


@tool
def look(size: int) -> str:
    """Find so much."""
    return "what was found " * (size // 15)


steps = st.lists(
    st.tuples(st.integers(1, 14_000), st.sampled_from([None, None, 10, 5_000, 30_000])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40)
@given(steps=steps, memory=st.sampled_from([None, SlidingWindow(turns=4), lambda history: history]))
def test_no_request_exceeds_the_context_window(steps, memory):
    """For questions and results of any length, no request exceeds the provider's limit."""
    wrong = []
    answers = [
        parts
        for number, (_, size) in enumerate(steps)
        for parts in ([] if size is None else [(ToolCall("look", {"size": size + number}, f"c{number}"),)])
    ]
    trio.run(converse, steps, answers, memory, wrong)
    assert wrong == []


async def converse(steps, answers, memory, wrong):
    llm = counting(answers, wrong=wrong)
    async with BareAgent("a", llm=llm, max_tokens=500, tools=[look, read_result], memory=memory) as agent:
        session = await agent.create_session("ada")
        for size, _ in steps:
            with contextlib.suppress(ContextOverflow):
                await agent.run(("words of a question " * (size // 20 + 1))[:size], session=session)


async def test_cuts_drop_the_older_half_and_are_rare():
    """A conversation much longer than the window continues with few cuts."""
    llm = counting([])
    async with BareAgent("a", llm=llm, max_tokens=500) as agent:
        session = await agent.create_session("ada")
        for number in range(100):
            await agent.run(f"question {number} ".ljust(600, "."), session=session)
        assert len(session.history) == 200
    shown = [tuple(chat.messages) for chat in llm.chats]
    moved = sum(after[: len(before)] != before for before, after in itertools.pairwise(shown))
    assert 3 <= moved <= 20


async def test_a_result_longer_than_the_window_is_shortened():
    """The session continues, and the model reads the rest with `read_result`."""
    reads = (ToolCall("read_result", {"id": "c0", "start": 29_000, "length": 500}, "c1"),)
    llm = counting([(ToolCall("look", {"size": 30_000}, "c0"),), reads])
    async with BareAgent("a", llm=llm, max_tokens=500, tools=[look, read_result]) as agent:
        session = await agent.create_session("ada")
        assert (await agent.run("Look!", session=session)).text == "Yes."
        first, second = (chat.messages[-1].parts[0].content for chat in list(llm.chats)[1:])
        assert 'read_result with id "c0"' in first
        assert len(first) <= 10_000
        assert second.startswith("[characters 29000 to 29500 of 30000]")
        assert max(len(part.content) for each in session.history for part in each.tool_results) == 30_000


async def test_a_system_prompt_that_fills_the_window_is_an_error():
    """The error names the system prompt, and no request is sent."""
    llm = counting([])
    async with BareAgent("a", llm=llm, max_tokens=500, system_prompt="rule " * 4_000) as agent:
        with pytest.raises(ContextOverflow, match=r"4,000 tokens.*the system prompt \(5,000\)") as caught:
            await agent.run("Hello")
    assert caught.value.parts[0] == ("the system prompt", 5_000)
    assert caught.value.tokens > caught.value.budget
    assert not llm.chats


async def test_request_rejected_as_too_long_is_cut_once_and_repeated():
    """For an unknown window, the provider's rejection leads to one compaction and one retry, over HTTP."""
    answers = [
        "One.",
        "Two.",
        ErrorStatus(400, code="context_length_exceeded", message="too many tokens"),
        "Three.",
    ]
    async with open_provider(answers) as provider:
        llm = OpenAI("m", base_url=provider.base_url, api_key="k")
        assert llm.context_window is None
        async with BareAgent("a", llm=llm) as agent:
            session = await agent.create_session("ada")
            texts = [
                (await agent.run(f"{word} ".ljust(2_000, "."), session=session)).text
                for word in ("1", "2", "3")
            ]
        await llm.aclose()
    assert texts == ["One.", "Two.", "Three."]
    sent = [len(request.chat.messages) for request in provider.requests]
    assert sent[2] > sent[3]


async def test_a_request_that_stays_too_long_is_an_overflow():
    """After one compaction there is no third attempt."""
    requests = []

    def answer(chat):
        requests.append(len(chat.messages))
        if len(requests) > 3:
            raise BadRequest("prompt is too long: 210000 tokens > 200000 maximum", model="m")
        return "Yes."

    async with BareAgent("a", llm=ScriptedLLM(answer, context_window=100_000)) as agent:
        session = await agent.create_session("ada")
        for number in range(3):
            await agent.run(f"{number} ".ljust(900, "."), session=session)
        with pytest.raises(ContextOverflow, match="finds the request too long"):
            await agent.run("4 ".ljust(900, "."), session=session)
    assert requests[3] == 7
    assert len(requests) == 5
    assert requests[4] < 7


def test_other_provider_errors_are_no_overflow():
    """Only a provider's wordings and codes for length errors count as overflow."""
    assert is_too_long(BadRequest("x", model="m", code="context_length_exceeded"))
    assert is_too_long(BadRequest("x", model="m", status=413))
    assert is_too_long(BadRequest("input length and max_tokens exceed context window: 5 > 4", model="m"))
    assert not is_too_long(BadRequest("temperature is too high", model="m", status=400))
    assert not is_too_long(ValueError("prompt is too long"))


def test_context_windows_come_from_tables_or_options():
    """The providers' own models have known windows. For a local server the user passes the window."""
    assert window_of("gpt-4o", url="https://api.openai.com/v1") == 128_000
    assert window_of("nobody-knows", url="https://api.openai.com/v1") is None
    assert OpenAI("gpt-4o", api_key="k").context_window == 128_000
    local = OpenAI("gpt-4o", api_key="k", base_url="http://127.0.0.1:1", context_window=8_192)
    assert local.context_window == 8_192
    assert FallbackModel(local, OpenAI("gpt-4o", api_key="k")).context_window == 8_192
    with pytest.raises(ConfigurationError, match="context_window"):
        OpenAI("gpt-4o", api_key="k", context_window=0)


@given(sizes=st.lists(st.integers(20, 3_000), min_size=3, max_size=15))
def test_next_request_size_is_estimated_within_a_tenth(sizes):
    """The estimate is the provider's last count plus the new text at the measured rate."""
    trio.run(guess, sizes)


async def guess(sizes):
    llm = counting([], window=1_000_000)
    async with BareAgent("a", llm=llm, max_tokens=500) as agent:
        session = await agent.create_session("ada")
        for size in sizes:
            await agent.run(("some words here " * 200)[:size], session=session)
    before = None
    for chat in llm.chats:
        if before is not None:
            assert expected_tokens(llm, chat, before) == pytest.approx(truth(chat), rel=0.1)
        before = count_answered(
            llm,
            chat,
            ModelResponse(parts=(Text("Yes."),), usage=Usage(input_tokens=truth(chat), output_tokens=6)),
        )
