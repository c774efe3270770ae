"""Recovery from a list of unfinished sessions that is outdated when it is processed."""

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.journal.in_memory_journal import MemoryJournal


class Outdated(MemoryJournal):
    """A journal that lists ended and deleted sessions as unfinished."""

    async def _list_unfinished(self, agent):
        return ["deleted", *(head.session_id for head in await self._list_heads(agent))]


async def test_sessions_that_ended_after_the_listing_are_skipped(autojump_clock):
    """An agent that started earlier may have ended a session of this agent; the start continues."""
    async with Outdated().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
            session = await agent.create_session("ada", "hello", session_id="s")
            await session.wait_idle()
            await session.aclose()
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"])))
            assert (await agent.run("hello")).text == "hi"
