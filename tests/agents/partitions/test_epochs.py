"""Agents of a process that owns some partitions: accepted sessions and the epochs of their writes."""

import pytest

from actgent import BareAgent, ConfigurationError, Fenced, Limits, Quotas, ScriptedLLM


def _clerk(*answers):
    return BareAgent("clerk", llm=ScriptedLLM(list(answers)))


async def test_two_processes_serve_the_sessions_of_their_partitions(open_node, id_in):
    """Two processes on one journal each serve the sessions of their own partition."""
    async with open_node("one", take=[0]) as one, open_node("two", take=[1]) as two:
        first, second = await one.start(_clerk("1")), await two.start(_clerk("2"))
        for agent, number in ((first, 0), (second, 1)):
            session = await agent.create_session("ada", session_id=id_in(number))
            assert (await agent.run("hi", session=session)).text == str(number + 1)
        assert len(await one.journal.sessions()) == 2


async def test_the_session_of_another_process_is_fenced_and_leaves_nothing(open_node, id_in):
    """A session of a foreign partition raises `Fenced` and creates no record, so its owner can create it."""
    async with open_node("one", take=[0]) as one, open_node("two", take=[1]) as two:
        first, second = await one.start(_clerk()), await two.start(_clerk("yes"))
        for attempt in (first.create_session, first.ensure_session):
            with pytest.raises(Fenced):
                await attempt("ada", session_id=id_in(1))
        with pytest.raises(Fenced):
            await first.open_session(id_in(1))
        assert not await one.journal.sessions()
        session = await second.create_session("ada", session_id=id_in(1))
        assert (await second.run("hi", session=session)).text == "yes"


async def test_session_with_stale_state_is_fenced(open_node, id_in):
    """A session loaded before its partition left and returned is fenced, because its state may be stale."""
    async with open_node("one", take=[0]) as one, open_node("two") as two:
        agent = await one.start(_clerk("hello"))
        session = await agent.create_session("ada", "hi", session_id=id_in(0))
        await session.wait_idle()
        await two.journal.acquire_partitions([0])
        await one.journal.acquire_partitions([0])
        before = await one.journal.load(session.id)
        with pytest.raises(Fenced):
            await session.chat("again")
        assert await one.journal.load(session.id) == before


async def test_quotas_are_rejected_with_shared_journals(open_node):
    """`quotas=` with a partitioned journal raises an error, because each process would count separately."""
    with pytest.raises(ConfigurationError, match="quotas= cannot be combined with cluster="):
        async with open_node("one", quotas=Quotas(day=Limits(model_calls=3))):
            pass
