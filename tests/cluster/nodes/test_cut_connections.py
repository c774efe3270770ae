"""Connections between nodes break. Readers at another node resume, and lists are read again."""

import trio

from actgent.client.request_sender import MAX_BROKEN_CONNECTIONS
from actgent.cluster.relay_client import SILENCE_SECONDS as SILENCE
from actgent.web.access_control import AccessFilter

from .pairs import PATIENCE, Echo, make_clerk, wait_balanced


async def test_a_stream_resumes_when_the_connection_between_nodes_is_cut(open_cluster, open_relay):
    """The owner keeps its events.

    The reader reconnects with its cursor and does not wait for the silence timeout.
    """
    models, ports = (Echo(), Echo()), []
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            open_relay(port=lambda: ports[0]) as relay,
            cluster.node(make_clerk(models[0]), node="one") as one,
            cluster.node(make_clerk(models[1]), node="two") as two,
        ):
            await wait_balanced(one, two)
            member = two.membership
            ports.append(int(member.node.address.rpartition(":")[2]))
            member.node.address = f"http://127.0.0.1:{relay.port}"
            while True:
                known = one.membership.node.directory.nodes.get(two.journal.node)
                if known is not None and known.address == member.node.address:
                    break
                await trio.sleep(0.02)
            cluster.balancer.ports[:] = cluster.balancer.ports[:1]
            async with cluster.connect(retry_timeout=PATIENCE) as client:
                session = await client.agent("clerk").create_session(
                    "ada", session_id=two.journal.new_session_id()
                )
                received = trio.Event()
                session.on_conversation(lambda _: received.set())
                await session.chat("hold on")
                while not models[1].asked:  # noqa: ASYNC110 - only a counter of the model changes
                    await trio.sleep(0.01)
                for _ in range(3):
                    relay.cut()
                    await trio.sleep(0.1)
                with trio.fail_after(SILENCE / 2):
                    models[1].may_go.set()
                    await received.wait()
                assert two.cluster().relayed > 2


async def test_list_is_requested_from_another_node_after_a_broken_connection(
    open_cluster, open_relay, monkeypatch
):
    """The list is requested again unless `MAX_BROKEN_CONNECTIONS` connections broke: a list may kill its nodes."""
    requests, may_go = [], trio.Event()

    async def hold(reach, caller, query, maximum):
        requests.append(query)
        await may_go.wait()
        return await page(reach, caller, query, maximum)

    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(make_clerk(Echo())),
            open_relay(port=cluster.balancer.port) as relay,
            cluster.connect(url=f"http://127.0.0.1:{relay.port}", retry_timeout=PATIENCE) as client,
            trio.open_nursery() as nursery,
        ):
            session = await client.agent("clerk").create_session("ada")
            page = AccessFilter.page
            monkeypatch.setattr(AccessFilter, "page", hold)
            found = []

            async def find():
                found.extend(await client.sessions())

            nursery.start_soon(find)
            for number in range(1, MAX_BROKEN_CONNECTIONS):
                while len(requests) < number:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.01)
                relay.cut()
            may_go.set()
            while not found:  # noqa: ASYNC110 - as above
                await trio.sleep(0.01)
            assert [each.session_id for each in found] == [session.id]
