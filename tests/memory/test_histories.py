"""Random conversations, cut at any record and continued with any memory and window.

Every request must be valid for the providers.
"""

import contextlib
import json
import os
import random
import re
from collections import Counter

import attrs

from actgent import (
    BareAgent,
    ContextOverflow,
    ModelResponse,
    RelevanceFilter,
    ScriptedLLM,
    SlidingWindow,
    SummarizingMemory,
    Text,
    TimeDecay,
    ToolCall,
    Usage,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import SessionCreatedRecord
from actgent.journal.session_export_and_fork import read_sessions, write_sessions
from actgent.llm.clients.anthropic import Anthropic
from actgent.llm.clients.openai import OpenAI
from actgent.llm.clients.openai_responses import OpenAIResponses
from actgent.llm.http.wire_encoding import to_json
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import Image, Thinking
from actgent.testing import check_transcript
from actgent.testing.provider_apis import PROVIDER_APIS
from actgent.toolsets.builtin import read_result

SOAK = bool(os.environ.get("ACTGENT_SOAK"))
CONVERSATIONS, CUTS = (500, 20) if SOAK else (10, 8)
WINDOWS = (6_000, 16_000, 64_000)
ANSWER = 1_000
MILLION = 1_000_000
_TOKEN = re.compile(r"[A-Za-z]{1,6}|\d{1,3}|[^\sA-Za-z\d]")
SENDING = [kind("m", api_key="k") for kind in (OpenAI, OpenAIResponses, Anthropic)]
"""Clients that encode requests for their providers; no request is sent."""


def tokens(text):
    """Return a provider's count: words, groups of digits and signs, and at least one in five characters."""
    if len(text) > MILLION // 2:  # longer than any window, so an exact count is not needed
        return len(text) // 5
    return max(len(text) // 5, len(_TOKEN.findall(text)) if text.isascii() else len(text))


def size_of(chat):
    """Return the tokens of a request, with some hidden ones."""
    found = 60 + tokens(chat.system) + sum(tokens(str(each)) // 2 for each in chat.tools)
    for message in chat.messages:
        found += 4
        for part in message.parts:
            if isinstance(part, Image):
                found += 1_400
            elif not isinstance(part, Thinking):
                found += tokens(getattr(part, "text", "") or str(getattr(part, "arguments", "")))
    return found


PROSE = "the weather is going to be fine in most parts of the country "
NUMBERS = "".join(f"{n * 7919 % 1_000_003},{n * 104_729 % 9_999_991}\n" for n in range(5_000))
CHINESE = "今天天气很好，我们去公园散步。"


def text(rng, size):
    kind = rng.choice((PROSE, PROSE, PROSE, NUMBERS, CHINESE))
    return (kind * (size // len(kind) + 1))[:size]


@tool
def look(number: int) -> str:
    """Look something up."""
    rng = random.Random(number)
    return text(rng, rng.choice((0, 10, 600, 600, 5_000, 5_000, 40_000, MILLION)))


def said(rng):
    """Return one model answer: text, calls, empty, or truncated within a call."""
    kind = rng.choice(("words", "words", "calls", "calls", "empty", "cut", "thought"))
    calls = tuple(ToolCall("look", {"number": rng.randrange(10**6)}) for _ in range(rng.randrange(1, 4)))
    thought = Thinking(
        "Let me see.", rng.choice(("anthropic", "openai")), {"type": "thinking", "signature": "s"}
    )
    if kind == "empty":
        return ModelResponse(parts=())
    if kind == "cut":
        return ModelResponse(parts=(Text("I was"), *calls), stop="length")
    if kind == "thought":
        return ModelResponse(parts=(thought, *calls), stop="tool_calls")
    if kind == "calls":
        return ModelResponse(parts=calls, stop="tool_calls")
    return ModelResponse(parts=(Text(text(rng, rng.choice((1, 80, 2_000, 9_000)))),))


def asked(rng):
    parts = [Text(text(rng, rng.choice((1, 60, 60, 900, 7_000))))]
    return [*parts, Image(media_type="image/png", data=b"x" * 99)] if rng.random() < 0.2 else parts


async def conversation(rng):
    """Return the records of some turns of an agent whose tools sometimes fail."""
    journal = MemoryJournal()
    llm = ScriptedLLM(lambda _: said(rng))
    async with journal.running(), open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=llm, tools=[look, read_result]))
        session = await agent.create_session("ada", session_id="s")
        for _ in range(rng.randrange(1, 6)):
            await session.chat(asked(rng))
            await session.wait_idle()
        (found,) = await read_sessions(journal, session_id="s")
    return found


def memory(rng):
    """Return a random memory with random bounds."""
    few = rng.randrange(1, 5)
    return rng.choice(
        (
            None,
            ShortTermMemory(max_tokens=rng.choice((2_000, 50_000))),
            SlidingWindow(turns=few),
            SlidingWindow(tokens=few * 2_000),
            SummarizingMemory(keep=few, trigger=500, llm=ScriptedLLM(["They talked."], repeat=True)),
            TimeDecay(half_life=60),
            RelevanceFilter(recent=few),
            lambda history: history[-few:],
            lambda history: history[::2],
        )
    )


async def go_on(rng, whole, records, seen, refused):
    """Open the session from its first records and send more messages."""
    window = rng.choice(WINDOWS)
    tells = rng.random() < 0.7

    def answer(chat):
        seen["requests"] += 1
        size = size_of(chat)
        refused.extend(check_transcript(chat.messages))
        for model in SENDING:
            body = json.loads(to_json({"model": "m", **model.encode(chat)}))
            refused.extend(PROVIDER_APIS[model.dialect].check_request(body))
        seen["too long"] += size > window - ANSWER
        calls = seen["requests"] % 3 == 0 and (ToolCall("look", {"number": rng.randrange(10**6)}),)
        parts = calls or (Text("Yes."),)
        usage = Usage(input_tokens=size, output_tokens=20) if tells else Usage()
        return ModelResponse(parts=parts, stop="tool_calls" if calls else "end", usage=usage)

    journal = MemoryJournal()
    async with journal.running():
        await journal.acquire()
        await write_sessions(journal, [attrs.evolve(whole, records=records)])
        llm = ScriptedLLM(answer, context_window=window, keep=0)
        async with open_runtime(journal=journal) as runtime:
            agent = BareAgent("a", llm=llm, memory=memory(rng), max_tokens=ANSWER, tools=[look, read_result])
            await runtime.start(agent)
            session = await agent.open_session("s")
            await session.wait_idle()
            for _ in range(2):
                with contextlib.suppress(ContextOverflow):
                    await agent.run(asked(rng), session=session)
            seen["histories"] += 1


async def test_any_cut_history_gives_valid_requests():
    """All three APIs accept the requests, within the window.

    The histories have missing results, results of 1 MB, empty and truncated answers, and images.
    """
    seen, refused = Counter(), []
    for seed in range(CONVERSATIONS):
        rng = random.Random(seed)
        whole = await conversation(rng)
        opened = sum(isinstance(record, SessionCreatedRecord) for record in whole.records)
        for _ in range(CUTS):
            end = rng.randrange(opened, len(whole.records) + 1)
            await go_on(rng, whole, whole.records[:end], seen, refused)
    assert seen["histories"] == CONVERSATIONS * CUTS
    assert seen["requests"] > seen["histories"]
    assert refused == []
    assert seen["too long"] == 0
