"""Retention erases old sessions from journals of every kind."""

import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.runtime.session_erasure import Retention

DAY = 86_400.0


def agent_of():
    return BareAgent("clerk", llm=ScriptedLLM(["yes"], repeat=True))


async def ids_in(journal):
    return {each.session_id for each in await journal.sessions()}


async def test_retention_erases_old_sessions_in_every_storage(lasting_url):
    """Sessions from before the start are erased as well."""
    async with open_runtime(journal=lasting_url) as runtime:
        agent = await runtime.start(agent_of())
        for number in range(30):
            session = await agent.create_session("ada", "hello", session_id=f"s{number}")
            await session.wait_idle()
            if number % 2:
                await session.aclose()
        busy = await agent.create_session("ada", session_id="later")
        await busy.schedule("wake up", after=DAY)
    async with open_runtime(journal=lasting_url, retention=Retention(closed=0, idle=0)) as runtime:
        with trio.fail_after(30):
            while len(await ids_in(runtime.journal)) > 1:  # noqa: ASYNC110 - nothing tells when the journal has less
                await trio.sleep(0.01)
        assert await ids_in(runtime.journal) == {"later"}
        assert await runtime.journal.counts() == {"idle": 1, "working": 0, "suspended": 0, "closed": 0}
