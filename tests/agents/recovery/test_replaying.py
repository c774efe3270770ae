"""Sessions made again from their records."""

import pytest

from actgent import BareAgent, ConfigurationError, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.sessions.restore.session_loader import digest_of, rebuild


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_every_step_can_be_rebuilt():
    """The last step has the digest of the running session. Each step is the same whenever it is rebuilt."""
    script = [ToolCall("add", {"a": 1, "b": 2}), "3", "bye"]
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(script), tools=[add]))
        session = await agent.create_session("ada", "1 + 2?")
        await session.wait_idle()
        session.state.dispatch([("b", [1]), ("a", {"x": None})])
        await session.chat("thanks")
        await session.wait_idle()
        records = await journal.load(session.id)
        rebuilt = await rebuild(records)
        assert rebuilt.digest == digest_of(session.history, session.state)
        assert (rebuilt.history, rebuilt.usage) == (session.history, session.usage)
    texts = []
    for step in range(1, len(records) + 1):
        rebuilt = await rebuild(records, to=step)
        assert rebuilt.digest == (await rebuild(records[:step])).digest
        texts.append("|".join(message.text for message in rebuilt.history))
    assert texts == sorted(texts, key=len)
    assert texts[-1] == "1 + 2?|||3|thanks|bye"
    with pytest.raises(ConfigurationError, match=f"1 to {len(records)}"):
        await rebuild(records, to=len(records) + 1)
    with pytest.raises(ConfigurationError, match="must be the creation of the session"):
        await rebuild(records[1:])
