"""Nodes are killed, hang and leave in the middle of many conversations.

Each message is answered once, in order.
"""

import signal

import trio

from actgent.cluster.relay_client import SILENCE_SECONDS as SILENCE
from actgent.journal.postgres.cluster_tables_reader import read_dead
from tests.cluster.services import free_port

from .conversations import PATIENCE, talking


async def test_node_killed_during_conversations_loses_no_message(nodes):
    """Another node resumes the sessions, also while partitions move.

    No message is lost, reordered or answered twice.
    """
    await nodes.start("a")
    await nodes.start("b")
    async with talking(nodes) as talks:
        await talks.reach(100)
        nodes.kill("a")
    assert sum(nodes.calls.values()) < 300 + 60


async def test_hanging_node_resumes_without_duplicate_writes(nodes):
    """The pending writes of the resumed node are rejected, because other nodes own its sessions by then."""
    await nodes.start("a")
    await nodes.start("b")
    async with talking(nodes, messages=20, pause=0.4) as talks:
        await talks.reach(100)
        nodes.kill("a", signal.SIGSTOP)
        await talks.reach(400)
        nodes.kill("a", signal.SIGCONT)
        await talks.reach(500)
        nodes.kill("b")


async def test_leaving_node_hands_over_running_turns(nodes):
    """The node hands over its partitions and its process ends.

    Few model calls are repeated, and no session counts as one whose process died.
    """
    await nodes.start("a")
    await nodes.start("b")
    async with talking(nodes) as talks:
        await talks.reach(100)
        nodes.kill("a", signal.SIGTERM)
        while "LEFT" not in nodes.said["a"]:  # noqa: ASYNC110 - another process changes this state
            await trio.sleep(0.05)
        assert await nodes.count("partitions WHERE NOT clean AND owner LIKE 'a-%'") == 0
    assert await nodes.count("suspects") == 0
    assert sum(nodes.calls.values()) <= 300 + 30


async def test_third_node_resumes_sessions_of_a_left_and_a_killed_node(nodes):
    """The third node and a new node resume all sessions."""
    for name in "abc":
        await nodes.start(name)
    async with talking(nodes) as talks:
        await talks.reach(75)
        nodes.kill("c", signal.SIGTERM)
        while "LEFT" not in nodes.said["c"]:  # noqa: ASYNC110 - another process changes this state
            await trio.sleep(0.05)
        await talks.reach(150)
        nodes.kill("b")
        await nodes.start("d")
    assert sum(nodes.calls.values()) <= 300 + 2 * 30


async def test_replaced_nodes_lose_no_message(nodes):
    """One node is killed, and another one leaves while a new node replaces it."""
    await nodes.start("a")
    await nodes.start("b")
    async with talking(nodes) as talks:
        await talks.reach(100)
        nodes.kill("a")
        await nodes.start("c")
        await talks.reach(200)
        nodes.kill("b", signal.SIGTERM)
    assert sum(nodes.calls.values()) <= 300 + 2 * 30


async def test_cut_database_connections_repeat_no_model_call(nodes, relay):
    """A node that loses its database connections for a moment resumes with its turns.

    No model call is repeated.
    """
    await nodes.start("a", journal=nodes.cluster.journal.replace(":5432/", f":{relay.port}/"))
    async with talking(nodes, messages=20) as talks:
        for number in (100, 200, 300):
            await talks.reach(number)
            relay.cut()
    assert sum(nodes.calls.values()) == 600


async def test_cut_node_connections_repeat_no_model_call(nodes, open_relay):
    """A relayed request is sent again under its id after its connection broke. The model is called once."""
    port = free_port()
    async with open_relay(port=port) as relay:
        await nodes.start("a", f"advertise=http://127.0.0.1:{port}", f"reached=http://127.0.0.1:{relay.port}")
        await nodes.start("b")
        async with talking(nodes, messages=20) as talks:
            for number in (100, 200, 300):
                await talks.reach(number)
                relay.cut()
    assert sum(nodes.calls.values()) == 600


async def test_slow_database_connection_keeps_messages_in_order(nodes, relay):
    """Messages are answered once and in order over a slow connection, also if the other node dies."""
    relay.delay = 0.05
    await nodes.start("a", journal=nodes.cluster.journal.replace(":5432/", f":{relay.port}/"))
    await nodes.start("b")
    async with talking(nodes) as talks:
        await talks.reach(100)
        nodes.kill("b")
    assert sum(nodes.calls.values()) <= 300 + 30


async def keep_alive(nodes):
    """Start a node, and start the next one after its death."""
    for number in range(100):
        await nodes.start(f"n{number}")
        while nodes.running[f"n{number}"].poll() is None:  # noqa: ASYNC110 - no event signals this state
            await trio.sleep(0.05)


async def test_message_that_kills_each_node_is_dead_lettered(nodes):
    """The message kills three nodes, and two more with its session alone.

    Then it fails, and the session continues.
    """
    async with nodes.cluster.connect(retry_timeout=PATIENCE) as client, trio.open_nursery() as nursery:
        nursery.start_soon(keep_alive, nodes)
        with trio.fail_after(2 * PATIENCE):
            agent = client.agent("clerk")
            other, session = await agent.create_session("ada"), await agent.create_session("ada")
            failures = []
            session.on_exception(failures.append)
            await session.chat("kill", message_id="m1")
            while not failures:  # noqa: ASYNC110 - a callback changes this state
                await trio.sleep(0.05)
            assert [(each.kind, each.message_id) for each in failures] == [("poison", "m1")]
            assert (await agent.run("hello", session=session)).text == "you said: hello"
            assert (await agent.run("hello", session=other)).text == "you said: hello"
        (dead,) = await read_dead(nodes.cluster.journal)
        assert (dead.session_id, dead.message_id) == (session.id, "m1")
        nursery.cancel_scope.cancel()
    assert nodes.calls["kill"] == 5


async def test_child_that_kills_each_node_is_dead_lettered_alone(nodes):
    """The parent session is tried together with its child, counts as many deaths, and continues with the failure."""
    nodes.options = ("asks",)
    async with nodes.cluster.connect(retry_timeout=PATIENCE) as client, trio.open_nursery() as nursery:
        nursery.start_soon(keep_alive, nodes)
        with trio.fail_after(2 * PATIENCE):
            agent = client.agent("clerk")
            session = await agent.create_session("ada")
            await session.chat("digger kill", message_id="m1")
            await session.wait_idle()
            results = [each for message in await session.history() for each in message.tool_results]
            assert (await agent.run("hello", session=session)).text == "you said: hello"
        (dead,) = await read_dead(nodes.cluster.journal)
        assert (dead.session_id.partition("/")[0], dead.agent) == (session.id, "digger")
        nursery.cancel_scope.cancel()
    assert ["agent 'digger' failed (poison)" in each.error for each in results] == [True]
    assert (nodes.calls["kill"], nodes.calls["digger kill"]) == (5, 1)


async def test_session_requested_during_a_kill_redelivers_nothing(nodes):
    """The request goes to the next node.

    Its handlers receive only new deliveries. Existing handlers also receive them, without waiting for the
    silence timeout of their stream.
    """
    await nodes.start("a")
    async with nodes.cluster.connect(retry_timeout=PATIENCE) as client:
        agent, received = client.agent("clerk"), []
        known = await agent.create_session("ada")
        known.on_conversation(lambda reply: received.append(reply.text))
        await agent.run("one", session=known)
        await agent.run("one", session=await agent.create_session("ada", session_id="s1"))
        nodes.kill("a", signal.SIGSTOP)
        with trio.fail_after(2 * PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(nodes.start, "b")
                nursery.start_soon(_kill_soon, nodes)
                session = await agent.ensure_session("ada", "s1")
            received_items = []
            session.on_conversation(lambda reply: received_items.append(reply.text))
            await agent.run("two", session=session)
            await session.wait_idle()
        assert received_items == ["you said: two"]
        with trio.fail_after(SILENCE / 2):
            await agent.run("two", session=known)
            await known.wait_idle()
        assert received == ["you said: one", "you said: two"]


async def _kill_soon(nodes):
    await trio.sleep(
        0.5
    )  # a request that did not arrive by then goes to the other node at once, and proves nothing
    nodes.kill("a")
