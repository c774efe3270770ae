"""A killed database, and the pending work of sessions during the outage.

The database belongs to the tests.
"""

import signal
from functools import partial

import pytest
import trio

from actgent import Approve, JournalFailed, LimitReached, Limits, Suspended, open_runtime

from .conversations import PATIENCE, open_nodes, talking


@pytest.fixture
async def nodes(process_server, database, open_cluster):
    """Yield a `Nodes` whose nodes use a separate database."""
    async with open_cluster(database.url) as cluster, open_nodes(process_server, cluster) as started:
        yield started


async def test_killed_database_loses_no_confirmed_write(nodes, database):
    """Confirmed writes survive, and unconfirmed writes are repeated.

    No turn fails, and no model call is repeated.
    """
    await nodes.start("a")
    await nodes.start("b")
    await nodes.settle("ab")
    async with talking(nodes) as talks:
        for number in (100, 200):
            await talks.reach(number)
            database.kill()
            await trio.sleep(1)
            await database.start()
    assert set(nodes.calls.values()) == {1}


async def _cut(how, nodes, database):
    """Kill or suspend the node `a`, or restart the database.

    Work resumes at another node, or at the same one.
    """
    if how == "database":
        database.kill()
        await database.start()
        return
    nodes.kill("a", {"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "leave": signal.SIGTERM}[how])
    await nodes.start("b")


@pytest.mark.parametrize("how", ["kill", "hang", "leave", "database"])
async def test_pending_work_survives_a_rolling_restart(nodes, database, how):
    """An approval, a schedule, a task, a mode, a budget and a partial answer: each continues exactly once."""
    await nodes.start("a")
    async with nodes.cluster.connect(retry_timeout=PATIENCE) as client:
        agent = client.agent("clerk")
        make = partial(agent.create_session, "ada")
        asked, scheduled, growing, giving = [await make() for _ in range(4)]
        bounded = await make(limits=Limits(model_calls=3))
        received, fired, values, tokens = [], [], [], []
        for session, into in ((growing, received), (scheduled, fired), (giving, values)):
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
            while len(tokens) < 3 or not nodes.calls["slowly a hole"]:  # noqa: ASYNC110 - a callback changes this state
                await trio.sleep(0.01)
            await _cut(how, nodes, database)
            (approval,) = await asked.approvals()
            reply = await agent.resume({approval.id: Approve()})
            assert reply.text == "done: deployed to mars"
            assert await bounded.mode() == "plan"
            assert (await agent.run("two", session=bounded)).text == "you said: two"
            nodes.kill("a", signal.SIGCONT)
            while not (received and fired and values):  # noqa: ASYNC110 - as above
                await trio.sleep(0.01)
            assert (await agent.run("three", session=bounded)).text == "you said: three"
            with pytest.raises(LimitReached):
                await agent.run("four", session=bounded)
            for session in (growing, scheduled, giving):
                await session.wait_idle()
        (whole,), (look,), (dug,) = received, fired, values
        assert whole.text == "you said: slowly one two three four"
        assert "look" in look.text
        assert "you said: slowly a hole" in dug.text
        assert "".join(each.text for each in tokens if each.reply_id == whole.id) == whole.text
        assert [(await each.messages()).total for each in (growing, scheduled, giving)] == [2, 2, 2]
    assert nodes.calls["deploy mars"] == 1
    assert nodes.calls["slowly one two three four"] <= 2
    assert nodes.calls["slowly a hole"] <= 2
    if how == "database":
        assert max(nodes.calls.values()) == 1


async def test_nodes_reach_the_database_by_tls(nodes, database):
    """The nodes trust the authority that the options name."""
    checked = f"sslmode=verify-full&sslrootcert={database.ca}"
    journal = f"{nodes.cluster.journal}&{checked}"
    await nodes.start("a", journal=journal)
    await nodes.start("b", journal=journal)
    async with talking(nodes, count=5) as talks:
        await talks.reach(20)
        nodes.kill("a")


@pytest.mark.parametrize("wrong", ["authority", "host"])
async def test_untrusted_certificate_is_rejected(database, tmp_path, write_certificates, wrong):
    """The node sends no data to a database whose certificate is not trusted. The error states that."""
    ca = write_certificates(tmp_path, "127.0.0.1")[0] if wrong == "authority" else database.ca
    host = "127.0.0.1" if wrong == "authority" else "localhost"
    checked = (
        f"postgresql://postgres:s3cret@{host}:{database.port}/postgres?sslmode=verify-full&sslrootcert={ca}"
    )
    said = {"authority": "certificate verify failed", "host": "does not match host name"}[wrong]
    with pytest.raises(JournalFailed, match=said) as failed:
        async with open_runtime(journal=checked, cluster="tests"):
            pass
    assert "s3cret" not in str(failed.value)
