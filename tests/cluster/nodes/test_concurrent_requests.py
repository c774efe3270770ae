"""Concurrent requests for one session while it moves from one node to the other."""

from functools import partial

import pytest
import trio

from actgent import (
    ApprovalAlreadyDecided,
    ApprovalNotFound,
    Approve,
    NotSuspended,
    Reject,
    SessionClosed,
    SessionNotFound,
    Suspended,
)

from .pairs import PATIENCE, drain

SESSIONS = 24


async def hold_all(pair, client, sessions):
    """Return each session from three places: its node, the other node, and a client."""
    for session in sessions:
        there = await pair.agents[1].open_session(session.id)
        yield session, there, await client.agent("clerk").open_session(session.id)


async def test_one_of_several_decisions_applies_during_a_move(pair):
    """The decision whose sender gets success is executed.

    All other senders get the error that they are too late.
    """
    one, _ = pair.agents
    counted = {}

    async def decide(session, approval_id, decision, pause):
        await trio.sleep(pause)
        try:
            await session.answer(approval_id, decision)
        except (ApprovalAlreadyDecided, NotSuspended, ApprovalNotFound):
            return
        counted.setdefault(approval_id, []).append(decision)

    with trio.fail_after(PATIENCE):
        async with pair.cluster.connect(retry_timeout=PATIENCE) as client:
            sessions = [await one.create_session("ada") for _ in range(SESSIONS)]
            waits = {}
            for session in sessions:
                with pytest.raises(Suspended) as suspended:
                    await one.run("deploy mars", session=session)
                (waits[session.id],) = suspended.value.ids
            parties = [each async for each in hold_all(pair, client, sessions)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain, pair.cluster, pair.one)
                for number, held in enumerate(parties):
                    for index, session in enumerate(held):
                        decision = Reject(f"no {index}") if (number + index) % 2 else Approve()
                        nursery.start_soon(
                            decide, session, waits[session.id], decision, number * 0.01 + index * 0.002
                        )
            assert {len(each) for each in counted.values()} == {1}
            assert len(counted) == SESSIONS
            for _, there, _ in parties:
                await there.wait_idle()
                [decision] = counted[waits[there.id]]
                history = await there.history()
                [results] = [each.tool_results for each in history if each.tool_results]
                if isinstance(decision, Approve):
                    assert [each.content for each in results] == ["deployed to mars"]
                else:
                    assert decision.reason in str(results)


async def test_message_with_a_repeated_id_is_answered_once_during_a_move(pair):
    """Three parties send each message concurrently. The session contains it once and answers it once."""
    one, _ = pair.agents
    with trio.fail_after(PATIENCE):
        async with pair.cluster.connect(retry_timeout=PATIENCE) as client:
            sessions = [await one.create_session("ada") for _ in range(SESSIONS)]
            parties = [each async for each in hold_all(pair, client, sessions)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain, pair.cluster, pair.one)
                for held in parties:
                    for session in held:
                        for number in range(3):
                            say = partial(session.chat, f"text {number}", message_id=f"m{number}")
                            nursery.start_soon(say)
            for _, there, _ in parties:
                await there.wait_idle()
                history = await there.history()
                texts = [each.text for each in history if each.sender.kind == "user"]
                answers = [each.text for each in history if each.sender.kind == "assistant"]
                assert sorted(texts) == ["text 0", "text 1", "text 2"]
                assert answers == [f"you said: {each}" for each in texts]


@pytest.mark.parametrize("ends", ["aclose", "delete"])
async def test_message_accepted_during_a_close_ends(pair, ends):
    """No turn of a session that is closed or deleted during a move continues. Later senders get an error."""
    one, _ = pair.agents
    received = []

    async def say(session, number):
        try:
            await session.chat(f"text {number}", message_id=f"m{number}")
        except (SessionClosed, SessionNotFound) as error:
            received.append(type(error))

    async def end(session):
        if ends == "aclose":
            await session.aclose()
        else:
            await pair.two.delete_session(session.id, agent="clerk")

    with trio.fail_after(PATIENCE):
        async with pair.cluster.connect(retry_timeout=PATIENCE) as client:
            sessions = [await one.create_session("ada") for _ in range(SESSIONS)]
            parties = [each async for each in hold_all(pair, client, sessions)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain, pair.cluster, pair.one)
                for here, there, far in parties:
                    for number, session in enumerate((here, there, far)):
                        nursery.start_soon(say, session, number)
                    nursery.start_soon(end, there)
            for _, there, far in parties:
                if ends == "delete":
                    with pytest.raises(SessionNotFound):
                        await far.status()
                    assert await pair.two.journal.load(far.id, agent="clerk") == ()
                else:
                    assert await far.status() == "closed"
                    head = await pair.two.journal.head("clerk", far.id)
                    assert not head.unfinished
                with pytest.raises((SessionClosed, SessionNotFound)):
                    await there.chat("late")
            assert all(each in (SessionClosed, SessionNotFound) for each in received)
