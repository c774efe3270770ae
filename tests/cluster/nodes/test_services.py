"""A broker and a database that are killed, and all that waits in a session meanwhile; both are the tests' own."""

import signal
from functools import partial

import attrs
import pytest
import trio

from actgent import (
    Approve,
    BrokerLost,
    JournalFailed,
    LimitReached,
    Limits,
    Suspended,
    connect,
    open_runtime,
)

from .talks import PATIENCE, open_nodes, talking


@pytest.fixture
async def nodes(lives, services, open_cluster):
    """What starts nodes that have services of their own."""
    broker, database = services
    async with open_cluster(database.url, broker.url) as cluster, open_nodes(lives, cluster) as started:
        yield started


async def test_the_broker_is_killed(nodes, services):
    """Turns go on without it; its queues come back, and clients and nodes to them: nothing is lost or answered twice."""
    await nodes.start("a")
    await nodes.start("b")
    async with talking(nodes) as talks:
        await talks.reach(100)
        services[0].kill()
        await services[0].start()
    assert sum(nodes.calls.values()) <= 300 + 30


async def test_the_database_is_killed(nodes, services):
    """What was confirmed is there when it is back, and what was not is tried again: no turn fails, and no model is asked twice."""
    await nodes.start("a")
    await nodes.start("b")
    await nodes.settle("ab")
    async with talking(nodes) as talks:
        for number in (100, 200):
            await talks.reach(number)
            services[1].kill()
            await trio.sleep(1)
            await services[1].start()
    assert set(nodes.calls.values()) == {1}


async def _cut(how, nodes, broker):
    """Let the node `a` end or hang, or its broker be started again; another node goes on, or it does."""
    if how == "broker":
        broker.kill()
        await broker.start()
        return
    nodes.kill("a", {"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "leave": signal.SIGTERM}[how])
    await nodes.start("b")


@pytest.mark.parametrize("how", ["kill", "hang", "leave", "broker"])
async def test_what_waits_is_carried_over(nodes, services, how):
    """An approval, a schedule, a task, a mode, a budget, and an answer that grows: each goes on, once."""
    await nodes.start("a")
    async with nodes.cluster.connect(patience=PATIENCE) as client:
        agent = client.agent("clerk")
        make = partial(agent.create_session, "ada")
        asked, scheduled, growing, giving = [await make() for _ in range(4)]
        bounded = await make(limits=Limits(model_calls=3))
        heard, fired, given, tokens = [], [], [], []
        for session, into in ((growing, heard), (scheduled, fired), (giving, given)):
            session.on_conversation(into.append)
        growing.on_token(tokens.append)
        with pytest.raises(Suspended):
            await agent.run("deploy mars", session=asked)
        await bounded.set_mode("plan")
        await agent.run("one", session=bounded)
        await scheduled.schedule("look", after=3)
        await giving.delegate("digger", "slowly a hole")
        await growing.chat("slowly one two three four")
        with trio.fail_after(2 * PATIENCE):
            while len(tokens) < 3 or not nodes.calls["slowly a hole"]:  # noqa: ASYNC110 - handlers tell it
                await trio.sleep(0.01)
            await _cut(how, nodes, services[0])
            (approval,) = await asked.approvals()
            reply = await agent.resume({approval.id: Approve()})
            assert reply.text == "done: deployed to mars"
            assert await bounded.mode() == "plan"
            assert (await agent.run("two", session=bounded)).text == "you said: two"
            nodes.kill("a", signal.SIGCONT)
            while not (heard and fired and given):  # noqa: ASYNC110 - as above
                await trio.sleep(0.01)
            assert (await agent.run("three", session=bounded)).text == "you said: three"
            with pytest.raises(LimitReached):
                await agent.run("four", session=bounded)
            for session in (growing, scheduled, giving):
                await session.wait_idle()
        (whole,), (look,), (dug,) = heard, fired, given
        assert whole.text == "you said: slowly one two three four"
        assert "look" in look.text
        assert "you said: slowly a hole" in dug.text
        assert "".join(each.text for each in tokens if each.reply_id == whole.id) == whole.text
        assert [(await each.messages()).total for each in (growing, scheduled, giving)] == [2, 2, 2]
    assert nodes.calls["deploy mars"] == 1
    assert nodes.calls["slowly one two three four"] <= 2
    assert nodes.calls["slowly a hole"] <= 2
    if how == "broker":
        assert max(nodes.calls.values()) == 1


async def test_all_of_a_cluster_speaks_tls(nodes, services):
    """Nodes and clients reach brokers and the database by certificates of an authority that they are told."""
    broker, database = services
    amqps = f"amqps://guest:guest@127.0.0.1:{broker.tls_port}/?cacertfile={broker.ca}"
    checked = f"sslmode=verify-full&sslrootcert={database.ca}"
    nodes.cluster = attrs.evolve(nodes.cluster, broker=amqps, journal=f"{nodes.cluster.journal}&{checked}")
    await nodes.start("a")
    await nodes.start("b")
    async with talking(nodes, count=5) as talks:
        await talks.reach(20)
        nodes.kill("a")


@pytest.mark.parametrize("wrong", ["authority", "host"])
async def test_a_certificate_that_proves_nothing_is_refused(services, tmp_path, write_certificates, wrong):
    """Neither broker nor database gets a word of a node to which it does not prove who it is; the error says so."""
    broker, database = services
    ca = write_certificates(tmp_path, "127.0.0.1")[0] if wrong == "authority" else broker.ca
    host = "127.0.0.1" if wrong == "authority" else "localhost"
    amqps = f"amqps://guest:s3cret@{host}:{broker.tls_port}/?cacertfile={ca}"
    with pytest.raises(BrokerLost, match="its certificate is not trusted") as refused:
        async with connect(amqps, name="tests"):
            pass
    checked = (
        f"postgresql://postgres:s3cret@{host}:{database.port}/postgres?sslmode=verify-full&sslrootcert={ca}"
    )
    said = {"authority": "certificate verify failed", "host": "does not match host name"}[wrong]
    with pytest.raises(JournalFailed, match=said) as failed:
        async with open_runtime(journal=checked, broker=broker.url):
            pass
    assert "s3cret" not in f"{refused.value}{failed.value}"
