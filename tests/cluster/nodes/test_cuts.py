"""A node that loses its broker for a moment: who reads from it, and who asks any node, hears of what comes soon after."""

import trio

from actgent.cluster.transport import ANSWER, SILENCE
from actgent.web.reach import Reach

from .pairs import PATIENCE, Echo, make_clerk


async def test_a_stream_goes_on_when_its_node_is_connected_again(open_cluster, relay):
    """The node keeps what it had, and tells readers to come again: they do not wait until a silence is too long."""
    model = Echo()
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(make_clerk(model), broker=f"amqp://guest:guest@127.0.0.1:{relay.port}/"),
            cluster.connect(patience=PATIENCE) as client,
        ):
            clerk = client.agent("clerk")
            session, heard = await clerk.create_session("ada"), trio.Event()
            session.on_conversation(lambda _: heard.set())
            await session.chat("hold on")
            while not model.asked:  # noqa: ASYNC110 - a model counts
                await trio.sleep(0.01)
            relay.cut()
            with trio.fail_after(SILENCE / 2):
                model.may_go.set()
                await heard.wait()


async def test_a_list_comes_from_another_node_when_one_is_cut_off(open_cluster, relay, monkeypatch):
    """What any node may answer the broker gives to the next one."""
    asked, may_go = [], trio.Event()

    async def hold(reach, caller, query, most):
        asked.append(query)
        await may_go.wait()
        return await page(reach, caller, query, most)

    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(make_clerk(Echo()), broker=f"amqp://guest:guest@127.0.0.1:{relay.port}/"),
            cluster.connect(patience=PATIENCE) as client,
            trio.open_nursery() as nursery,
        ):
            session = await client.agent("clerk").create_session("ada")
            page = Reach.page
            monkeypatch.setattr(Reach, "page", hold)
            found = []

            async def find():
                found.extend(await client.sessions())

            nursery.start_soon(find)
            while not asked:  # noqa: ASYNC110 - as above
                await trio.sleep(0.01)
            relay.cut()
            with trio.fail_after(ANSWER / 2):
                while len(asked) < 2:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.01)
                may_go.set()
                while not found:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.01)
            assert [each.session_id for each in found] == [session.id]


async def test_a_list_is_answered_however_often_its_node_is_cut_off(open_cluster, relay, monkeypatch):
    """A node that has lost its broker has not died of what it was asked."""
    asked, may_go = [], trio.Event()

    async def hold(reach, caller, query, most):
        asked.append(query)
        await may_go.wait()
        return await page(reach, caller, query, most)

    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(make_clerk(Echo()), broker=f"amqp://guest:guest@127.0.0.1:{relay.port}/"),
            cluster.connect(patience=PATIENCE) as client,
            trio.open_nursery() as nursery,
        ):
            session = await client.agent("clerk").create_session("ada")
            page = Reach.page
            monkeypatch.setattr(Reach, "page", hold)
            found = []

            async def find():
                found.extend(await client.sessions())

            nursery.start_soon(find)
            for number in range(1, 4):
                while len(asked) < number:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.01)
                relay.cut()
            may_go.set()
            while not found:  # noqa: ASYNC110 - as above
                await trio.sleep(0.01)
            assert [each.session_id for each in found] == [session.id]
