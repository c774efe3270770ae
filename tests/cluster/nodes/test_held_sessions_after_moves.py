"""A program keeps a `Session` object while the session moves to another node.

Each operation is forwarded, or raises an error.
"""

import math

import pytest
import trio

from actgent import Approve, BareAgent, ConfigurationError, Failure, Modes, Reply, SessionMoved, Suspended

from .pairs import PATIENCE, Echo, deploy, drain, make_clerk, wait_balanced

KNOWN_HERE = (
    "id",
    "agent_name",
    "owner",
    "description",
    "on_busy",
    "is_durable",
    "deps",
    "database",
    "clock",
)
"""Attributes that do not change, or that belong to this process."""
KNOWN_THERE = (
    "approvals",
    "budget",
    "children",
    "handoff_agent",
    "history",
    "mode",
    "mode_changes",
    "schedules",
    "state",
    "status",
    "usage",
)
"""Attributes that change at the node that owns the session now."""
KINDS = ("conversation", "event", "tool_result", "tool_progress", "exception", "routing", "token", "approval")


@pytest.fixture
async def moved(open_cluster):
    """Yield a session whose node has handed over all partitions, its agent, and the deliveries to its handlers.

    Before the move the session received `before` and `deploy mars`, which waits for an approval.
    """
    models = Echo(), Echo()
    received = {"agent's": [], "program's": []}
    agents = [
        (make_clerk(model, modes=Modes(execution=[deploy], initial="act")), BareAgent("digger", llm=model))
        for model in models
    ]

    @agents[0][0].on_session
    def attach(session):
        session.on_exception(received["agent's"].append)
        session.on_conversation(received["agent's"].append)

    async with (
        open_cluster() as cluster,
        cluster.node(*agents[0], node="one") as one,
        cluster.node(*agents[1], node="two") as two,
    ):
        with trio.fail_after(PATIENCE):
            await wait_balanced(one, two)
            clerk = agents[0][0]
            session = await clerk.create_session("ada")
            session.on_exception(received["program's"].append)
            session.on_conversation(received["program's"].append)
            await clerk.run("before", session=session)
            with pytest.raises(Suspended) as waits:
                await clerk.run("deploy mars", session=session)
            await drain(cluster, one)
            yield session, clerk, received, waits.value.ids


async def test_moved_session_forwards_messages(moved):
    """All changing operations except mode switches are forwarded. Operations that cannot be forwarded raise an error with their name."""
    session, clerk, _, (approval_id,) = moved
    with trio.fail_after(PATIENCE):
        await session.answer(approval_id, Approve(), by="bo")
        await session.wait_idle()
        assert await session.delegate("digger", "dig", task_id="t1")
        await session.wait_idle()
        there = await clerk.open_session(session.id)
        while not any("you said: dig" in each.text for each in await there.history()):  # noqa: ASYNC110 - no event signals this state
            await trio.sleep(0.05)
        await session.delegate("digger", "hold", task_id="t2", deadline=math.inf)
        assert await session.cancel_task("t2")
        assert not await session.cancel_task("t2")
        made = await session.schedule("later", after=3600)
        assert await session.unschedule(made.id)
        await session.chat("after")
        await session.wait_idle()
        assert [each.text for each in await there.history() if each.sender.kind == "user"][-1] == "after"
        with pytest.raises(ConfigurationError, match=r"sender: this cannot be sent to the node"):
            await session.chat("x", sender="bo")
        with pytest.raises(ConfigurationError, match=r"priority: this cannot be sent to the node"):
            await session.delegate("digger", "dig", priority="urgent")
        await session.aclose()
        assert await there.status() == "closed"


@pytest.mark.parametrize("is_written", [True, False])
async def test_unschedule_during_a_move_returns_true(open_cluster, monkeypatch, is_written):
    """`unschedule` returns True, whether or not the old node had written the removal.

    If the next owner does not find the schedule, the old node removed it.
    """
    from actgent.agents import session as sessions

    agents = [make_clerk(Echo()) for _ in range(2)]
    async with (
        open_cluster() as cluster,
        cluster.node(agents[0], node="one") as one,
        cluster.node(agents[1], node="two") as two,
    ):
        with trio.fail_after(PATIENCE):
            await wait_balanced(one, two)
            session = await agents[0].create_session("ada")
            made, kept = [await session.schedule(each, after=3600) for each in ("go", "stay")]
            unset = sessions.unset_schedule

            async def leave(context, schedule_id):
                monkeypatch.undo()
                if is_written:
                    await unset(context, schedule_id)
                await drain(cluster, one)
                raise SessionMoved("clerk", session.id)

            monkeypatch.setattr(sessions, "unset_schedule", leave)
            assert await session.unschedule(made.id) is True
            assert await session.unschedule(made.id) is False
            there = await agents[0].open_session(session.id)
            assert [each.id for each in await there.schedules()] == [kept.id]


@pytest.mark.parametrize("is_written", [True, False])
async def test_cancel_task_during_a_move_returns_true(open_cluster, monkeypatch, is_written):
    """`cancel_task` returns True, whether or not its node had written the cancellation when the session moved.

    The task is stopped once, and its session is closed. The session that gave it gets no message about it.
    """
    from actgent.agents import session as sessions

    models = Echo(), Echo()
    agents = [(make_clerk(model), BareAgent("digger", llm=model)) for model in models]
    async with (
        open_cluster() as cluster,
        cluster.node(*agents[0], node="one") as one,
        cluster.node(*agents[1], node="two") as two,
    ):
        with trio.fail_after(PATIENCE):
            await wait_balanced(one, two)
            session = await agents[0][0].create_session("ada")
            await session.delegate("digger", "hold", task_id="t1", deadline=math.inf)
            stop = sessions.stop_tasks

            async def leave(*arguments):
                monkeypatch.undo()
                monkeypatch.setattr("actgent.cluster.cluster_node.LEAVE_GRACE_SECONDS", 0.2)
                if is_written:
                    assert await stop(*arguments)
                await drain(cluster, one)
                raise SessionMoved("clerk", session.id)

            monkeypatch.setattr(sessions, "stop_tasks", leave)
            assert await session.cancel_task("t1") is True
            assert await session.cancel_task("t1") is False
            there = await agents[0][0].open_session(session.id)
            (child,) = await two.journal.children("clerk", session.id)
            assert child.closed
            await session.chat("after")
            await there.wait_idle()
            texts = [each.text for each in await there.history() if each.sender.kind != "assistant"]
            assert texts == ["after"]


async def test_moved_session_does_not_return_stale_data(moved):
    """Unchanging data is returned. Reads of changing data raise an error with the remedy."""
    session, clerk, _, _ = moved
    with trio.fail_after(PATIENCE):
        for name in KNOWN_HERE:
            getattr(session, name)
        assert "moved" in repr(session)
        for name in KNOWN_THERE:
            with pytest.raises(SessionMoved, match=r"call agent\.open_session\(\)"):
                getattr(session, name)
        for kind in KINDS:
            with pytest.raises(SessionMoved):
                getattr(session, f"on_{kind}")(print)
        with pytest.raises(SessionMoved), session.listening(on_conversation=print):
            pass
        for call in (
            session.messages,
            lambda: session.message_trace("m1"),
            lambda: session.set_mode("plan"),
            session.hand_back,
            lambda: session.inject(Reply(text="x")),
        ):
            with pytest.raises(SessionMoved):
                await call()
        for read in (session.follow, session.observe):
            with pytest.raises(SessionMoved):
                read()
        there = await clerk.open_session(session.id, owner="ada")
        assert (await there.status(), await there.mode()) == ("suspended", "act")
        assert {each.type for each in await session.observations()} >= {"TOOL_CALL"}
        assert [each.id for each in await session.observations()] == [
            each.id for each in await there.observations()
        ]


async def test_failure_handlers_are_notified_of_a_move(moved):
    """Handlers of the program are notified once, so that it can attach them again.

    Handlers of the agent are attached by the other node and are not notified.
    """
    session, clerk, received, _ = moved
    with trio.fail_after(PATIENCE):
        while not isinstance(received["program's"][-1], Failure):  # noqa: ASYNC110 - only a counter of the handler changes
            await trio.sleep(0.05)
        reply, failure = received["program's"]
        assert received["agent's"] == [reply]
        assert (failure.kind, type(failure.error), failure.error.session_id) == (
            "moved",
            SessionMoved,
            session.id,
        )
        there, replies = await clerk.open_session(session.id), []
        there.on_conversation(lambda reply: replies.append(reply.text))
        await session.interrupt(drop_queued=True)
        await session.chat("after")
        await there.wait_idle()
        assert replies == ["you said: after"]
        assert len(received["program's"]) == 2


async def test_move_is_logged_without_failure_handlers(open_cluster, caplog):
    """One log record for each session states that the handlers receive no more.

    Handlers of the agent cause no record.
    """
    agents = [make_clerk(Echo()) for _ in range(2)]
    agents[0].on_session(lambda session: session.on_conversation(print))
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(agents[0], node="one") as one,
            cluster.node(agents[1], node="two") as two,
        ):
            await wait_balanced(one, two)
            sessions = [await agents[0].create_session("ada") for _ in range(2)]
            sessions[0].on_conversation(print)
            await drain(cluster, one)
    log_lines = [each.getMessage() for each in caplog.records if "receive no more" in each.getMessage()]
    assert len(log_lines) == 1
    assert sessions[0].id in log_lines[0]


async def test_open_readers_are_notified_of_a_move(open_cluster):
    """A reader resumes after its cursor with the session of the other node."""
    agents = [make_clerk(Echo()) for _ in range(2)]
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(agents[0], node="one") as one,
            cluster.node(agents[1], node="two") as two,
        ):
            await wait_balanced(one, two)
            session, cursors, received = await agents[0].create_session("ada"), {}, []

            async def read(follow, opened):
                async with follow(after=0) as reader:
                    opened.set()
                    try:
                        async for each in reader:
                            received.append(each)  # noqa: PERF401 - another task reads the list meanwhile
                    except SessionMoved as moved:
                        cursors[moved.session_id, follow.__name__] = reader.cursor

            async with trio.open_nursery() as nursery:
                for follow in (session.follow, session.observe):
                    opened = trio.Event()
                    nursery.start_soon(read, follow, opened)
                    await opened.wait()
                await agents[0].run("before", session=session)
                while not any("FINAL_RESPONSE" in str(each) for each in received):  # noqa: ASYNC110 - only a counter of the reader changes
                    await trio.sleep(0.05)
                await drain(cluster, one)
            assert len(cursors) == 2
            there = await agents[0].open_session(session.id)
            async with there.observe(after=cursors[session.id, "observe"]) as reader:
                await session.chat("after")
                first = str(await reader.receive())
            assert "after" in first
            assert "before" not in first


async def test_handlers_of_child_sessions_are_notified_of_a_move(open_cluster, monkeypatch, caplog):
    """The handlers are notified once, like those of the parent.

    Without failure handlers, the move is logged.
    """
    monkeypatch.setattr("actgent.cluster.cluster_node.LEAVE_GRACE_SECONDS", 0.2)
    received, models = [], (Echo(), Echo())
    agents = [(make_clerk(model), BareAgent("digger", llm=model)) for model in models]
    agents[0][1].on_session(lambda session: session.on_exception(lambda _: received.append("agent's")))
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(*agents[0], node="one") as one,
            cluster.node(*agents[1], node="two") as two,
        ):
            await wait_balanced(one, two)
            clerk, digger = agents[0]
            session = await clerk.create_session("ada")
            await session.delegate("digger", "hold", task_id="t1")
            below = await clerk.create_session("ada", parent=session)
            quiet = await digger.create_session("ada", parent=below)
            [task] = [each for each in session.children if each.id != below.id]
            for each in (task, below):
                each.on_exception(received.append)
            quiet.on_conversation(print)
            await drain(cluster, one)
            while len(received) < 2:  # noqa: ASYNC110 - only a counter of the handler changes
                await trio.sleep(0.05)
            models[1].may_go.set()  # otherwise the end of the second node waits 30 s for the task
        assert sorted(each.error.session_id for each in received) == sorted((task.id, below.id))
        assert {each.kind for each in received} == {"moved"}
    log_lines = [each.getMessage() for each in caplog.records if "receive no more" in each.getMessage()]
    assert [quiet.id in each for each in log_lines] == [True]
