"""Changes of a session's state that each kind of journal stores as differences."""

import pytest

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.journal.record_types import StateChangeRecord
from actgent.testing import check_transcript

CHANGES = 300
"""More than the differences in a chain, and than the records that are looked through before a page at first."""


def value(number):
    """Return a value of several KB with few changes."""
    return {"filler": {str(n): "x" * 50 for n in range(60)}, "log": [*range(max(0, number - 5), number)]}


async def changed_session(url, numbers):
    """Change the state of a session and return its records."""
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["Noted."], repeat=True)))
        session = await agent.ensure_session("ada", "s")
        for number in numbers:
            session.state.dispatch(("db", value(number)), once=f"change/{number}")
            if number % 50 == 0:
                await agent.run("Note it.", session=session)
        await session._here.log.flush()
        assert session.state["db"] == value(max(numbers))
        return await runtime.journal.load("s", agent="clerk")


def changes_in(records):
    return [record.changes["db"] for record in records if isinstance(record, StateChangeRecord)]


async def test_values_are_restored_after_restarts(lasting_url):
    """The values of all changes are restored in order, also for changes of different processes."""
    await changed_session(lasting_url, range(100))
    records = await changed_session(lasting_url, range(100, CHANGES))
    assert changes_in(records) == [value(number) for number in range(CHANGES)]
    records = await changed_session(lasting_url, range(CHANGES))  # all were made before
    assert len(changes_in(records)) == CHANGES


@pytest.mark.parametrize("place", [1, 7, 150, 255, 256, 257, 299])
async def test_page_may_begin_at_any_difference(url, place):
    """The journal reads back as far as the first full value."""
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        session = await agent.create_session("ada", session_id="s")
        for number in range(CHANGES):
            session.state.dispatch(("db", value(number)))
        await session._here.log.flush()
        records = await runtime.journal.load("s", agent="clerk")
        for limit in (1, 20):
            page = await runtime.journal.read("s", agent="clerk", after=place, limit=limit)
            assert changes_in(page) == changes_in(records)[place - 1 :][: len(page)]
        found = await runtime.rebuild("s", agent="clerk", to=place + 1)
        assert dict(found.state) == {"db": value(place - 1)}


async def test_a_fork_continues_after_a_stored_difference(lasting_url):
    """The fork has the values up to that record, and writes its own."""
    async with open_runtime(journal=lasting_url) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["Noted."], repeat=True)))
        session = await agent.create_session("ada", session_id="s")
        for number in range(20):
            session.state.dispatch(("db", value(number)))
        await session._here.log.flush()
        fork = await runtime.fork("s", agent="clerk", to=11, new_id="fork")
        other = await agent.open_session("fork")
        assert fork is not None
        assert other.state["db"] == value(9)
        other.state.dispatch(("db", value(50)))
        await agent.run("Note it.", session=other)
        assert session.state["db"] == value(19)
    async with open_runtime(journal=lasting_url) as runtime:
        llm = ScriptedLLM(["Noted."], repeat=True)
        agent = await runtime.start(BareAgent("clerk", llm=llm))
        for session_id, number in (("s", 19), ("fork", 50)):
            session = await agent.open_session(session_id)
            assert session.state["db"] == value(number)
            await agent.run("And then?", session=session)
        assert [check_transcript(chat) for chat in llm.chats] == [[], []]
