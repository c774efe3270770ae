"""Each method of a `RemoteSession`, with an owner that is killed after the effect is in the journal.

The owner is killed before the client receives the response, or just after it.
"""

import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent import Approve, ServerUnreachable, SessionNotFound, Suspended
from actgent.cluster.cluster_member import DEFAULT_PARTITIONS
from actgent.journal.postgres.session_partitioning import partition_of_slot, slot_of

from .conversations import PATIENCE


def said(history, kind):
    return [each.text for each in history if each.sender.kind == kind]


async def suspended(clerk, session):
    with pytest.raises(Suspended) as waits:
        await clerk.run("deploy mars", session=session)
    return waits.value.ids[0]


async def settled(session):
    await session.wait_idle()
    return await session.history()


async def chat(clerk, session, client):
    await session.chat("hello")
    assert said(await settled(session), "user") == ["hello"]
    assert said(await settled(session), "assistant") == ["you said: hello"]


async def interrupt(clerk, session, client):
    await session.chat("slowly one", message_id="m1")
    await session.chat("slowly two", message_id="m2")
    while (await session.fetch()).get("turn") is None:  # noqa: ASYNC110 - no event signals this state
        await trio.sleep(0.01)
    try:
        await session.interrupt()
    except ServerUnreachable:  # the gateway was the owner, and a request without an id is not sent again
        await session.interrupt(message_id="m1")
    assert said(await settled(session), "assistant") == ["you said: slowly two"]


async def interrupt_unknown(clerk, session, client):
    await session.interrupt(message_id="m1")
    await session.chat("late", message_id="m1")
    assert said(await settled(session), "assistant") == []


async def schedule(clerk, session, client):
    made = await session.schedule("later", after=3600)
    assert [each.id for each in await session.schedules()] == [made.id]


async def unschedule(clerk, session, client):
    made = await session.schedule("later", after=3600)
    assert await session.unschedule(made.id)
    assert await session.schedules() == ()


async def delegate(clerk, session, client):
    await session.delegate("digger", "dig")
    while not said(await session.history(), "agent"):  # noqa: ASYNC110 - as above
        await trio.sleep(0.05)
    assert len(said(await settled(session), "agent")) == 1


async def cancel_task(clerk, session, client):
    await session.delegate("digger", "slowly " * 99, task_id="t1")
    assert await session.cancel_task("t1")
    assert not await session.cancel_task("t1")


async def answer(clerk, session, client):
    approval_id = await suspended(clerk, session)
    await session.answer(approval_id, Approve(), by="bo")
    assert said(await settled(session), "assistant")[-1].startswith(
        "done: "
    )  # or the outcome of the call is unknown


async def set_mode(clerk, session, client):
    assert await session.set_mode("plan") == "plan"
    assert await session.mode() == "plan"


async def aclose(clerk, session, client):
    await session.aclose()
    assert await session.status() == "closed"


async def delete_session(clerk, session, client):
    await client.delete_session(session.id, agent="clerk")
    with pytest.raises(SessionNotFound):
        await session.status()


async def fork(clerk, session, client):
    await session.chat("hello")
    before = await settled(session)
    made = await client.fork(session.id, agent="clerk", new_id=id_in_same_partition(session.id))
    copy = await (await clerk.open_session(made.session_id)).history()
    assert [each.text for each in copy] == [each.text for each in before]


def id_in_same_partition(session_id):
    """Return an id of the same partition."""
    ids = (f"{session_id}-{number}" for number in range(10_000))
    return next(each for each in ids if partition_of(each) == partition_of(session_id))


def partition_of(session_id):
    return partition_of_slot(slot_of(session_id), DEFAULT_PARTITIONS)


async def create(clerk, session, client):
    assert (await clerk.run("hello", session=session)).text == "you said: hello"


CASES = {
    chat: 2,
    interrupt: 4,
    interrupt_unknown: 2,
    schedule: 2,
    unschedule: 3,
    delegate: 2,
    cancel_task: 3,
    answer: 3,
    set_mode: 2,
    aclose: 2,
    delete_session: 2,
    fork: 3,
    create: 1,
}
"""By scenario, the number of the request with an effect whose owner dies.

The first request creates the session.
"""
BEHIND = [chat, interrupt, schedule, answer, aclose, fork]
"""Scenarios whose client has the response before the node dies."""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_call_has_its_effect_once_if_its_owner_is_killed(nodes, when):
    """The gateway or the client sends the request again.

    The next owner gives the same response as the first one.
    """
    names = iter(f"n{number}" for number in range(100))
    with trio.fail_after(4 * PATIENCE):
        for _ in range(2):
            await nodes.start(next(names))
        async with nodes.cluster.connect(retry_timeout=PATIENCE) as client:
            clerk = client.agent("clerk")
            for case in CASES if when == "before" else BEHIND:
                deaths = dead(nodes)
                session_id = f"{when}-{CASES[case]}-{case.__name__}"
                session = await clerk.create_session("ada", session_id=session_id)
                await case(clerk, session, client)
                with trio.move_on_after(PATIENCE / 4):
                    while dead(nodes) == deaths:  # noqa: ASYNC110 - another process changes this state
                        await trio.sleep(0.01)
                assert dead(nodes) == deaths + 1, case.__name__
                await nodes.start(next(names))


def dead(nodes):
    return sum(life.poll() is not None for life in nodes.running.values())
