"""What is durable when an answer is told."""

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.journal.listing import SessionKey
from actgent.journal.records import Ended


async def steps_of(feed):
    """The kinds of the records of each step, up to the end of a turn."""
    found = []
    with trio.fail_after(30):
        while not found or "Ended" not in found[-1]:
            found.append([type(each).__name__ for each in (await feed.receive()).records])
    return found


async def test_what_nobody_hears_is_written_with_the_end_of_its_turn():
    """Who reads the events of the session hears of it then: one step less for each message of a gateway's clients."""
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"])))
        session = await agent.create_session("ada", session_id="s")
        async with runtime.journal.feed(SessionKey("clerk", "s")) as feed:
            await session.chat("hello")
            *before, last = await steps_of(feed)
    assert {"Said", "Delivered", "Ended"} <= set(last)
    assert "Said" not in [kind for step in before for kind in step]


@pytest.mark.parametrize("how", ["handler", "run"])
async def test_what_somebody_hears_is_durable_before(how):
    """A handler of the session, and who waits for the turn."""
    known = []

    async def hear(reply):
        known.extend(await runtime.journal.load("s", agent="clerk"))

    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"])))
        session = await agent.create_session("ada", session_id="s")
        async with runtime.journal.feed(SessionKey("clerk", "s")) as feed:
            if how == "handler":
                session.on_conversation(hear)
                await session.chat("hello")
            else:
                await agent.run("hello", session=session)
            steps = await steps_of(feed)
    said = next(place for place, step in enumerate(steps) if "Said" in step)
    assert "Ended" not in steps[said]
    if how == "handler":
        assert "Said" in [type(each).__name__ for each in known]
        assert not any(isinstance(each, Ended) for each in known)
