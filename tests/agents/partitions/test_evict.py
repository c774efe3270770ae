"""Sessions of a lost partition are evicted at any stage of a turn and continue in the new owner, without loss or repetition."""

import pytest
import trio
import trio.testing

from actgent import Reply, SessionMoved

STAGES = (
    "model", "second model", "tool", "result handler", "handler", "token", "guard", "accepting", "said", "child",
)  # fmt: skip
"""Stages at which a turn can block. `accepting` and `said` block a journal write."""


class Waiting:
    """Concurrent calls that wait for a session, and the errors that they raise."""

    def __init__(self, nursery):
        self.nursery = nursery
        self.errors = {}

    def call(self, name, fn, *args, **options):
        async def run():
            try:
                await fn(*args, **options)
            except Exception as error:  # noqa: BLE001 - the test checks the error
                self.errors[name] = error

        self.nursery.start_soon(run)


async def _read(clerk, session, into):
    async with clerk.stream("streamed", session=session, message_id="three") as events:
        async for event in events:
            into.append(event)


async def _finish(runtime, clerk, session_id):
    session = await clerk.open_session(session_id)
    await session.wait_idle()
    await runtime.journal.head("clerk", session_id)
    return session


def in_partition_zero(runtime):
    return lambda session_id: runtime.journal.partition_of(session_id) == 0


@pytest.mark.parametrize("stage", STAGES)
async def test_turn_evicted_at_any_step_resumes_in_another_process(
    open_world, id_in, check_once, until, stage
):
    """Waiting callers receive SessionMoved, and handlers receive nothing. The other process repeats no recorded step."""
    session_id, streamed = id_in(0), []
    async with (
        open_world("one", take=[0], held_at=stage) as (world, one, clerk),
        open_world("two") as (other, two, other_clerk),
        trio.open_nursery() as nursery,
    ):
        session = await clerk.create_session("ada", session_id=session_id)
        waiting = Waiting(nursery)
        waiting.call("run", clerk.run, "go", session=session, message_id="one")
        await world.reached.wait()
        if stage != "accepting":
            await session.chat("more", message_id="two")
            waiting.call("stream", _read, clerk, session, streamed)
            await until(lambda: len(clerk._opener.running.inbox) == 2)
        waiting.call("idle", session.wait_idle)
        await trio.testing.wait_all_tasks_blocked(0.02)
        await two.journal.acquire_partitions([0])
        with trio.fail_after(60):
            stopped = await one.evict(in_partition_zero(one))
        assert stopped == {"accepting": 0, "child": 2}.get(stage, 1)
        world.let_go.set()
        await until(lambda: {"run", "idle"} <= waiting.errors.keys())
        assert {name: type(each) for name, each in waiting.errors.items()} == {
            "run": SessionMoved,
            "idle": SessionMoved,
        }
        _check_left(clerk, session)
        assert not world.failures
        with pytest.raises(SessionMoved):
            await session.chat("too late")
        if stage == "accepting":
            assert await two.resume_acquired() == 0
            await other_clerk.open_session(session_id)
            return
        assert (streamed[-1].kind, type(streamed[-1].error)) == ("moved", SessionMoved)
        before = await two.journal.load(session_id, agent="clerk")
        assert await two.resume_acquired() >= 1
        with trio.fail_after(60):
            await _finish(two, other_clerk, session_id)
        records = await two.journal.load(session_id, agent="clerk")
        assert records[: len(before)] == before
        await check_once(two.journal, session_id, ["go", "more", "streamed"])
        assert not other.failures
        ids = [each.id for each in (*world.seen, *other.seen) if isinstance(each, Reply)]
        assert len(ids) - len({*ids}) <= (stage == "handler")
        assert len({*ids}) == 3
        results = [each.id for each in (*world.seen, *other.seen) if not isinstance(each, Reply)]
        assert len(results) - len({*results}) <= 2 * (stage in ("result handler", "said"))
        assert len(world.paid) + len(other.paid) <= 1 + (stage in ("tool", "child"))


def _check_left(clerk, session):
    """Check that a session is unloaded and raises `SessionMoved`."""
    running = clerk._opener.running
    assert session.id not in running.sessions
    assert "moved" in repr(session)
    with pytest.raises(SessionMoved):
        assert session.status
    assert running.inbox.statistics().sessions == 0
    assert not len(running.timer_service.index)
