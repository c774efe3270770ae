"""A change of the number of partitions. Sessions and pending messages move to the new owners."""

import pytest
import trio

from actgent import LLM, BareAgent, ConfigurationError, ModelResponse, Text
from actgent.cluster.pool_operations import read_cluster_status, repartition
from actgent.journal.postgres import cluster_pool_layout as layouts

PATIENCE = 120
"""Seconds for a whole test on a loaded machine."""


class Echo(LLM):
    """Answers with the last message."""

    name = "echo"

    async def complete(self, chat, on_text=None):
        await trio.lowlevel.checkpoint()
        return ModelResponse(parts=(Text(f"you said: {chat.messages[-1].parts[0].text}"),))


class Broken(Exception):
    """The process that changes the partitions is killed."""


async def said_in(session):
    history = await session.history()
    return [[each.text for each in history if each.sender.kind == kind] for kind in ("user", "assistant")]


async def test_cluster_resumes_after_a_change_of_partitions(open_cluster):
    """The change is rejected while a node runs.

    Messages sent during the change are answered once, also to a connected client.
    """
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster, cluster.connect(retry_timeout=PATIENCE) as client:
            place, agent = (cluster.journal, cluster.pool), client.agent("clerk")
            async with cluster.node(BareAgent("clerk", llm=Echo()), node="web"):
                sessions = [await agent.create_session("ada") for _ in range(8)]
                for session in sessions:
                    await session.chat("one", message_id="m1")
                    await session.wait_idle()
                with pytest.raises(ConfigurationError, match=r"but web-.* run: drain"):
                    await repartition(*place, 16)
            async with trio.open_nursery() as nursery:
                for session in sessions:
                    nursery.start_soon(say, session, "two", "m2")
                assert await repartition(*place, 16) == 256
                async with cluster.node(BareAgent("clerk", llm=Echo())) as runtime:
                    assert runtime.journal.count == 16
                    for session in sessions:
                        while len((await said_in(session))[0]) < 2:  # noqa: ASYNC110 - no event signals this state
                            await trio.sleep(0.02)
                        await session.chat("three", message_id="m3")
                        await session.wait_idle()
                        said, answers = await said_in(session)
                        assert said == ["one", "two", "three"]
                        assert answers == [f"you said: {each}" for each in said]
                    status = await read_cluster_status(*place)
                    assert (status.layout.generation, len(status.partitions)) == (2, 16)


async def test_interrupted_change_of_partitions_can_be_repeated(open_cluster, monkeypatch):
    """No node starts until the change is repeated. A different number is rejected."""
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster:
            place = cluster.journal, cluster.pool
            async with cluster.node(BareAgent("clerk", llm=Echo())):
                pass

            async def abort_connection(*_):
                raise Broken

            with monkeypatch.context() as patched:
                patched.setattr(layouts, "end_repartitioning", abort_connection)
                with pytest.raises(Broken):
                    await repartition(*place, 16)
            with pytest.raises(ConfigurationError, match="being changed to 16 partitions"):
                await repartition(*place, 8)
            with pytest.raises((ConfigurationError, ExceptionGroup)):
                async with cluster.node(BareAgent("clerk", llm=Echo())):
                    pytest.fail("the partitions are on their way")
            await repartition(*place, 16)
            async with cluster.node(BareAgent("clerk", llm=Echo())) as runtime:
                assert runtime.journal.count == 16


async def say(session, words, message_id):
    await session.chat(words, message_id=message_id)
