"""BACKGROUND: latency of messages while other sessions are summarized and consolidated, against latency without that work."""

import time

import trio
from measure import Figures, expect, percentile

from actgent import (
    BareAgent,
    ChatMessage,
    Consolidation,
    LongTermMemory,
    ScriptedLLM,
    Session,
    SummarizingMemory,
    Text,
    open_runtime,
)

LONG = 30
"""Sessions that are summarized and consolidated meanwhile."""
MESSAGES = 300
"""Messages of each session before the measurement, about 12,000 tokens. Each summary and consolidation reads a part."""
SAID = "We have talked about the weather, the trains and what there is for dinner on Sunday. " * 2
PAUSE = 0.002
"""Seconds between two messages."""
IDLE = 0.2


async def measure_beside(size: int) -> Figures:
    """Return milliseconds from a message to its answer, of `size` messages each: `quiet`, `busy`, and the difference at the 99th percentile."""
    memories = LongTermMemory("memory:")
    made: list[str] = []
    clerk = BareAgent(
        "clerk",
        llm=ScriptedLLM(["Noted."], repeat=True, keep=0),
        long_term_memory=memories,
        memory=SummarizingMemory(llm=_writer(made, "They talked."), keep=10, trigger=2_000),
    )
    Consolidation(clerk, memories, llm=_writer(made, '{"memories": [{"text": "They talked"}]}'), idle=IDLE)
    async with memories, open_runtime(journal="memory:") as runtime:
        await runtime.start(clerk)
        probe = await clerk.create_session("ada", session_id="probe")
        quiet = await _latencies(probe, size)
        long = [await _long_session(clerk, number) for number in range(LONG)]
        busy: list[float] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_talk, long)
            while len(made) < 3 * LONG or len(busy) < size:
                busy += await _latencies(probe, size)
    expect(seen=len(made) >= 3 * LONG, wanted=True, what="summaries and readings")
    return {
        "quiet_ms": percentile(quiet, 0.99) * 1e3,
        "busy_ms": percentile(busy, 0.99) * 1e3,
        "added_ms": (percentile(busy, 0.99) - percentile(quiet, 0.99)) * 1e3,
        "median_ms": percentile(busy, 0.5) * 1e3,
    }


def _writer(made: list[str], text: str) -> ScriptedLLM:
    """Return a model that takes some time for each answer."""

    async def write(_chat: object) -> str:
        await trio.sleep(0.1)
        made.append(text)
        return text

    return ScriptedLLM(write, keep=0)


async def _long_session(clerk: BareAgent, number: int) -> Session:
    roles = ("user", "assistant")
    history = [
        ChatMessage(roles[index % 2], (Text(f"{number}/{index} {SAID}"),)) for index in range(MESSAGES)
    ]
    return await clerk.create_session(f"owner{number}", session_id=f"long{number}", history=history)


async def _talk(sessions: list[Session]) -> None:
    """Send a message to each session, after which a summary is due. A consolidation is due half a second later."""
    for session in sessions:
        await session.chat("And now?")
        await session.wait_idle()


async def _latencies(session: Session, count: int) -> list[float]:
    found = []
    for _ in range(count):
        started = time.perf_counter()
        await session.chat("How is the weather?")
        await session.wait_idle()
        found.append(time.perf_counter() - started)
        await trio.sleep(PAUSE)
    return found


async def direct(size: int) -> Figures:
    """The floor: call the model directly, without background work."""
    llm, found = ScriptedLLM(["Noted."], repeat=True, keep=0), []
    from actgent.llm.model_interface import ModelRequest

    for _ in range(size):
        started = time.perf_counter()
        await llm.complete(ModelRequest(messages=(ChatMessage("user", (Text("How is the weather?"),)),)))
        found.append(time.perf_counter() - started)
        await trio.sleep(PAUSE)
    return {
        "quiet_ms": percentile(found, 0.99) * 1e3,
        "busy_ms": percentile(found, 0.99) * 1e3,
        "added_ms": 0.0,
    }
