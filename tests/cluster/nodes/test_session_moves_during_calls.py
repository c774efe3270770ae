"""Each method of a `Session` whose session moves to another node during the call."""

import attrs
import pytest
import trio

from actgent import ActgentError, Approve, BareAgent, RemoteSession, Suspended

from .pairs import PATIENCE, Echo, drain, make_clerk, wait_balanced


@attrs.define(eq=False)
class Gate:
    """Holds the first awaited write of each named session, before or after the write happens."""

    journal: object
    when: str
    held: set = attrs.field(factory=set)
    """Ids of the sessions whose write is held."""
    named: set = attrs.field(factory=set)
    opened: trio.Event = attrs.field(factory=trio.Event)

    def close(self):
        commit = self.journal.commit

        async def hold(entry, **options):
            root = entry.session_id.partition("/")[0]
            if root not in self.named:
                return await commit(entry, **options)
            self.named.discard(root)
            if self.when == "after":
                await commit(entry, **options)
            self.held.add(root)
            await self.opened.wait()
            return None if self.when == "after" else await commit(entry, **options)

        self.journal.commit = hold


async def nothing(clerk, session):
    """Do nothing before the call."""


async def turn(clerk, session):
    await session.chat("hold first", message_id="m1")
    await session.chat("hold second", message_id="m2")


async def scheduled(clerk, session):
    return await session.schedule("known", after=3600, key="k")


async def task(clerk, session):
    await session.delegate("digger", "hold on", task_id="t1")


async def approval(clerk, session):
    with pytest.raises(Suspended) as waits:
        await clerk.run("deploy mars", session=session)
    return waits.value.ids[0]


def said(history, kind):
    return [each.text for each in history if each.sender.kind == kind]


CASES = {}


def case(before):
    """Register a case.

    `before` prepares the session. The case makes the call, and after its `yield` checks the session at the
    new owner.
    """

    def add(call):
        CASES[call.__name__] = (before, call)
        return call

    return add


@case(nothing)
async def chat(clerk, session, _):
    await session.chat("hello")
    there = yield
    assert said(await there.history(), "user") == ["hello"]
    assert said(await there.history(), "assistant") == ["you said: hello"]


@case(nothing)
async def run(clerk, session, _):
    assert (await clerk.run("hello", session=session)).text == "you said: hello"
    there = yield
    assert said(await there.history(), "user") == ["hello"]


@case(nothing)
async def receive(clerk, session, _):
    await clerk.receive(session.create_message("hello"))
    there = yield
    assert said(await there.history(), "assistant") == ["you said: hello"]


@case(turn)
async def interrupt(clerk, session, _):
    await session.interrupt()
    there = yield
    assert said(await there.history(), "assistant") == ["you said: hold second"]


@case(turn)
async def interrupt_all(clerk, session, _):
    await session.interrupt(drop_queued=True)
    there = yield
    assert said(await there.history(), "assistant") == []


@case(turn)
async def interrupt_queued(clerk, session, _):
    await session.interrupt(message_id="m2")
    there = yield
    assert said(await there.history(), "assistant") == ["you said: hold first"]


@case(nothing)
async def interrupt_unknown(clerk, session, _):
    await session.interrupt(message_id="m9")
    there = yield
    await there.chat("late", message_id="m9")
    await there.wait_idle()
    assert said(await there.history(), "assistant") == []


@case(nothing)
async def schedule(clerk, session, _):
    made = await session.schedule("later", after=3600)
    there = yield
    assert [(each.id, each.description) for each in await there.schedules()] == [(made.id, "later")]


@case(scheduled)
async def unschedule(clerk, session, known):
    assert await session.unschedule(known.id)
    there = yield
    assert await there.schedules() == ()


@case(nothing)
async def delegate(clerk, session, _):
    await session.delegate("digger", "dig")
    there = yield
    while not said(await there.history(), "agent"):  # noqa: ASYNC110 - no event signals this state
        await trio.sleep(0.05)
    await there.wait_idle()
    assert len(said(await there.history(), "agent")) == 1


@case(task)
async def cancel_task(clerk, session, _):
    assert await session.cancel_task("t1")
    there = yield
    assert not await there.cancel_task("t1")


@case(approval)
async def answer(clerk, session, known):
    await session.answer(known, Approve())
    there = yield
    await there.wait_idle()
    assert said(await there.history(), "assistant")[-1] == "done: deployed to mars"
    assert len([each for each in await there.history() if each.tool_results]) == 1


@case(approval)
async def resume(clerk, session, known):
    assert (await clerk.resume({known: Approve()})).text == "done: deployed to mars"
    there = yield
    assert len([each for each in await there.history() if each.tool_results]) == 1


@case(turn)
async def aclose(clerk, session, _):
    await session.aclose()
    there = yield
    assert await there.status() == "closed"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_each_call_is_done_once_during_a_move(open_cluster, monkeypatch, when):
    """At the time of the move the old owner has written the effect, or cannot write it any more."""
    monkeypatch.setattr("actgent.cluster.cluster_node.LEAVE_GRACE_SECONDS", 0.2)
    models = Echo(), Echo()
    agents = [(make_clerk(model), BareAgent("digger", llm=model)) for model in models]
    failed = dict.fromkeys(CASES, "it hangs")

    async def check(name, session, known, there):
        steps = CASES[name][1](clerk, session, known)
        try:
            await anext(steps)
            await there.wait()
            await steps.asend(await open_there(clerk, session))
        except StopAsyncIteration:
            del failed[name]
        except (ActgentError, AssertionError) as error:
            failed[name] = error

    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(*agents[0], node="one") as one,
            cluster.node(*agents[1], node="two") as two,
        ):
            await wait_balanced(one, two)
            clerk, gate, there = agents[0][0], Gate(one.journal, when), trio.Event()
            made = {name: await clerk.create_session("ada") for name in CASES}
            known = {name: await CASES[name][0](clerk, session) for name, session in made.items()}
            gate.close()
            gate.named = {session.id for session in made.values()}
            async with trio.open_nursery() as nursery:
                for name, session in made.items():
                    nursery.start_soon(check, name, session, known[name], there)
                with trio.move_on_after(10):
                    while gate.named:  # noqa: ASYNC110 - only a counter of the gate changes
                        await trio.sleep(0.01)
                assert not gate.named
                nursery.start_soon(drain, cluster, one)
                with trio.move_on_after(
                    5
                ):  # if the turn itself writes, its session stays until the write is done
                    await wait_released(one, made)
                gate.opened.set()
                await wait_released(one, made)
                while "hold second" not in models[1].asked:  # noqa: ASYNC110 - only a counter of the model changes
                    await trio.sleep(0.01)
                await trio.sleep(1)  # an interrupt of the next turn would arrive in the middle of it
                models[1].may_go.set()
                there.set()
                with trio.move_on_after(PATIENCE / 6):
                    while "it hangs" in failed.values():  # noqa: ASYNC110 - only a counter of the table changes
                        await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
    assert failed == {}


async def wait_released(runtime, sessions):
    while any(runtime.journal.owns(each.id) for each in sessions.values()):  # noqa: ASYNC110 - no event signals this state
        await trio.sleep(0.01)


async def open_there(clerk, session):
    """Return the session at its new owner. It may be closed."""
    known = clerk._opener.remote_sessions.session("clerk", session.id, owner="ada")
    assert isinstance(known, RemoteSession)
    if await known.status() != "closed":
        await known.wait_idle()
    return known
