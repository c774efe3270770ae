"""Two nodes of one cluster. Each node accepts requests for all sessions."""

from functools import partial

import pytest
import trio

from actgent import (
    Approve,
    ConfigurationError,
    InboxFull,
    Limits,
    RemoteSession,
    Session,
    SessionExists,
    SessionNotFound,
    Suspended,
    UsageError,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.runtime.sessions.answer_ratings import read_ratings

from .pairs import PATIENCE, Echo, drain, make_clerk


async def test_approvals_of_all_nodes_are_listed_by_each(pair):
    """A runtime and any gateway list the approvals of all nodes.

    A decision reaches the session at its owner.
    """
    with trio.fail_after(PATIENCE):
        async with pair.cluster.connect() as client:
            clerk, ids = client.agent("clerk"), [pair.id_at(pair.one), pair.id_at(pair.two)]
            for session_id in ids:
                session = await clerk.create_session("ada", session_id=session_id)
                with pytest.raises(Suspended):
                    await clerk.run("deploy mars", session=session)
            for runtime in (pair.one, pair.two):
                found = await runtime.approvals()
                assert sorted(each.session_id for each in found) == sorted(ids)
            for _ in range(4):  # the nodes take such requests in turns
                found = await client.approvals()
                assert sorted(each.session_id for each in found) == sorted(ids)
            for approval in found:
                assert (await clerk.resume({approval.id: Approve()})).text == "done: deployed to mars"
            assert await pair.one.approvals() == await pair.two.approvals() == ()


async def test_client_retries_a_full_inbox_until_its_timeout(open_cluster):
    """A client without a retry timeout gets the error that the inbox is full.

    With a retry timeout, its message is sent when the inbox has room.
    """
    model = Echo()
    agent = make_clerk(model, session_inbox_capacity=1)
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(agent),
            cluster.connect(retry_timeout=PATIENCE) as client,
            cluster.connect(retry_timeout=5) as hasty,
            trio.open_nursery() as nursery,
        ):
            session = await client.agent("clerk").create_session("ada")
            await session.chat("hold", message_id="m0")
            while not model.asked:  # noqa: ASYNC110 - only a counter of the model changes
                await trio.sleep(0.01)
            for number in range(1, 40):
                chat = partial(session.chat, f"m{number}", message_id=f"m{number}", enqueue_timeout=60)
                nursery.start_soon(chat)
            known = await hasty.agent("clerk").open_session(session.id)
            with pytest.raises(InboxFull):
                await send_until_rejected(known)
            model.may_go.set()
            while (await session.messages()).total < 80:
                await session.wait_idle()
            texts = [each.text for each in await session.history() if each.sender.kind == "user"]
            assert sorted(set(texts) - {"too much"}) == sorted(
                ["hold", *(f"m{number}" for number in range(1, 40))]
            )


async def send_until_rejected(session):
    while True:
        await session.chat("too much", enqueue_timeout=0)


async def test_node_can_use_sessions_of_other_nodes(pair):
    """The local agent creates, opens and finds sessions of the other node as `RemoteSession` objects."""
    one, two = pair.agents
    session_id = pair.id_at(pair.two)
    with trio.fail_after(PATIENCE):
        here = await one.create_session("ada")
        assert isinstance(here, Session)
        assert pair.one.journal.owns(here.id)
        session = await one.create_session("ada", "first", session_id=session_id)
        assert isinstance(session, RemoteSession)
        received = []
        session.on_conversation(lambda reply: received.append(reply.text))
        await session.chat("second")
        await session.wait_idle()
        assert received == ["you said: first", "you said: second"]
        for found in (
            await one.open_session(session_id, owner="ada"),
            await one.ensure_session("ada", session_id),
        ):
            assert (await one.run("third", session=found)).text == "you said: third"
        async with one.stream("fourth", session=session) as deliveries:
            assert [each.text async for each in deliveries][-1] == "you said: fourth"
        await one.receive((await two.open_session(session_id)).create_message("fifth", message_id="m5"))
        await session.wait_idle()
        assert [each.text for each in await session.history() if each.sender.kind == "user"] == [
            "first",
            "second",
            "third",
            "third",
            "fourth",
            "fifth",
        ]
        with pytest.raises(Suspended) as waits:
            await one.run("deploy mars", session=session)
        assert (await one.resume({waits.value.ids[0]: Approve()}, by="bo")).text == "done: deployed to mars"
        with pytest.raises(ConfigurationError, match="limits: this cannot be sent"):
            await one.run("x", session=session, limits=Limits(tokens=9))
        await check_rejected_options(one, pair.id_at(pair.two), session)
        await session.aclose()
        assert pair.models[0].asked == []


async def check_rejected_options(agent, session_id, there):
    """Options that cannot be sent are rejected by name before anything is created.

    Empty options are accepted.
    """
    raw = {"deps": {"a": 1}, "history": [{"role": "user", "content": "x"}], "prompt": "x"}
    for name, value in raw.items():
        with pytest.raises(ConfigurationError, match=f"{name}: this cannot be sent to the node"):
            await agent.create_session("ada", session_id=session_id, **{name: value})
    for name in ("deps", "history"):
        with pytest.raises(ConfigurationError, match=f"{name}: this cannot be sent to the node"):
            await agent.ensure_session("ada", session_id, **{name: raw[name]})
    with pytest.raises(ConfigurationError, match="deps: this cannot be sent to the node"):
        await agent.open_session(there.id, deps={"a": 1})
    with pytest.raises(ConfigurationError, match="deps: this cannot be sent to the node"):
        await agent.run("x", session=there, deps={"a": 1})
    with pytest.raises(SessionNotFound):
        await agent.open_session(session_id)
    made = await agent.create_session("ada", session_id=session_id, history=[], deps=None, parent=None)
    assert isinstance(made, RemoteSession)


async def test_session_of_another_node_can_be_annotated(pair):
    """The session is annotated through its session object, through the runtime, and after it was closed."""
    one, two = pair.agents
    with trio.fail_after(PATIENCE):
        made = await one.create_session(
            "ada", session_id=pair.id_at(pair.two), tags=["a"], metadata={"k": "1"}
        )
        assert isinstance(made, RemoteSession)
        await made.annotate(add_tags=["b"], metadata={"k": None, "l": "2"})
        await pair.one.annotate(made.id, add_tags=["c"])
        there = await two.open_session(made.id)
        assert isinstance(there, Session)
        assert (there.tags, dict(there.metadata)) == (("a", "b", "c"), {"l": "2"})
        await there.aclose()
        await pair.one.annotate(made.id, agent="clerk", remove_tags=["a"])
        for runtime in (pair.one, pair.two):
            (found,) = await runtime.sessions(tags=["b", "c"], metadata={"l": "2"})
            assert (found.session_id, found.tags) == (made.id, ("b", "c"))


async def test_session_of_another_node_can_be_rated_and_forked(pair):
    """The runtime handles both like those of a local session.

    The annotation is stored at the owner, and the copy at the owner of its id.
    """
    one, two = pair.agents
    new_ids = {
        each: pair.id_at(runtime) for each, runtime in zip(("one", "two"), (pair.one, pair.two), strict=True)
    }
    with trio.fail_after(PATIENCE):
        session = await two.create_session("ada")
        await two.run("hello", session=session, message_id="m1")
        for score, is_new in ((0.5, True), (0.5, False), (1, True)):
            rated = await pair.one.rate(session.id, "m1", score=score, comment="so", expected="hi", by="bo")
            assert rated is is_new
        (rated,) = (await read_ratings(pair.two.journal, SessionKey("clerk", session.id), "m1")).values()
        assert (rated.score, rated.comment, rated.expected, rated.by) == (1, "so", "hi", "bo")
        with pytest.raises(UsageError, match="no answered message 'm2'"):
            await pair.one.rate(session.id, "m2", score=1, by="bo")

        for new_id in new_ids.values():
            made = await pair.one.fork(session.id, new_id=new_id)
            assert (made.session_id, made.owner, made.agent) == (new_id, "ada", "clerk")
            with pytest.raises(SessionExists):
                await pair.one.fork(session.id, new_id=new_id)
            copy = await one.open_session(new_id)
            assert (await one.run("again", session=copy)).text == "you said: again"
        with pytest.raises(ConfigurationError, match="has no record 99"):
            await pair.one.fork(session.id, to=99, new_id=pair.id_at(pair.two))
        assert isinstance(await two.open_session(new_ids["two"]), Session)


async def test_concurrent_creations_at_two_nodes_create_one_session(pair):
    """One node creates the session. The other node gets the error that the session exists."""
    made, refused = [], []

    async def make(agent, session_id):
        try:
            made.append(await agent.create_session("ada", session_id=session_id))
        except SessionExists as error:
            refused.append(error)

    with trio.fail_after(PATIENCE):
        for runtime in (pair.one, pair.two) * 3:
            session_id = pair.id_at(runtime)
            async with trio.open_nursery() as nursery:
                for agent in pair.agents:
                    nursery.start_soon(make, agent, session_id)
            assert len(made) == len(refused)
            found = [await agent.ensure_session("ada", session_id) for agent in pair.agents]
            assert {each.id for each in found} == {session_id}


async def test_session_object_works_after_a_move(pair, monkeypatch):
    """Waiting calls, messages and interrupts reach the new owner."""
    monkeypatch.setattr("actgent.cluster.cluster_node.LEAVE_GRACE_SECONDS", 0.2)
    one, _ = pair.agents
    with trio.fail_after(PATIENCE):
        session, other = await one.create_session("ada"), await one.create_session("ada")
        replies = []

        async def run(words):
            replies.append((await one.run(words, session=session)).text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "hold on")
            while not pair.models[0].asked:  # noqa: ASYNC110 - only a counter of the model changes
                await trio.sleep(0.01)
            await other.chat("before", message_id="b")
            await drain(pair.cluster, pair.one)
            pair.models[1].may_go.set()
            pair.models[0].may_go.set()
        assert replies == ["you said: hold on"]
        await other.chat("before", message_id="b")
        await other.chat("after")
        await other.wait_idle()
        await other.interrupt()
        there = await one.open_session(other.id)
        texts = [each.text for each in await there.history() if each.sender.kind == "user"]
        assert texts == ["before", "after"]
        await other.aclose()
